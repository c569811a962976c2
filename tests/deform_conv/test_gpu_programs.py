"""Programs for a GPU, compiled without one: that XLA takes them, and the memory they would need."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn
from benchmarks.lowering.hlo import collectives
from benchmarks.support import gpu_compiler
from benchmarks.support.gpu_compiler import on_gpu
from jax_dcn._primitive import extension
from tests.helpers.deform_conv.cases import Operands, convolve, explicit_gradients, pull_back
from tests.helpers.operators import custom_calls
from tests.operators.test_memory import (
    MIB,
    attention,
    backward,
    convolution,
    forward,
    hessian_product,
    tangent,
    temporary_bytes,
)

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.slow, pytest.mark.usefixtures("compiler_for_gpus")]


PROGRAMS = {"forward": forward, "step": pull_back} | {
    f"{name}_gradient": lambda *arguments, name=name, **options: getattr(
        explicit_gradients(*arguments, **options), name
    )
    for name in ("x", "offset", "weight")
}


def thorough(parameter):
    return pytest.param(parameter, marks=pytest.mark.thorough)


# A step computes all gradients, so those of one operand alone are compiled less often.
STEPS = [program if program in ("forward", "step") else thorough(program) for program in PROGRAMS]


@pytest.mark.parametrize("dtype, precision", [("bfloat16", None), ("float32", None), ("float32", "highest")])
@pytest.mark.parametrize("program", STEPS)
def test_workspace_is_bounded_at_any_batch_size(program, dtype, precision):
    """A training step holds its operands, its results, and this much besides."""
    with jax.default_matmul_precision(precision):
        sizes = {
            batch: temporary_bytes(PROGRAMS[program], *on_gpu(convolution(batch, (100, 168, 128), dtype, 128)))
            for batch in (1, 64, 1024)
        }
    assert max(sizes.values()) <= 256 * MIB, sizes


@pytest.mark.parametrize("dtype", ["bfloat16", thorough("float32")])
@pytest.mark.parametrize("derivative", [tangent, hessian_product])
def test_other_derivatives_are_bounded(derivative, dtype):
    size = temporary_bytes(derivative, *on_gpu(convolution(64, (100, 168, 128), dtype, 128)))
    assert size <= 256 * MIB


def test_layers_of_one_shape_share_no_array():
    """XLA could start their loops from one array, and copy it."""

    def step(cotangent, operands):
        result, pullback = jax.vjp(lambda operands: convolve(operands._replace(x=convolve(operands))), operands)
        return result, pullback(cotangent)

    cotangent, operands = on_gpu(convolution(256, (64, 64, 64), features=64))
    with jax.default_matmul_precision("highest"):
        held = temporary_bytes(step, cotangent, operands)
    of_first_layer = (operands.x, operands.offset, operands.mask)  # its result, and gradients that are added
    assert held <= sum(4 * struct.size for struct in of_first_layer) + 256 * MIB


@pytest.mark.parametrize("batch, image", [(1, (100, 168, 128)), (8, (64, 64, 64))])
def test_gradients_of_a_sum_compile(batch, image):
    """Their cotangent is constant, so that XLA evaluates more of the program."""
    _, operands = on_gpu(convolution(batch, image, features=image[-1]))
    temporary_bytes(jax.grad(lambda operands: convolve(operands).sum()), operands)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_pooling_holds_no_more_than_the_sums_of_a_gradient(dtype):
    def step(cotangent, x, rois, offset):
        def pool(x, offset):
            return jax_dcn.deform_psroi_pool(x, rois, offset, output_size=7, group_size=1, spatial_scale=1 / 16)

        pooled, pullback = jax.vjp(pool, x, offset)
        return pooled, pullback(cotangent)

    struct = jax.ShapeDtypeStruct
    x, rois = struct((2, 38, 63, 256), dtype), struct((4096, 5), jnp.float32)
    pooled, offset = struct((4096, 7, 7, 256), dtype), struct((4096, 7, 7, 2), jnp.float32)
    assert temporary_bytes(step, *on_gpu((pooled, x, rois, offset))) <= x.size * 4 + MIB


@pytest.mark.parametrize("dtype", ["bfloat16", thorough("float32")])
@pytest.mark.parametrize("derivative", [backward, tangent, hessian_product])
def test_attention_is_bounded_at_any_batch_size(derivative, dtype):
    sizes = {batch: temporary_bytes(derivative, *on_gpu(attention(batch, dtype))) for batch in (1, 64)}
    assert max(sizes.values()) <= 256 * MIB, sizes


@pytest.mark.parametrize("major", [8, 9, 10, 12])
def test_programs_compile_for_compute_capability(major):
    temporary_bytes(pull_back, *on_gpu(convolution(1, (8, 8, 16), "bfloat16", 32), major))


def test_images_and_features_split_over_gpus():
    """The calls accept shards, and the devices exchange only all-reduces of gradients, in float32."""
    mesh = Mesh(np.array(gpu_compiler.gpus(8)).reshape(4, 2), ("data", "model"))
    images, features = P("data"), P(None, None, None, "model")
    specs = Operands(images, images, features, P("model"), images)
    cotangent, operands = convolution(8, (64, 64, 128), "bfloat16", 128)
    cotangent, *operands = (
        struct.update(sharding=NamedSharding(mesh, spec))
        for struct, spec in zip((cotangent, *operands), (P("data", None, None, "model"), *specs), strict=True)
    )
    compiled = jax.jit(pull_back).lower(cotangent, Operands(*operands)).compile()
    assert custom_calls(compiled) == {*extension.ONLY_ON_CUDA, "dcn_sample", "dcn_offset_cotangent"}
    exchanged = collectives(compiled)
    assert {(c.kind, c.dtype) for c in exchanged} == {("all-reduce", "f32")}
    own = [s.sharding.shard_shape(s.shape) for s in operands]
    assert sum(c.bytes for c in exchanged) == 4 * sum(map(math.prod, own))
