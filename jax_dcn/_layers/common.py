"""The base class of all layers, and helpers of several."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer, PrecisionLike

from jax_dcn import _validation
from jax_dcn._primitive.jax_internals import reshape
from jax_dcn._primitive.promotion import sum_dtype

Branch = Callable[..., jax.Array]
LECUN_NORMAL: Initializer = jax.nn.initializers.lecun_normal()
XAVIER_UNIFORM: Initializer = jax.nn.initializers.xavier_uniform()
ZEROS: Initializer = jax.nn.initializers.zeros


def product_of_rows(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any) -> jax.Array:
    """`jax.lax.dot_general` as dense layers call it: of x [..., channels], whose rows are made one dimension.

    If there are several, XLA for CPUs transposes the cotangent for the gradient of the kernel, and in doing so computes
    it again, out of the order of its memory.
    """
    rows = reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    product = jax.lax.dot_general(rows, kernel, (((1,), (0,)), ((), ())), **options)
    return reshape(product, (*x.shape[:-1], kernel.shape[-1]))


@dataclass(frozen=True)
class Sublayer:
    """A layer inside another one. Linen and NNX have a class of each kind, with the same options."""

    kind: Literal["dense", "conv", "layer_norm", "batch_norm"]
    in_features: int
    out_features: int
    options: Mapping[str, Any]


# A tuple stands for a sequence of these layers, with a ReLU between each two.
Sublayers = dict[str, Sublayer | tuple[Sublayer, ...] | None]


class Layer:
    """The base class of all layers. Their options are the fields of dataclasses that inherit from it.

    Args:
      dtype: Dtype of the computation; None infers it from input and parameters. Offsets and masks are predicted in
        float32 (or wider) all the same.
      param_dtype: Dtype of the parameters.
      precision: Precision of the products, see :class:`jax.lax.Precision`.
      backend: None for the kernels of the platform, "reference" for ``jax.numpy``.
    """

    dtype: Dtype | None
    param_dtype: Dtype
    precision: PrecisionLike

    def _check(self, channels: int, name: str = "the channel count of x") -> None:
        """Checks the options of the layer for this many channels, which messages call `name`."""
        raise NotImplementedError

    def _sublayers(self, channels: int) -> Sublayers:
        """The layers inside this one by name, in the order in which NNX initializes them; None for an absent one.

        channels: the number of channels of the input, or of what a pooling layer predicts offsets from.
        """
        raise NotImplementedError

    def _components(self, channels: int, name: str = "x") -> Mapping[str, Any]:
        """The layers that `_sublayers` describes, and the layer's own parameters, by name. `linen` and `nnx` define it.

        name: the argument of the call that has this many channels, for messages.
        """
        raise NotImplementedError

    def _dense(self, in_features: int, out_features: int, **options: Any) -> Sublayer:
        """A dense layer; initialized with zeros unless the options say otherwise."""
        shared = {"param_dtype": self.param_dtype, "precision": self.precision, "kernel_init": ZEROS}
        shared["dot_general"] = product_of_rows
        return Sublayer("dense", in_features, out_features, shared | options)

    def _conv(self, in_features: int, out_features: int, kernel_size: tuple[int, ...], **options: Any) -> Sublayer:
        """A convolution; initialized with zeros unless the options say otherwise."""
        shared = {"param_dtype": self.param_dtype, "precision": self.precision, "kernel_init": ZEROS}
        return Sublayer("conv", in_features, out_features, {**shared, "kernel_size": kernel_size, **options})

    def _widen(self, inputs: jax.Array) -> jax.Array:
        """The inputs of a branch in float32 or wider, because the precision of a 16-bit offset falls as it grows."""
        dtype = inputs.dtype if self.dtype is None else self.dtype
        return jnp.asarray(inputs, sum_dtype(dtype))

    def _check_dtypes_and_functions(self) -> None:
        if self.dtype is not None:
            _validation.dtype("dtype", self.dtype)
        _validation.dtype("param_dtype", self.param_dtype)
        for name in ("kernel_init", "bias_init", "promote_dtype"):
            if hasattr(self, name):
                _validation.function(name, getattr(self, name))


class OffsetLayer(Layer):
    """The base class of layers that can return offsets and masks.

    Args:
      return_offsets: Whether a call returns ``(y, offset, mask)``.
    """

    return_offsets: bool

    def _result(self, y: jax.Array, offset: Any, mask: Any, return_offsets: bool | None) -> Any:
        if return_offsets is None:
            return_offsets = self.return_offsets
        return (y, offset, mask) if return_offsets else y


class BranchLayer(OffsetLayer):
    """The base class of layers with one branch, which predicts offsets and, if `modulated`, masks."""

    modulated: bool
    mask_scale: float

    def _branch_features(self, samples: int, dims: int = 2) -> int:
        """The output channels of the branch: `dims` coordinates and, if modulated, a mask logit for each sample."""
        return (dims + 1 if self.modulated else dims) * samples

    def _offset_and_mask(self, raw: jax.Array, dims: int = 2) -> tuple[jax.Array, jax.Array | None]:
        """Splits the output of the branch, which has first all coordinates, then all logits."""
        samples = raw.shape[-1] // self._branch_features(1, dims)
        offset, logits = jnp.split(raw, [dims * samples], axis=-1)
        return offset, self.mask_scale * jax.nn.sigmoid(logits) if self.modulated else None

    def _check_branch(self, name: str, branch: Branch | None, mask: jax.Array | None) -> Branch:
        """The branch, which must exist in a call without an offset."""
        if mask is not None:
            raise ValueError("mask was given without an offset: give both, or neither to have both predicted")
        if branch is None:
            raise ValueError(f"offset must be given to a layer whose {name} is None")
        return branch


def check_offset_channels(offset: jax.Array, channels: int, owners: str, dims: int = 2) -> None:
    if jnp.shape(offset)[-1:] != (channels,):
        count = ("one", "two", "three")[dims - 1]
        raise ValueError(
            f"offset must have {channels} channels, {count} for each {owners}, got shape {jnp.shape(offset)}"
        )


def check_channels(name: str, channels: int, **groups: int) -> None:
    """Checks a channel count and that each of the named group counts divides it."""
    _validation.positive(name, channels)
    for group_name, count in groups.items():
        if channels % _validation.positive(group_name, count):
            raise ValueError(f"{name} must be a multiple of {group_name}={count}, got {channels}")


def channels_of(x: jax.Array, dims: int = 2) -> int:
    x = _validation.array("x", x)
    if jnp.ndim(x) <= dims:
        axes = ", ".join(("depth", "height", "width")[-dims:])
        raise ValueError(f"x must have the shape [..., {axes}, channels], got {list(jnp.shape(x))}")
    return int(jnp.shape(x)[-1])
