"""Random checkpoints, the same on every machine, for models whose weights are too large to commit."""

import zlib

import numpy as np
import pytest

from jax_dcn import interop


def image(height=64, width=96):
    """A random image [1, height, width, 3] with the scale of a normalised photograph."""
    return np.random.default_rng(0).normal(size=(1, height, width, 3)).astype(np.float32)


def fill(shapes):
    """Arrays of the given shapes, each of which depends only on its name; activations keep their scale with them."""
    return {name: _parameter(name, shape) for name, shape in shapes.items() if "num_batches" not in name}


def _parameter(name, shape):
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
        values = random.uniform(0.5, 1.0, shape)
    elif len(shape) == 1:
        values = random.normal(0, 1 if "conv_offset" in name else 0.1, shape)
    else:
        # Each layer's offsets amplify rounding errors. Small offsets keep these errors small up to the last stage.
        values = random.normal(0, (0.2 if "conv_offset" in name else 2**0.5) / np.prod(shape[1:]) ** 0.5, shape)
    return values.astype(np.float32)


def assert_same(found, expected):
    """Asserts that two mappings of arrays are equal to the bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def assert_refused(message, path, **options):
    """Asserts that a checkpoint file is not loaded, with this message."""
    with pytest.raises(ValueError, match=message):
        interop.load(path, **options)
