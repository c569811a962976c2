"""Export, ahead-of-time compilation, and the compilation cache."""

import dataclasses
import functools
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn
from jax_dcn._primitive import extension
from tests.helpers.aggregation.cases import Attention, Convolution
from tests.helpers.deform_conv.cases import assert_close, cast
from tests.helpers.operators import CONVOLUTION, OPERATORS
from tests.helpers.roi_pool.cases import PSRoIPool, RoIAlign
from tests.helpers.roi_pool.numpy_reference import Align
from tests.helpers.run_exported import with_gradients
from tests.helpers.sampling.cases import Grid
from tests.helpers.sharding import make_mesh
from tests.helpers.slow import slow

PLATFORMS = ("cpu", "cuda", "tpu")
HELPERS = pathlib.Path(__file__).parent / "helpers"
assert_near = functools.partial(assert_close, rtol=1e-4, atol=1e-4)


class Program(NamedTuple):
    """A function of arrays, and its arguments."""

    function: Callable  # it takes `backend` too
    arguments: Callable  # of the batch, height and width
    shapes: tuple[str, ...]  # of the arguments, in the syntax of `jax.export`

    def specs(self, sizes):
        """The shapes of the arguments, where only `sizes` are symbolic."""
        some = self.arguments(2, 3, 4)
        shapes = (re.sub(r"\w+", lambda name: name[0] if name[0] in sizes else "_", shape) for shape in self.shapes)
        return export.symbolic_args_specs(some, tuple(shapes))

    @functools.cache  # noqa: B019, programs are few and stay
    def expected(self, *sizes):
        """(value, gradients) by the reference."""
        by_reference = functools.partial(self.function, backend="reference")
        return jax.jit(with_gradients(by_reference))(*self.arguments(*sizes))


def program(case_of, *shapes):
    """The program of cases that differ in sizes. Where a case has no number of images, they are a leading dimension."""

    def function(*operands, backend=None):
        return case_of(2, 3, 4).with_backend(backend)(*operands)

    def arguments(n, height, width):
        case = case_of(n, height, width)
        has_images = hasattr(case, "batch") or hasattr(case, "images")
        operands = case.operands(**{} if has_images else {"lead": (n,)})
        return tuple(cast([array for array in operands if array is not None], np.float32))

    return Program(function, arguments, shapes)


def align(mode):
    pooling = Align(spatial_scale=0.5, mode=mode)
    case_of = functools.partial(RoIAlign, pooling)
    return program(lambda n, h, w: case_of(image=(h, w), count=n + 3, images=n), IMAGES, "r, ...")


IMAGES, WHOLE, QUERIES = "n, h, w, ...", "...", "n, h, ..."
VOLUMES = OPERATORS["deform_conv3d"].case
PROGRAMS = {
    "deform_conv2d": program(
        lambda n, h, w: dataclasses.replace(CONVOLUTION.case, batch=(n,), image=(h, w)),
        *(IMAGES, IMAGES, WHOLE, WHOLE, IMAGES),
    ),
    "deform_conv3d": program(
        lambda n, d, h: dataclasses.replace(VOLUMES, batch=(n,), image=(d, h, 2)),
        *(IMAGES, IMAGES, WHOLE, WHOLE, IMAGES),
    ),
    "deform_psroi_pool": program(
        lambda n, h, w: PSRoIPool(count=n + 3, images=n, image=(h, w)), IMAGES, "r, ...", "r, ..."
    ),
    **{f"roi_align_{mode}": align(mode) for mode in ("avg", "max")},
    "multi_scale_deformable_attention": program(
        lambda n, queries, _: Attention(queries=queries), "n, ...", QUERIES, QUERIES
    ),
    "dcnv3": program(lambda n, h, w: Convolution(image=(h, w)), IMAGES, IMAGES, IMAGES),
    "grid_sample": program(lambda n, h, w: Grid((h, w), (h, 3), padding_mode="reflection"), IMAGES, QUERIES),
}
convolve, of_convolution, _ = PROGRAMS["deform_conv2d"]
ANOTHER_PROCESS = {  # one of each kind of custom call; the others are thorough
    "deform_conv2d": (),
    "multi_scale_deformable_attention": pytest.mark.slow,
    "grid_sample": pytest.mark.slow,
}


def exported(function, arguments, platforms=PLATFORMS):
    exporter = export.export(jax.jit(function), platforms=platforms, disabled_checks=jax_dcn.export.disabled_checks())
    return exporter(*arguments)


