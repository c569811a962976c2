"""Arguments that each public function of arrays takes, by its name."""

import dataclasses

import jax.numpy as jnp

from tests.helpers.roi_pool.cases import PSRoIPool

ones, zeros = jnp.ones, jnp.zeros
LEVELS = ((4, 5), (3, 2))
CONVOLUTION = {
    "x": ones((2, 5, 6, 4)),
    "offset": ones((2, 5, 6, 36)),
    "weight": ones((3, 3, 2, 6)),
    "mask": ones((2, 5, 6, 18)),
    "feature_group_count": 2,
}
POOLING = {name: jnp.asarray(array, jnp.float32) for name, array in PSRoIPool().operands()._asdict().items()}
ALIGN = {"x": zeros((1, 5, 6, 12)), "rois": zeros((3, 5)), "output_size": 2}
CALLS = {
    "deform_conv1d": {"x": ones((2, 9, 4)), "offset": ones((2, 9, 6)), "weight": ones((3, 4, 6))},
    "deform_conv2d": CONVOLUTION | {"bias": ones(6)},
    "deform_conv3d": {"x": ones((2, 3, 4, 5, 4)), "offset": ones((2, 3, 4, 5, 36)), "weight": ones((1, 2, 3, 4, 6))},
    **{
        f"deform_conv2d_{name}_grad": CONVOLUTION | {"cotangent": ones((2, 5, 6, 6))}
        for name in ("input", "offset", "mask", "weight")
    },
    "multi_scale_deformable_attention": {
        "value": zeros((2, 26, 4, 6)),
        "sampling_locations": zeros((2, 5, 4, 2, 3, 2)),
        "attention_weights": zeros((2, 5, 4, 2, 3)),
        "spatial_shapes": LEVELS,
    },
    "dcnv3": {
        "x": zeros((2, 7, 5, 12)),
        "offset": zeros((2, 7, 5, 36)),
        "mask": zeros((2, 7, 5, 18)),
        "kernel_size": 3,
        "padding": 1,
        "groups": 2,
    },
    "as_deform_conv": {"offset": zeros((5, 5, 18)), "mask": zeros((5, 5, 9)), "kernel_size": 3},
    "deform_psroi_pool": POOLING | dataclasses.asdict(PSRoIPool().pooling),
    "psroi_pool": ALIGN | {"group_size": 2},
    "roi_align": ALIGN,
    "ps_roi_align": ALIGN,
    "deform_roi_pool": ALIGN | {"offset": zeros((3, 2, 2, 2))},
    "grid_sample": {"x": zeros((2, 5, 6, 3)), "grid": zeros((2, 7, 2))},
    "resize": {"x": zeros((2, 5, 6, 3)), "size": (7, 9)},
    "map_coordinates": {"input": ones((5, 6)), "coordinates": [zeros(3), zeros(3)], "order": 1},
    "linear_sum_assignment": {"cost": ones((4, 3))},
    "spline_filter": {"input": ones((5, 6))},
    "nms": {"boxes": zeros((5, 4)), "scores": zeros(5), "iou_threshold": 0.5, "max_outputs": 3},
    "fpn_levels": {"boxes": zeros((2, 4)), "num_levels": 4},
    "find_peaks": {"scores": zeros((5, 5)), "count": 3},
    "offset_statistics": {"offset": zeros((4, 4, 18)), "image_size": (4, 4), "kernel_size": 3},
}
