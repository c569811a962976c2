"""Sampling locations, compared with the pixels that the operators read, and the contents of pictures."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jax_dcn
from jax_dcn import viz

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.usefixtures("figures")]

RANDOM = np.random.default_rng(0)
IMAGE_SIZE = (7, 9)


GEOMETRIES = [
    ((7, 9), {"kernel_size": 3}),
    ((3, 5), {"kernel_size": (2, 3), "strides": (2, 1), "kernel_dilation": (1, 2), "padding": "VALID"}),
    ((5, 6), {"kernel_size": (3, 2), "strides": (1, 2), "kernel_dilation": (2, 1), "padding": ((2, 0), (1, 3))}),
    ((4, 5), {"kernel_size": 3, "strides": 2, "padding": 1}),
    ((7, 9), {"kernel_size": 3, "padding": "CIRCULAR"}),
]


@pytest.mark.parametrize("output_size, geometry", GEOMETRIES)
def test_positions_are_where_the_operator_reads(output_size, geometry):
    """Interpolating an image of coordinates gives the position itself; an image of ones shows whether it is read."""
    rows, columns = kernel = np.broadcast_to(geometry["kernel_size"], 2)
    taps, groups = rows * columns, 2
    offset = RANDOM.normal(0, 2, (*output_size, groups * taps * 2)).astype(np.float32)
    layer = viz.Layer(offset, image_size=IMAGE_SIZE, **geometry)
    assert layer.output_size == output_size

    x = np.stack([*np.mgrid[: IMAGE_SIZE[0], : IMAGE_SIZE[1]], np.ones(IMAGE_SIZE)] * groups, -1).astype(np.float32)
    weight = np.eye(taps * 3 * groups, dtype=np.float32).reshape(*kernel, 3 * groups, -1)
    options = {name: value for name, value in geometry.items() if name != "kernel_size"}
    read = jax_dcn.deform_conv2d(x, offset, weight, **options).reshape(*output_size, taps, groups, 3).swapaxes(2, 3)

    circular = geometry.get("padding") == "CIRCULAR"
    positions = layer.locations % IMAGE_SIZE if circular else layer.locations
    assert_array_equal(layer.is_inside(layer.locations), read[..., 2] > 0)
    whole = ((positions >= 0) & (positions <= np.subtract(IMAGE_SIZE, 1))).all(-1)
    assert 0.3 < whole.mean() < 0.9
    assert_allclose(read[whole][:, :2], positions[whole], atol=1e-4)


@pytest.mark.parametrize("padding", ["SAME", "CIRCULAR"])
def test_stacked_positions_have_the_weights_of_the_gradient(padding):
    """With integer offsets and kernels of ones, the gradient of a pixel is the sum of the weights of its samples."""
    offsets = [RANDOM.integers(-3, 4, (*size, 36)).astype(np.float32) for size in ((7, 9), (4, 5))]
    masks = [RANDOM.uniform(size=(*size, 18)).astype(np.float32) for size in ((7, 9), (4, 5))]
    strides, sizes = (1, 2), ((7, 9), (7, 9))
    layers = [
        viz.Layer(offset, mask, image_size=size, kernel_size=3, strides=stride, padding=padding)
        for offset, mask, size, stride in zip(offsets, masks, sizes, strides, strict=True)
    ]

    def seen(x, position):
        for offset, mask, stride in zip(offsets, masks, strides, strict=True):
            # Each offset group has one channel, and both outputs depend on both groups.
            x = jax_dcn.deform_conv2d(x, offset, jnp.ones((3, 3, 2, 2)), mask=mask, strides=stride, padding=padding)
        return x[position][0]

    for position in [(0, 0), (2, 2), (3, 4)]:
        gradient = jax.grad(seen)(jnp.zeros((7, 9, 2)), position).sum(-1)
        samples = viz.sampling_locations(layers, position)
        assert len(samples.weights) == 18**2 and samples.inside.all() == (padding == "CIRCULAR")
        found = np.zeros((7, 9))
        np.add.at(found, tuple(samples.locations[samples.inside].astype(int).T), samples.weights[samples.inside])
        assert_allclose(found, gradient, atol=1e-4)


def layer_of(offset, mask=None, **geometry):
    """A 3x3 layer that keeps the size."""
    return viz.Layer(offset, mask, image_size=offset.shape[-3:-1], kernel_size=3, **geometry)


def test_between_positions_of_a_layer_the_nearest_counts():
    below, above = np.zeros((8, 8, 18)), np.zeros((4, 4, 18))
    below[4, 4] = 1
    above[2, 2] = -0.3
    layers = [
        viz.Layer(offset, image_size=size, kernel_size=3, strides=2, padding=1)
        for offset, size in ((below, (16, 16)), (above, (8, 8)))
    ]
    middle = viz.sampling_locations(layers, (2, 2)).locations[40]
    assert_allclose(middle, 2 * (2 * 2 - 0.3) + 1)


@pytest.mark.parametrize("module", ["linen", "nnx"])
def test_of_a_module(module):
    x, options = jnp.ones((2, 8, 6, 3)), {"strides": (2, 1), "padding": "VALID", "return_offsets": True}
    if module == "linen":
        layer = jax_dcn.linen.DeformConv(4, (3, 2), **options)
        y, offset, mask = jax.jit(layer.init_with_output)(jax.random.key(0), x)[0]
    else:
        from flax import nnx

        layer = jax_dcn.nnx.DeformConv(3, 4, (3, 2), **options, rngs=nnx.Rngs(0))
        y, offset, mask = layer(x)
    seen = viz.Layer.of(layer, x, offset, mask)
    assert seen.output_size == y.shape[1:3] and seen.mask.mean() == 0.5
    expected = [[row, column] for row in (4, 5, 6) for column in (4, 5)]
    assert viz.sampling_locations(seen[1], (2, 4)).locations.tolist() == expected


def test_effective_dilation():
    offset = 0.5 * np.mgrid[-1:2, -1:2].transpose(1, 2, 0).ravel() * np.ones((6, 6, 1))
    assert_allclose(viz.effective_dilation(layer_of(offset)), 1.5)
    # For a 1x3 kernel of dilation 2, with the last tap moved by (4, 1): distances 2 and 5.
    offset = np.tile([0, 0, 0, 0, 4.0, 1], (6, 6, 1))
    layer = viz.Layer(offset, image_size=(6, 6), kernel_size=(1, 3), kernel_dilation=2)
    assert_allclose(viz.effective_dilation(layer), 3.5)
    with pytest.raises(ValueError, match="single tap"):
        viz.effective_dilation(viz.Layer(np.zeros((6, 6, 2)), image_size=(6, 6), kernel_size=1))


def test_dilation_of_objects():
    """The dilation at row r, column c of image i is 1 + i + r/10 + c/100."""
    spread = np.arange(2)[:, None, None] + np.arange(4)[:, None] / 10 + np.arange(8) / 100
    offset = spread[..., None] * np.mgrid[-1:2, -1:2].transpose(1, 2, 0).ravel()
    boxes = [[0, 0, 4, 4], [60, 10, 64, 30], [0, 0, 64, 32]]  # centres in cells (0, 0), (2, 7), (2, 4)
    layers, sizes = {"a": layer_of(offset), "b": layer_of(0 * offset)}, {"l": 30, "s": 0}
    table = viz.dilation_table(layers, boxes, [0, 1, 0], image_size=(32, 64), sizes=sizes)
    assert_allclose(table["a"]["s"], [1, 2.27])
    assert_allclose(table["a"]["l"], [1.24])
    assert_allclose(table["b"]["s"], [1, 1])
    of_one = viz.dilation_table({"a": layer_of(offset[1])}, boxes, image_size=(32, 64), sizes={"s": 0})
    assert_allclose(of_one["a"]["s"], [2, 2.27, 2.24])


POOLING = {"output_size": (4, 3), "spatial_scale": 0.25, "sample_per_part": (2, 3), "trans_std": 0.2}


def test_bins_are_where_the_operator_pools():
    """For an image of coordinates, a bin is the mean of its points."""
    height, width, classes = 24, 20, 2
    coordinates = np.mgrid[:height, :width].transpose(1, 2, 0).astype(np.float32)
    corner = RANDOM.uniform(20, 30, (2, 5, 2))
    rois = np.concatenate([np.zeros((2, 5, 1)), corner, corner + RANDOM.uniform(5, 30, (2, 5, 2))], -1)
    offset = RANDOM.uniform(-1, 1, (2, 5, 2, 3, 2 * classes)).astype(np.float32)
    rois = rois.astype(np.float32)
    x = np.broadcast_to(np.concatenate([coordinates] * classes, -1), (2, 1, height, width, 2 * classes))
    pooled = jax_dcn.deform_psroi_pool(x, rois, offset, part_size=(2, 3), **POOLING)
    positions = viz.bin_locations(rois, offset, **POOLING)
    assert positions.shape == (2, 5, 4, 3, classes, 2, 3, 2)
    assert positions.min() >= 0 and positions[..., 0].max() <= height - 1 and positions[..., 1].max() <= width - 1
    assert_allclose(positions.mean((-3, -2)).reshape(pooled.shape), pooled, rtol=1e-4)


def test_a_region_that_is_not_finite_lies_nowhere():
    rois = np.array([[0, 0, 0, 8, 8], [0, 0, np.nan, 8, 8], [-1, 0, 0, 8, 8]], np.float32)
    positions = viz.bin_locations(rois, **POOLING)
    assert np.isnan(positions).reshape(3, -1).all(1).tolist() == [False, True, False]
    assert not np.isnan(positions[[0, 2]]).any()


LAYER, LAYERS = layer_of(np.zeros((8, 8, 18))), layer_of(np.zeros((2, 8, 8, 18)))  # of one image, and of two
BOX, NO_OFFSET = np.zeros((1, 4)), np.zeros((2, 7, 7, 2))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: layer_of(np.zeros((8, 8, 18)), np.zeros((8, 8, 8))), r"mask must have shape \(8, 8, 9\)"),
        (lambda: viz.sampling_locations([], (0, 0)), "layers must be one or more"),
        (lambda: viz.sampling_locations(LAYER, (1, 1, 1)), r"position must be a \(row, column\)"),
        (lambda: viz.sampling_locations(LAYER, (8, 0)), r"position must be a .*\(8, 8\), got \(8, 0\)"),
        (lambda: viz.sampling_locations(LAYER, (0, 0), offset_group=1), "offset_group must be .* 0 to 0, got 1"),
        (lambda: viz.sampling_locations([layer_of(np.zeros((9, 9, 18))), LAYER], (0, 0)), "layers must be in order"),
        (lambda: viz.sampling_locations(LAYERS, (0, 0)), "layers must be of one image"),
        (lambda: viz.plot_offsets(LAYERS), "layer must be of one image"),
        (lambda: viz.plot_offsets(LAYER, tap=9), "tap must be an int from 0 to 8, got 9"),
        (lambda: viz.plot_offset_lengths({}), "layers must be one or more"),
        (lambda: viz.bin_locations(np.zeros((3, 5)), NO_OFFSET, output_size=7), "offset must have shape"),
        (lambda: viz.bin_locations(np.zeros((3, 4)), output_size=7), "rois must have shape"),
        (lambda: viz.plot_bins(np.zeros((1, 5)), output_size=7), r"roi must be one region .*, got \(1, 5\)"),
        (lambda: viz.plot_bins(np.zeros(5), output_size=7, spatial_scale=0), "spatial_scale must be a positive number"),
        (lambda: viz.plot_bins(np.zeros(5), output_size=7, class_index=1), "class_index must be .* 0 to 0, got 1"),
        (lambda: viz.dilation_table({"a": LAYER}, BOX, [0], image_size=(8, 8)), r"only there; a: \(\)"),
        (lambda: viz.dilation_table({"a": LAYERS}, BOX, image_size=(8, 8)), r"images must be given .*; a: \(2,\)"),
        (lambda: jax.jit(lambda a: layer_of(a).mask)(jnp.zeros((8, 8, 18))), "offset must be known, got traced"),
    ],
)
def test_errors(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def points(artist):
    return np.asarray(artist.get_offsets())


def lines(ax, label):
    return [line for line in ax.lines if line.get_label() == label]


def test_plot_sampling_counts_what_is_outside():
    offset = np.zeros((8, 8, 9, 2))
    offset[4, 4, :3] = [[-7, 0], [1000, 0], [0, np.nan]]
    ax = viz.plot_sampling(layer_of(offset.reshape(8, 8, 18)), (4, 4))
    assert len(lines(ax, "outside: 3 of 9")) == 1
    assert len(points(ax.collections[0])) == 6
    assert ax.get_ylim() == (7.5, -5)  # room for the sample at -4, none for that at 1003


def test_plot_offsets():
    offset = np.zeros((50, 50, 9, 2))
    offset[..., 0] = 1.0  # one pixel down
    offset[..., 4, :] += [0, 9]  # the middle tap further right
    offset[1, 1, 2] = np.nan
    layer = layer_of(offset.reshape(50, 50, 18))
    arrows = viz.plot_offsets(layer).collections[0]
    assert arrows.N == 17**2 - 1  # every third, and one is a cross
    assert_allclose([arrows.U, arrows.V], np.broadcast_to([[1], [1]], (2, arrows.N)), atol=1e-6)
    assert_allclose(arrows.get_array(), (8 + np.sqrt(82)) / 9)
    ax = viz.plot_offsets(layer, tap=5, image=np.zeros((100, 100)))
    arrows = ax.collections[0]
    assert arrows.N == 17**2 and set(arrows.V) == {2} and set(arrows.U) == {0}  # in pixels of the image, twice as many
    assert_allclose(arrows.XY[0], [2 * (1 + 1 + 0.5) - 0.5, 2 * (1 + 0.5) - 0.5])  # the tap to the right of (1, 1)
    assert len(lines(viz.plot_offsets(layer), "not finite")) == 1
    assert viz.plot_offsets(layer_of(np.full((50, 50, 18), 30.0))).collections[0].N == 6**2  # long ones need space


def test_plot_bins():
    roi = np.array([0, 8, 16, 71, 47])  # columns 8 to 71, rows 16 to 47
    offset = np.zeros((2, 2, 4))
    offset[0, 1, 2:] = [1, 0.5]  # the second class, dx and dy
    options = {"output_size": 2, "spatial_scale": 1 / 8, "sample_per_part": 2, "class_index": 1}
    ax = viz.plot_bins(roi, offset, image=np.zeros((64, 96)), **options)
    corners = [points(bin_)[0] for bin_ in ax.collections]
    # 64 x 32 pixels; a tenth and a twentieth of that. The first pixel of the region begins at 7.5.
    assert_allclose(corners, [[7.5, 15.5], [39.5 + 6.4, 15.5 + 1.6], [7.5, 31.5], [39.5, 31.5]], atol=1e-4)
    outlines = [line.get_xydata() for line in ax.lines if line.get_linestyle() == ":"]
    assert_allclose(outlines[1][[0, 2]], [[39.5, 15.5], [71.5, 31.5]], atol=1e-4)
    (frame,) = {tuple(np.ptp(line.get_xydata(), 0).round(3)) for line in ax.lines if line.get_linestyle() == "-"}
    assert frame == (64, 32)
    assert ax.texts[1].xy == pytest.approx((39.5 + 6.4 + 8, 15.5 + 1.6 + 4), abs=1e-3)
    offset[1, 0, 2] = np.inf
    ax = viz.plot_bins(roi, offset, **options)
    assert len(ax.texts) == 3 and not np.isfinite(points(ax.collections[2])).all()


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "jax_dcn\[viz\]"'):
        viz.plot_dilation({})


def test_importing_takes_no_matplotlib():
    program = "import sys, jax_dcn.viz; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
