"""The cases that tests share, operands for them, and the results of the numpy reference."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import hypothesis
import jax
import numpy as np
from hypothesis import strategies as st

import jax_dcn
from tests.helpers import case
from tests.helpers.deform_conv import numpy_reference
from tests.helpers.deform_conv.numpy_reference import Convolution

BACKENDS = (None, "reference")


class Operands(NamedTuple):
    """The array arguments of a convolution in its own order, or one gradient for each of them."""

    x: Any
    offset: Any
    weight: Any
    bias: Any = None
    mask: Any = None


def to_channels_first(operands):
    """Operands (or their gradients) in the layout of data_format="NCHW" and the like; None stays None."""
    x, offset, weight, bias, mask = operands
    x, offset, mask = (None if a is None else np.moveaxis(a, -1, 1 - weight.ndim) for a in (x, offset, mask))
    return Operands(x, offset, np.moveaxis(weight, (-1, -2), (0, 1)), bias, mask)


def to_channels_last(operands):
    """The inverse of `to_channels_first`."""
    x, offset, weight, bias, mask = operands
    x, offset, mask = (None if a is None else np.moveaxis(a, 1 - weight.ndim, -1) for a in (x, offset, mask))
    return Operands(x, offset, np.moveaxis(weight, (0, 1), (-1, -2)), bias, mask)


def cast(operands, dtype):
    return jax.tree.map(lambda array: np.asarray(array, dtype), operands)


@dataclasses.dataclass(frozen=True)
class Case(case.Case):
    """One static configuration of deform_conv1d, 2d or 3d."""

    name: str
    image: tuple[int, ...]
    cin: int
    cout: int
    kernel: tuple[int, ...]
    offset_groups: int = 1
    batch: tuple[int, ...] = (2,)
    convolution: Convolution = Convolution()  # noqa: RUF009, it is frozen

    def __str__(self):
        return self.name

    function = property(lambda self: f"deform_conv{len(self.kernel)}d")
    keywords = property(lambda self: dataclasses.asdict(self.convolution))
    output_size = property(lambda self: self.convolution.output_size(self.image, self.kernel))

    def problems(self):
        """With and without a mask, with small offsets and large ones, on pixels and between them."""
        variants = (2.0, 64, True), (0.5, 1, False), (20.0, 2, True)
        return [(self.cotangent(seed), self.operands(seed, *options)) for seed, options in enumerate(variants)]

    def operands(self, seed=0, offset_scale=2.0, grid=64, masked=True, lead=()):
        """Random float64 operands. Offsets are multiples of 1/grid: exact in float32, some on pixels."""
        rng = np.random.default_rng(seed)
        batch = (*lead, *self.batch)
        samples = (*batch, *self.output_size, self.offset_groups * math.prod(self.kernel))
        return Operands(
            rng.normal(size=(*batch, *self.image, self.cin)),
            np.round(rng.normal(size=(*samples[:-1], len(self.kernel) * samples[-1])) * offset_scale * grid) / grid,
            rng.normal(size=(*self.kernel, self.cin // self.convolution.feature_group_count, self.cout)),
            rng.normal(size=self.cout),
            rng.uniform(0, 2, samples) if masked else None,
        )

    def smooth_operands(self, seed=0):
        """Operands whose samples all lie at least 0.2 pixels away from non-differentiable points."""
        operands = self.operands(seed)
        rng = np.random.default_rng(seed + 1)
        whole = rng.integers(-2, 2, operands.offset.shape)
        return operands._replace(offset=whole + rng.uniform(0.2, 0.8, whole.shape))

    def cotangent(self, seed=0, lead=()):
        return np.random.default_rng(seed + 2).normal(size=(*lead, *self.batch, *self.output_size, self.cout))

    def expected(self, cotangent, operands):
        """(y, gradients) of the numpy reference, with all batch dimensions folded into one."""

        def fold(array):
            if array is not None:
                return array.reshape(math.prod(self.batch), *array.shape[len(self.batch) :])

        batched = {name: fold(getattr(operands, name)) for name in ("x", "offset", "mask")}
        arguments = operands._asdict() | batched
        y, gradients = numpy_reference.deform_conv(fold(cotangent), **arguments, convolution=self.convolution)
        for name, array in operands._asdict().items():
            gradients[name] = None if array is None else gradients[name].reshape(array.shape)
        return y.reshape(*self.batch, *y.shape[1:]), Operands(**gradients)


class GridOperands(NamedTuple):
    """The array arguments of a convolution without offsets, or one gradient for each of them."""

    x: Any
    weight: Any
    bias: Any = None


@dataclasses.dataclass(frozen=True)
class GridCase:
    """A case without offset and mask, which is an ordinary convolution."""

    case: Case

    def __str__(self):
        return self.case.name

    def with_backend(self, backend=None, **options):
        function = self.case.with_backend(backend, **options)
        return lambda x, weight, bias=None: function(x, None, weight, bias)

    def operands(self, seed=0, lead=()):
        x, _, weight, bias, _ = self.case.operands(seed, lead=lead)
        return GridOperands(x, weight, bias)

    def cotangent(self, seed=0, lead=()):
        return self.case.cotangent(seed, lead)

    def problems(self):
        return [(self.cotangent(), self.operands())]

    def expected(self, cotangent, operands):
        """(y, gradients) of the numpy reference, with offsets of zero."""
        zeros = np.zeros_like(self.case.operands().offset)
        y, gradients = self.case.expected(cotangent, Operands(operands.x, zeros, *operands[1:]))
        return y, GridOperands(gradients.x, gradients.weight, gradients.bias)


CASES = {
    case.name: case
    for case in (
        Case("plain", (5, 6), 4, 3, (3, 3), convolution=Convolution(padding="SAME")),
        Case("valid", (5, 4), 2, 3, (3, 2), batch=(3,), convolution=Convolution(padding="VALID")),
        Case("strided_dilated", (8, 7), 3, 4, (3, 2), convolution=Convolution((2, 1), ((2, 0), (0, 1)), (2, 1))),
        Case("even_kernel_same_strided", (7, 6), 2, 3, (2, 4), 2, convolution=Convolution((2, 3), "SAME")),
        Case("one_by_one", (4, 5), 6, 5, (1, 1), 3, convolution=Convolution((1, 2), 1)),
        Case("4_groups_6_offset_groups", (3, 5), 12, 8, (2, 2), 6, convolution=Convolution((1, 1), (1, 0), (1, 1), 4)),
        Case("6_groups_4_offset_groups", (3, 4), 12, 6, (2, 1), 4, convolution=Convolution((1, 1), "SAME", (1, 1), 6)),
        Case("depthwise", (4, 4), 5, 10, (3, 3), convolution=Convolution((1, 1), "SAME", (1, 1), 5)),
        Case("depthwise_own_offsets", (4, 3), 4, 4, (3, 1), 4, convolution=Convolution((1, 1), "SAME", (1, 1), 4)),
        Case("circular", (4, 5), 4, 3, (3, 3), 2, convolution=Convolution(padding="CIRCULAR")),
        Case("circular_beyond_the_image", (3, 4), 2, 2, (2, 5), convolution=Convolution((2, 1), "CIRCULAR", (3, 2))),
        Case("circular_one_column", (3, 1), 2, 2, (3, 2), convolution=Convolution(padding="CIRCULAR")),
        Case("one_row", (1, 7), 2, 2, (3, 3), convolution=Convolution(padding="SAME")),
        Case("one_pixel", (1, 1), 2, 3, (3, 3), 2, convolution=Convolution(padding=1)),
        Case("many_channels", (3, 4), 46, 19, (1, 3), 2, convolution=Convolution(padding="SAME")),
        Case("unbatched", (4, 5), 3, 2, (3, 3), batch=(), convolution=Convolution(padding=((1, 2), (0, 1)))),
        Case("two_batch_dimensions", (3, 4), 4, 2, (2, 2), 2, batch=(2, 3), convolution=Convolution(padding="SAME")),
        Case("empty_batch", (4, 5), 3, 2, (3, 3), batch=(0,), convolution=Convolution(padding="SAME")),
        Case("empty_output", (2, 5), 3, 2, (3, 3), convolution=Convolution(padding="VALID")),
        Case("signal", (9,), 12, 6, (3,), 4, convolution=Convolution(2, ((1, 2),), 2, 3)),
        Case("circular_signal", (5,), 2, 3, (4,), batch=(), convolution=Convolution(padding="CIRCULAR")),
        Case("volume", (3, 4, 3), 4, 6, (2, 1, 3), 2, convolution=Convolution((1, 2, 1), "SAME", (2, 1, 1), 2)),
        Case("circular_volume", (2, 3, 4), 2, 2, (1, 2, 3), batch=(), convolution=Convolution(padding="CIRCULAR")),
        Case(
            "groups_of_volumes", (2, 2, 3), 6, 4, (2, 2, 1), 3, (2, 2), Convolution(1, ((1, 0), (0, 1), (1, 1)), 1, 2)
        ),
        Case("empty_volume", (2, 2, 5), 3, 2, (3, 1, 3), convolution=Convolution(padding="VALID")),
    )
}


@st.composite
def cases(draw):
    """Problems of any shape and options. Their positions are exact in float32."""

    def pair(least, most):
        return draw(st.tuples(st.integers(least, most), st.integers(least, most)))

    groups, offset_groups, kernel = draw(st.integers(1, 3)), draw(st.integers(1, 3)), pair(1, 3)
    explicit = st.tuples(*[st.tuples(st.integers(-1, 3), st.integers(-1, 3))] * 2)
    padding = draw(st.sampled_from(["SAME", "SAME_LOWER", "VALID", "CIRCULAR"]) | explicit)
    convolution = Convolution(pair(1, 3), padding, pair(1, 2), groups)
    case = Case(
        "drawn",
        pair(1, 7),
        math.lcm(groups, offset_groups) * draw(st.sampled_from([1, 3, 8, 16])),
        groups * draw(st.sampled_from([1, 2, 8, 17])),
        kernel,
        offset_groups,
        draw(st.sampled_from([(), (2,), (2, 1)])),
        convolution,
    )
    hypothesis.assume(min(case.output_size) > 0)
    return case


def convolve(operands, **keywords):
    return getattr(jax_dcn, f"deform_conv{operands.weight.ndim - 2}d")(*operands, **keywords)


def pull_back(cotangent, operands, **keywords):
    """(y, gradients with respect to all operands that are not None)."""
    y, pullback = jax.vjp(functools.partial(convolve, **keywords), operands)
    return y, *pullback(cotangent)


def explicit_gradients(cotangent, operands, **keywords):
    """The results of the functions that compute one gradient each; the bias has none."""
    x, offset, weight, _, mask = operands
    arguments = cotangent, x, offset, weight, mask
    return Operands(
        jax_dcn.deform_conv2d_input_grad(*arguments, **keywords),
        jax_dcn.deform_conv2d_offset_grad(*arguments, **keywords),
        jax_dcn.deform_conv2d_weight_grad(*arguments, **keywords),
        mask=None if mask is None else jax_dcn.deform_conv2d_mask_grad(*arguments, **keywords),
    )


def assert_close(actual, expected, rtol=1e-10, atol=1e-10):
    """Asserts that two trees of arrays are equal within the tolerance; NaNs are equal."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(e, np.float64), rtol, atol)


def assert_near(actual, expected, tolerance, least=0):
    """Asserts the same within a part of the largest finite value of each array, or of `least`."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        e = np.asarray(e, np.float64)
        assert_close(a, e, 0, tolerance * np.abs(e[np.isfinite(e)]).max(initial=least))
