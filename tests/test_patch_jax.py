"""`jax_dcn.patch("jax")`: `jax.scipy.ndimage.map_coordinates` before and after."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.ndimage import map_coordinates
from numpy.testing import assert_allclose, assert_array_equal

import jax_dcn
from jax_dcn._patch.adapters import JAX_MODES

NAME = "jax.scipy.ndimage.map_coordinates"


def uses_kernels(*arguments, **options):
    return "deform_sampling" in str(jax.make_jaxpr(lambda: map_coordinates(*arguments, **options))())


def example(dims, seed, image="float64", coordinates="float64"):
    """An image, and coordinates within it, on its pixels, beyond its borders and far away, of shapes that broadcast."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 7, dims)
    values = random.normal(size=sizes)
    if image.startswith("complex"):
        values = values + 1j * random.normal(size=sizes)
    shapes = [(5, 40), (1, 40), (5, 1)][:dims]
    found = [random.uniform(-3, size + 2, shape) for size, shape in zip(sizes, shapes, strict=True)]
    for one, size in zip(found, sizes, strict=True):
        one.flat[:4] = [0, size - 1, -1, 7.3 * size]
        one.flat[4] = np.round(one.flat[4])
    return jnp.asarray(values, image), [
        jnp.asarray(np.round(one) if coordinates == "int32" else one, coordinates) for one in found
    ]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", JAX_MODES)
@pytest.mark.parametrize("cval", [0.0, -2.5])
def test_values_and_gradients(dims, mode, cval, x64):
    """Of both operands, and a derivative of the gradients."""
    image, coordinates = example(dims, seed=dims)
    weights = jnp.sin(jnp.arange(200.0)).reshape(5, 40)

    def loss(image, coordinates):
        return jnp.sum(weights * jnp.sin(map_coordinates(image, coordinates, 1, mode, cval)))

    def slope(image, coordinates):
        gradients = jax.grad(loss, argnums=(0, 1))(image, coordinates)
        return sum(jnp.sum(jnp.cos(one)) for one in jax.tree.leaves(gradients))

    def everything():
        return [
            map_coordinates(image, coordinates, order=1, mode=mode, cval=cval),
            *jax.tree.leaves(jax.grad(loss, argnums=(0, 1))(image, coordinates)),
            *jax.tree.leaves(jax.grad(slope, argnums=(0, 1))(image, coordinates)),
        ]

    expected = everything()
    with jax_dcn.patch("jax") as patch:
        assert patch.replaced == (NAME,)
        assert uses_kernels(image, coordinates, 1, mode, cval)
        found = everything()
        assert patch.left == ()
    assert not uses_kernels(image, coordinates, 1, mode, cval)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("coordinates", ["float32", "float64", "int32"])
@pytest.mark.parametrize("image", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_types(image, coordinates, x64):
    arguments = *example(2, 0, image, coordinates), 1, "reflect"
    expected = map_coordinates(*arguments)
    with jax_dcn.patch("jax"):
        assert uses_kernels(*arguments)
        found = map_coordinates(*arguments)
    assert found.dtype == expected.dtype
    wide, types = (
        "complex128" if "complex" in image else "float64",
        (image, "float32" if "32" in coordinates else image),
    )
    tolerance = 16 * max(jnp.finfo(one).eps for one in types)
    assert_allclose(found.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)


def test_vmap_nan_and_numpy():
    image, (y, x) = example(2, 1, "float32", "float32")
    y = y.at[1, 2].set(jnp.nan)
    calls = [
        lambda: jax.vmap(lambda row: map_coordinates(image, [row, x[0]], 1))(y),
        lambda: map_coordinates(np.asarray(image), np.stack([y, np.broadcast_to(x, y.shape)]), 1, cval=np.float32(1)),
        lambda: map_coordinates(image, [1.5, 2], order=1, mode="nearest"),
    ]
    expected = [call() for call in calls]
    with jax_dcn.patch("jax"):
        for call, like in zip(calls, expected, strict=True):
            assert_allclose(call(), like, rtol=1e-5, atol=1e-5)


IMAGE, POINTS = np.arange(12.0, dtype="float32").reshape(3, 4), [np.array([0.5, 1.2], "float32")] * 2
FOUR_AXES = np.ones((2, 2, 2, 2), "float32")
LEFT = {
    "integers": ("an input of int32", IMAGE.astype("int32"), POINTS, 1),
    "bool": ("an input of bool", IMAGE > 3, POINTS, 1),
    "four axes": ("an input of 4 axes", FOUR_AXES, [POINTS[0]] * 4, 1),
    "no axes": ("an input of 0 axes", np.float32(1), [], 1),
    "16 bits": ("coordinates of bfloat16", IMAGE, [jnp.asarray(one, "bfloat16") for one in POINTS], 1),
    "complex coordinates": ("coordinates of complex64", IMAGE, [one.astype("complex64") for one in POINTS], 1),
    "order 0": ("an order other", IMAGE, POINTS, 0),
    "order 2": ("an order other", IMAGE, POINTS, 2),
    "order of an array": ("an order other", IMAGE, POINTS, np.array(1)),
    "mode": ("an order other", IMAGE, POINTS, 1, "grid-wrap"),
    "cval": ("coordinates or a cval", IMAGE, POINTS, 1, "constant", "a"),
    "generator": ("coordinates or a cval", IMAGE, (one for one in POINTS), 1),
    "too few": ("an input of 2 axes, 1 coordinates", IMAGE, POINTS[:1], 1),
    "shapes": ("arrays that do not", IMAGE, [np.ones(2, "float32"), np.ones(3, "float32")], 1),
    "text": ("arrays that do not", "a", POINTS, 1),
    "no pixels": ("an input of 2 axes", IMAGE[:0], POINTS, 1, "nearest"),
}


def outcome(arguments):
    try:
        return map_coordinates(*arguments)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_the_original(name):
    """Its results and its errors; and `patch` reports the call."""
    reason, *arguments = LEFT[name]
    expected = outcome(arguments)
    with jax_dcn.patch("jax") as patch:
        found = outcome(arguments)
    (left,) = patch.left
    assert left.startswith(f"{NAME}: {reason}")
    assert type(found) is type(expected)
    assert_array_equal(found, expected, strict=not isinstance(expected, tuple))


def test_strict_promotion():
    arguments = jnp.asarray(IMAGE, "bfloat16"), POINTS, 1
    with jax.numpy_dtype_promotion("strict"), jax_dcn.patch("jax") as patch:
        with pytest.raises(ValueError, match="no available implicit dtype promotion"):
            map_coordinates(*arguments)
        assert len(patch.left) == 1
        assert map_coordinates(IMAGE, POINTS, 1).dtype == jnp.float32
