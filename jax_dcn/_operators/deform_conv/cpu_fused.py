"""The fused path for CPUs: samples are multiplied while they are in the caches, and the columns are never stored.

`paths` decides which calls take it. docs/memory.md says how results for NaN and infinite operands differ from those of
the plain path.
"""

import math
import os
from collections.abc import Collection, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv import custom_calls
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.custom_calls import Sampling
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._primitive import extension
from jax_dcn._types import Shaped

INSTRUCTIONS: str = extension.modules["cpu"].fused_instructions
DTYPES = tuple(jnp.dtype(name) for name in ("float32", "bfloat16", "float16"))
PADDING: int = extension.modules["cpu"].fused_padding  # features of a group are padded to its multiples
MIN_GROUP_CHANNELS = 8  # of a feature group: with fewer, most lanes of a vector are empty
MIN_PIXELS = 1024  # of the result, all images together
MIN_TASKS: int = extension.modules["cpu"].fused_min_tasks  # of a gradient, which run at a time
MAX_SERIES = 512  # taps times offset groups, whose samples of a tile each thread locates at once
SUM_BYTES = 4


def forward(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> jax.Array:
    features = weight.shape[-1]
    return custom_calls.cpu_fused_forward(
        x,
        Sampling(offset, mask, (0, *origin), weight.shape[:2], spec),
        weight,
        jnp.zeros(features, jnp.float32) if bias is None else bias.astype(jnp.float32),
        feature_group_count=spec.feature_group_count,
        workspace_size=_forward_workspace(weight, spec),
        dtype=spec.dtype,
    )


def cotangents(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    d_y: jax.Array,
    *,
    requested: Sequence[str],
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> dict[str, jax.Array]:
    """Those requested, in the type of sums or of the operand. All arrays have one batch dimension."""
    return custom_calls.cpu_fused_cotangents(
        x,
        Sampling(offset, mask, (0, *origin), weight.shape[:2], spec),
        weight,
        d_y,
        feature_group_count=spec.feature_group_count,
        workspace_size=_cotangents_plan(requested, x, offset, weight, spec)[0],
        requested=requested,
    )


def workspace_bytes(computation: str, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> int:
    """The workspace of the forward, or of the cotangent of the operand of that name."""
    if computation == "forward":
        return _forward_workspace(weight, spec) * SUM_BYTES
    return _cotangents_plan([computation], x, offset, weight, spec)[0] * SUM_BYTES


def obstacles(computation: str, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> Iterator[str]:
    """What keeps a computation from this path."""
    dtype = jnp.dtype(x.dtype)
    if dtype not in DTYPES:
        yield f"the data are {dtype}; the fused kernels take {', '.join(map(str, DTYPES))}"
    if spec.dtype not in (dtype, jnp.float32):
        yield f"the result is {spec.dtype} for {dtype} data; the fused kernels need {dtype} or float32"
    if computation != "forward":
        if spec.dtype != dtype:
            yield f"the result is {spec.dtype} for {dtype} data; the fused gradients need {dtype}"
        if not all(isinstance(size, int) for size in (*x.shape, *offset.shape, *weight.shape)):
            yield "a size is symbolic; the fused gradients need it for their workspace"
    if not _is_ordinary(spec.precision):
        yield f"precision names an algorithm of XLA's products, {spec.precision}"
    if x.shape[-1] == 0 or weight.shape[-1] == 0:
        yield "x has no channels or the result has none"
    if (taps := math.prod(weight.shape[:2])) >= 2**31:
        yield f"weight has {taps} taps; the fused kernels allow {2**31 - 1}"
    pixels = [size for size in x.shape[-3:-1] if isinstance(size, int)]
    if math.prod(pixels) >= 2**31:
        yield f"an image of x has {math.prod(pixels)} pixels; the fused kernels allow {2**31 - 1}"


def why_slow(computation: str, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec) -> str | None:
    """What makes this path slower than the plain one, or None."""
    if INSTRUCTIONS == "portable":
        return _why_portable()
    pixels = [size for size in offset.shape[:-1] if isinstance(size, int)]
    if len(pixels) == 3 and math.prod(pixels) < MIN_PIXELS:
        return f"the result has {math.prod(pixels)} pixels; the fused kernels are fast from {MIN_PIXELS} on"
    groups = spec.feature_group_count
    if groups > 1 and (fewest := min(weight.shape[2], weight.shape[-1] // groups)) < MIN_GROUP_CHANNELS:
        return f"each group has {fewest} channels; the fused kernels are fast from {MIN_GROUP_CHANNELS} on"
    if (series := math.prod(groups_and_taps(offset, weight.shape[:2]))) > MAX_SERIES:
        return f"there are {series} samples for each pixel; the fused kernels are fast up to {MAX_SERIES}"
    if computation != "forward":
        # Gradients that are computed together share the workspace, so that of x may leave room for fewer tasks.
        together = ["x", "offset", "weight"] if computation == "x" else [computation]
        _, tasks = _cotangents_plan(together, x, offset, weight, spec)
        if tasks < MIN_TASKS:
            return f"at most {tasks} of the fused gradient's tasks run at a time; it is fast from {MIN_TASKS} on"
    return None


def _why_portable() -> str:
    if not extension.modules["cpu"].has_x86_kernels:
        return "this build has no kernels for AVX2: the processor or the compiler does not support them"
    if os.environ.get("JAX_DCN_CPU_INSTRUCTIONS") == "portable":
        return "JAX_DCN_CPU_INSTRUCTIONS is portable"
    return "the processor has no AVX2, no FMA or no F16C"


def _forward_workspace(weight: Shaped, spec: Spec) -> int:
    """The elements of the packed weight: FusedForwardWorkspace in lib/deform_conv_fused.h."""
    if weight.dtype != jnp.bfloat16:
        return 0
    kh, kw, group_channels, features = weight.shape
    groups = spec.feature_group_count
    return kh * kw * group_channels * groups * -(-features // groups // PADDING) * PADDING // 2


def _cotangents_plan(
    requested: Collection[str], x: Shaped, offset: Shaped, weight: Shaped, spec: Spec
) -> tuple[int, int]:
    """The elements of the workspace, and how many tasks may run at a time."""
    offset_groups, taps = groups_and_taps(offset, weight.shape[:2])
    size, tasks = extension.modules["cpu"].fused_cotangents_plan(
        dtype=jnp.dtype(x.dtype).name,
        x=x.shape,
        output=offset.shape[1:3],
        taps=taps,
        offset_groups=offset_groups,
        features=weight.shape[-1],
        feature_group_count=spec.feature_group_count,
        x_requested="x" in requested,
        positions_requested="offset" in requested or "mask" in requested,
        weight_requested="weight" in requested,
    )
    return size, tasks


def _is_ordinary(precision: object) -> bool:
    both = precision if isinstance(precision, tuple) else (precision,)
    return all(one is None or isinstance(one, lax.Precision) for one in both)
