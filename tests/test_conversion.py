"""`as_deform_conv`: a deformable convolution samples where DCNv3 and DCNv4 do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn import as_deform_conv
from tests.helpers.layers import assert_close, normal

X = normal(1, (2, 7, 8, 4))


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_size": 3},
        {"kernel_size": (3, 5), "kernel_dilation": (2, 1), "offset_scale": 1.5},
        {"kernel_size": (2, 3), "kernel_dilation": (3, 1), "offset_scale": 0.5},
        {"kernel_size": (5, 3), "remove_center": True, "offset_scale": 2.0},
        {"kernel_size": (2, 2), "remove_center": True, "offset_scale": 2.0},
    ],
    ids=str,
)
def test_a_convolution_with_a_kernel_of_ones_gives_the_same(window):
    rows, columns = np.broadcast_to(window["kernel_size"], 2)
    taps = rows * columns - window.get("remove_center", False)
    offset, mask = normal(2, (2, 7, 8, 4 * taps)), normal(3, (2, 7, 8, 2 * taps))
    converted = jax.jit(lambda offset, mask: as_deform_conv(offset, mask, **window))(offset, mask)
    dilation = np.broadcast_to(window.get("kernel_dilation", 1), 2).tolist()
    reach = [d * (k - 1) for k, d in zip((rows, columns), dilation, strict=True)]
    padding = [(n // 2, n - n // 2) for n in reach]
    y = jax_dcn.deform_conv2d(
        X,
        converted[0],
        jnp.ones((rows, columns, 1, 4)),
        mask=converted[1],
        padding=padding,
        kernel_dilation=dilation,
        feature_group_count=4,
    )
    assert_close(y, jax_dcn.dcnv3(X, offset, mask, groups=2, padding=padding, **window))