def run(*command):
    """Runs a command in its own process, and returns what it prints."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=name, marks=ANOTHER_PROCESS.get(name, pytest.mark.thorough))
        for name, program in PROGRAMS.items()
    ],
)
def test_run_in_another_process(program, platform, tmp_path):
    """With symbolic sizes, for all platforms at once: the value, its gradients by jax, and exported gradients."""
    specs = program.specs("nhwr")
    (tmp_path / "value").write_bytes(exported(program.function, specs).serialize(vjp_order=1))
    (tmp_path / "gradients").write_bytes(exported(with_gradients(program.function), specs).serialize())
    np.savez(tmp_path / "arguments.npz", *program.arguments(3, 5, 4))
    run(HELPERS / "run_exported.py", tmp_path, platform)
    with np.load(tmp_path / "results.npz") as file:
        assert_near(tuple(file.values()), program.expected(3, 5, 4) * 2)


@pytest.mark.parametrize("name, sizes", [("dcnv3", "nhw"), slow("deform_conv2d", "w"), slow("deform_conv3d", "nhw")])
def test_sizes_some_or_all_of_which_are_symbolic(name, sizes):
    program = PROGRAMS[name]
    artifact = exported(with_gradients(program.function), program.specs(sizes))
    restored = export.deserialize(artifact.serialize())
    actual = [size + (symbol in sizes) for symbol, size in zip("nhw", (2, 3, 4), strict=True)]
    assert_near(restored.call(*program.arguments(*actual)), program.expected(*actual))


@pytest.mark.platforms("cpu")
def test_padding_that_depends_on_the_size():
    """With strides other than 1, SAME depends on the size, which must be a multiple of the strides."""

    def halve(x, offset):
        return jax_dcn.deform_conv2d(x, offset, jnp.ones((3, 3, 1, 1)), strides=2)

    def specs(*heights):
        some = jnp.ones((4, 4, 1)), jnp.ones((2, 2, 18))
        return export.symbolic_args_specs(some, tuple(f"{height}, ..." for height in heights))

    with pytest.raises(ValueError, match=r"padding must be given in ints for an image of size \(h, 4\), got 'SAME'"):
        exported(halve, specs("h", "floordiv(h + 1, 2)"))
    restored = export.deserialize(exported(halve, specs("2*h", "h")).serialize())
    arguments = jnp.ones((6, 4, 1)), jnp.zeros((3, 2, 18))
    assert_near(restored.call(*arguments), halve(*arguments))


def tangent_of(function):
    return lambda *arrays: jax.jvp(function, arrays, arrays)[1]


def calls(platforms):
    """The custom calls in exports of all operators and their derivatives, with a convolution that can be fused."""
    operands = tuple(jnp.ones(shape) for shape in ((1, 3, 3, 32), (1, 3, 3, 18), (3, 3, 32, 8)))
    names = "deform_psroi_pool", "roi_align_max", "dcnv3", "grid_sample"
    programs = [(PROGRAMS[name].function, PROGRAMS[name].arguments(1, 3, 4)) for name in names]
    programs.append((jax_dcn.deform_conv2d, operands))
    programs.append((lambda cost: cost[:, 0] * jax_dcn.linear_sum_assignment(cost), (jnp.ones((3, 4)),)))

    def everything(function):
        return lambda *arrays: (with_gradients(function)(*arrays), tangent_of(function)(*arrays))

    artifacts = [exported(everything(function), arguments, platforms) for function, arguments in programs]
    return {name for artifact in artifacts for name in re.findall(r"@(dcn_\w+)", artifact.mlir_module())}


@pytest.mark.platforms("cpu")
@pytest.mark.slow
def test_kernels_where_there_are_some():
    """Exports from any machine contain the kernels."""
    allowed = {check.is_custom_call() for check in jax_dcn.export.disabled_checks()}
    # Without fast instructions, a CPU takes the im2col path.
    assert calls(PLATFORMS) | {*extension.ONLY_ON_CPU} == allowed


WITHOUT_KERNELS = """
import pathlib, sys, jax, numpy as np
exported = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())
arguments = [np.ones(aval.shape, aval.dtype) for aval in exported.in_avals]
try:
    exported.call(*arguments)
except jax.errors.JaxRuntimeError as error:
    print(error)
import jax_dcn
exported.call(*arguments)
"""


@pytest.mark.platforms("cpu")
@pytest.mark.slow
def test_without_its_kernels(tmp_path):
    """A process that has not imported the package gets an error that names it, and can import it then."""
    (tmp_path / "value").write_bytes(exported(convolve, of_convolution(2, 3, 4)).serialize())
    message = run("-c", WITHOUT_KERNELS, tmp_path / "value")
    assert "No FFI handler registered for dcn_sample on a platform Host" in message


@pytest.mark.platforms("cpu")
def test_over_several_devices():
    mesh, operands = make_mesh(shape=(4,)), of_convolution(4, 3, 4)
    specs = tuple(P("a") if array.ndim == 4 and len(array) == 4 else P() for array in operands)
    placed = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(operands, specs, strict=True)]
    absent = [  # the devices, that is
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh.abstract_mesh, spec))
        for a, spec in zip(operands, specs, strict=True)
    ]
    split = jax.shard_map(with_gradients(convolve), mesh=mesh.abstract_mesh, in_specs=specs, out_specs=(P("a"), *specs))
    restored = export.deserialize(exported(split, absent).serialize())
    assert_near(jax.jit(restored.call)(*placed), with_gradients(convolve)(*operands))
    with pytest.raises(NotImplementedError, match="host_callbacks"):
        exported(convolve, placed, ("cpu",))


def test_compiled_ahead_of_time():
    program = PROGRAMS["deform_psroi_pool"]
    arguments = program.arguments(2, 3, 4)
    compiled = jax.jit(with_gradients(program.function)).lower(*program.specs("")).compile()
    assert_near(compiled(*arguments), program.expected(2, 3, 4))
    assert compiled.memory_analysis().argument_size_in_bytes == sum(a.nbytes for a in arguments)
    assert "flops" in compiled.cost_analysis()


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("without_addresses", [pytest.param(False, marks=pytest.mark.thorough), True])
@pytest.mark.slow
def test_compilation_cache(without_addresses, tmp_path, monkeypatch):
    """A second process finds the programs of the first, and no others."""
    monkeypatch.setenv("JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY", str(without_addresses))
    hits = {"jit": True, "exported": True, "shard_map": True}
    hits |= dict.fromkeys(("split", "split_with_another_padding"), without_addresses)
    first, second = (json.loads(run(HELPERS / "compile_cached.py", tmp_path)) for _ in range(2))
    assert first == dict.fromkeys(hits, False)
    assert second == hits
