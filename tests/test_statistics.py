"""Statistics of offsets: compared with loops over samples, under transformations, and the warning."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jax_dcn import offset_statistics, warn_of_offsets
from tests.helpers.deform_conv.numpy_reference import Convolution, axis_corners, samples

CONVOLUTIONS = [
    ((3, 3), Convolution(padding="SAME")),
    ((2, 3), Convolution((2, 1), "VALID", (1, 2))),
    ((3, 2), Convolution((1, 2), ((2, 0), (1, 3)), (2, 1))),
    ((3, 3), Convolution(padding="CIRCULAR")),
    ((3,), Convolution(padding="SAME")),
    ((2, 1, 3), Convolution(padding=1)),
]
IMAGE_SIZES = {1: (13,), 2: (7, 9), 3: (3, 4, 5)}
IMAGE_SIZE = IMAGE_SIZES[2]


def random_offset(kernel, convolution, seed=0):
    """Offsets of two images and two offset groups."""
    size = convolution.output_size(IMAGE_SIZES[len(kernel)], kernel)
    channels = 2 * len(kernel) * math.prod(kernel)
    return np.random.default_rng(seed).normal(0, 3, (2, *size, channels)).astype(np.float32)


def arguments(kernel, convolution):
    options = {name: getattr(convolution, name) for name in ("strides", "padding", "kernel_dilation")}
    return {"image_size": IMAGE_SIZES[len(kernel)], "kernel_size": kernel, **options}


def counted(offset, kernel, convolution):
    """The same statistics, with loops over samples."""

    def reads(position):
        if np.isinf(position).any():
            return False
        return all(axis_corners(p, n, convolution.wraps) for p, n in zip(position, image_size, strict=True))

    image_size = IMAGE_SIZES[len(kernel)]
    x = np.zeros((len(offset), *image_size, 2))
    plain = samples(x, np.zeros_like(offset), kernel, convolution)
    lengths, lost, regular = [], 0, 0
    deformed = samples(x, offset, kernel, convolution)
    for (n, pixel, *_, moved, position), (*_, still) in zip(deformed, plain, strict=True):
        lengths.append(np.linalg.norm(offset[n, *pixel, moved].astype(float)))
        regular += reads(still)
        lost += reads(still) and not np.isnan(position).any() and not reads(position)
    finite = np.isfinite(lengths)
    known = np.array(lengths)[finite]
    return {
        "mean_length": known.mean(),
        "max_length": known.max(),
        "outside": lost / regular,
        "not_finite": len(lengths) - len(known),
    }


@pytest.mark.parametrize("kernel, convolution", CONVOLUTIONS)
def test_statistics_are_what_counting_gives(kernel, convolution):
    offset = random_offset(kernel, convolution)
    vectors = offset.reshape(2, -1, len(kernel))
    vectors[0, 5:7, 0], vectors[0, 5:7, -1] = np.nan, [1, np.nan]
    vectors[1, 9, :] = np.inf
    vectors[1, 10:12, 0], vectors[1, 10:12, -1] = [np.nan, np.inf], -np.inf
    statistics = jax.jit(lambda offset: offset_statistics(offset, **arguments(kernel, convolution)))(offset)
    expected = counted(offset, kernel, convolution)
    assert statistics.keys() == expected.keys()
    for name, number in expected.items():
        assert_allclose(statistics[name], number, rtol=1e-5, err_msg=name)
    assert expected["not_finite"] == min(len(kernel) + 3, 5) and (expected["outside"] > 0.1) is not convolution.wraps


def test_a_new_layer_has_lost_nothing():
    """At the border, a plain convolution also samples the padding."""
    statistics = offset_statistics(jnp.zeros((4, 4, 18)), (4, 4), 3)
    assert {name: number.item() for name, number in statistics.items()} == dict.fromkeys(statistics, 0)
    assert not jnp.isnan(jnp.stack(list(offset_statistics(jnp.zeros((0, 4, 4, 18)), (4, 4), 3).values()))).any()


FINE = {"mean_length": 1.0, "max_length": 2.0, "outside": 0.05, "not_finite": 0}


@pytest.mark.platforms("cpu")
def test_the_warning_names_the_layer_and_what_helps():
    warn_of_offsets({"conv1": FINE})
    with pytest.warns(UserWarning, match=r"offsets of conv2 .* more than 10% .* \(jax_dcn.offset_labels, .*_bound"):
        warn_of_offsets({"conv1": FINE, "conv2": FINE | {"outside": 0.11}})
    with pytest.warns(UserWarning, match="offsets of conv1 are not finite"):
        warn_of_offsets({"conv1": FINE | {"not_finite": jnp.int32(1)}})
    with pytest.warns(UserWarning, match="more than 2%"):
        warn_of_offsets({"conv1": FINE}, most_outside=0.02)
    with pytest.raises(TypeError, match="the statistics of conv1 must be known, got traced"):
        jax.jit(lambda outside: warn_of_offsets({"conv1": {"not_finite": 0, "outside": outside}}))(0.5)


@pytest.mark.platforms("cpu")
def test_the_warning_comes_once_for_each_layer():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for outside in (0.2, 0.3, 0.4):
            warn_of_offsets({name: FINE | {"outside": outside} for name in ("conv1", "conv2")})
    assert len(shown) == 2 and shown[0].filename == __file__
