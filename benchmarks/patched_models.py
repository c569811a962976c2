"""`python -m benchmarks.patched_models`: public programs before and after one line, `jax_dcn.patch(...)`.

Each program is compiled without and with the patch, and both take turns. Programs that are not installed are left out
by name. `pip install keras augmax dm-pix jax-cfd scico optax zeromodels` installs them; the sampling of those that are
not on PyPI is written anew here, at the sizes that they use.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import Call
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import digits, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support import memory
from benchmarks.support.machine import load, machine

PASSES = ("forward", "with gradients")
NOTE = (
    "Float32. With gradients: of the mean of the squares of the result, in all arrays that the program takes. "
    "Milliseconds: the median of calls that take turns, with the smallest and the largest. MiB: temporary arrays and "
    "results in XLA's plan. Difference: the norm of that of the results, relative to their norm."
)


class Program(NamedTuple):
    library: str  # which `jax_dcn.patch` takes
    distributions: tuple[str, ...]  # whose versions are printed
    make: Callable[[], tuple[Callable[..., jax.Array], list[jax.Array]]]  # a function and its arrays


def random(*shape: int, low: float = 0.0, high: float = 1.0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).uniform(low, high, shape), "float32")


def keras_affine():
    from keras import ops

    angles = jnp.linspace(-0.3, 0.3, 8)
    zeros = jnp.zeros_like(angles)
    rows = [jnp.cos(angles), -jnp.sin(angles), zeros + 20, jnp.sin(angles), jnp.cos(angles), zeros - 9, zeros, zeros]
    return ops.image.affine_transform, [random(8, 256, 256, 3), jnp.stack(rows, 1)]


def keras_perspective():
    from keras import ops

    corners = jnp.array([[0.0, 0], [255, 0], [0, 255], [255, 255]])
    moved = corners + random(8, 4, 2, low=-25, high=25)
    return ops.image.perspective_transform, [random(8, 256, 256, 3), jnp.broadcast_to(corners, moved.shape), moved]


def augmax_warp():
    import augmax

    chain = augmax.Chain(augmax.Warp(strength=5, coarseness=32), augmax.Rotate(30))
    keys = jax.random.split(jax.random.key(0), 8)
    return lambda images: jax.vmap(chain)(keys, images), [random(8, 256, 256, 3)]


def dm_pix_rotate():
    import dm_pix

    return jax.vmap(lambda image: dm_pix.rotate(image, 0.3, order=1)), [random(8, 256, 256, 3)]


def jax_cfd_advection():
    import jax_cfd.base as cfd

    grid = cfd.grids.Grid((1024, 1024), domain=((0, 1.0), (0, 1.0)))
    periodic = cfd.boundaries.periodic_boundary_conditions(2)

    def step(*fields):
        moved, *flow = (
            cfd.grids.GridVariable(cfd.grids.GridArray(field, (0.5, 0.5), grid), periodic) for field in fields
        )
        return cfd.advection.advect_step_semilagrangian(moved, flow, 1e-3).data

    return step, [random(1024, 1024), random(1024, 1024, low=-3, high=3), random(1024, 1024, low=-2, high=2)]


def scico_rotation():
    from jax.scipy.spatial.transform import Rotation
    from scico.linop.xray import rotate_volume

    return lambda volume, angles: rotate_volume(volume, Rotation.from_euler("XYZ", angles)), [
        random(128, 128, 128),
        jnp.array([0.1, -0.2, 0.3]),
    ]


def scico_symmetry():
    from scico.linop.xray.symcone import AxiallySymmetricVolume

    return AxiallySymmetricVolume((192, 193)).__call__, [random(192, 193)]


def optax_assignment():
    from optax.assignment import hungarian_algorithm

    costs = random(16, 300, 40)
    return lambda scale: jnp.float32(jnp.stack(jax.vmap(hungarian_algorithm)(costs * scale))), [jnp.ones(())]


def zeromodels_sam3():
    from zeromodels.models.sam3.sam3_layers import SAM3GeometryEncoder

    corners = random(1, 16, 2, high=30)
    boxes = jnp.concatenate([corners, corners + random(1, 16, 2, low=5, high=40)], -1)
    layer = SimpleNamespace(roi_size=7)
    return partial(SAM3GeometryEncoder._roi_align, layer), [random(1, 72, 72, 256), boxes]


def zeromodels_encoder():
    from zeromodels.models.rt_detr.rt_detr_layers import ms_deform_attn_core

    shapes = [(80, 80), (40, 40), (20, 20)]
    value, locations = random(1, 8, 32, 8400), random(1, 300, 8, 3, 4, 2)
    return lambda *arrays: ms_deform_attn_core(arrays[0], shapes, *arrays[1:]), [
        value,
        locations,
        random(1, 300, 8, 12),
    ]


def tapnet_samples():
    """Features of tracked points in a video: `map_coordinates_3d` of tapnet's model utilities, written anew."""

    def sample(features, points):
        of_channel = partial(jax.scipy.ndimage.map_coordinates, order=1, mode="nearest")
        return jax.vmap(of_channel, in_axes=(-1, None), out_axes=-1)(features, points.T)

    return sample, [random(24, 64, 64, 128), random(512, 3, high=64)]


def raft_lookups():
    """A lookup of RAFT's correlations in four levels, with jax-raft's sampling, written anew."""

    def look_up(coordinates, *pyramid):
        steps = jnp.arange(-4.0, 5)
        window = jnp.stack(jnp.meshgrid(steps, steps, indexing="ij"))
        found = []
        for level, volume in enumerate(pyramid):
            at = coordinates[:, :, None, None] / 2**level + window[:, None]
            sample = partial(jax.scipy.ndimage.map_coordinates, order=1, mode="constant")
            found.append(jax.vmap(sample, in_axes=(0, 1))(volume, at))
        return jnp.stack(found)

    rows, columns = 46, 62
    pyramid = [random(rows * columns, rows >> level, columns >> level) for level in range(4)]
    return look_up, [random(2, rows * columns, high=45), *pyramid]


PROGRAMS = {
    "keras affine_transform, 8 x 256 x 256 x 3": Program("jax", ("keras",), keras_affine),
    "keras perspective_transform, 8 x 256 x 256 x 3": Program("jax", ("keras",), keras_perspective),
    "augmax Warp and Rotate, 8 x 256 x 256 x 3": Program("jax", ("augmax",), augmax_warp),
    "dm_pix rotate, 8 x 256 x 256 x 3": Program("dm_pix", ("dm-pix",), dm_pix_rotate),
    "jax-cfd semi-Lagrangian step, 1024 x 1024": Program("jax", ("jax-cfd",), jax_cfd_advection),
    "scico rotate_volume, 128 x 128 x 128": Program("jax", ("scico",), scico_rotation),
    "scico AxiallySymmetricVolume, 192 x 193": Program("jax", ("scico",), scico_symmetry),
    "optax hungarian_algorithm, 16 x 300 x 40": Program("optax", ("optax",), optax_assignment),
    "zeromodels SAM3's RoIAlign, 16 boxes": Program("zeromodels", ("zeromodels",), zeromodels_sam3),
    "zeromodels RT-DETR's attention, 300 queries": Program("zeromodels", ("zeromodels",), zeromodels_encoder),
    "tapnet (written anew), 512 points of 24 x 64 x 64 x 128": Program("jax", (), tapnet_samples),
    "RAFT's lookup (written anew), 368 x 496": Program("jax", (), raft_lookups),
}


def compiled(function: Callable[..., jax.Array], arrays: list[jax.Array]) -> dict[str, Any]:
    def loss(arrays):
        return jnp.mean(jnp.square(function(*arrays)))

    forms = {"forward": lambda arrays: [function(*arrays)], "with gradients": jax.grad(loss)}
    return {pass_: jax.jit(form).lower(arrays).compile() for pass_, form in forms.items()}


def measure(name: str, program: Program, repeats: int) -> list[list[str]]:
    """A row for each pass."""
    function, arrays = program.make()
    before = compiled(function, arrays)
    with jax_dcn.patch(program.library) as patch:
        after = compiled(function, arrays)
    rows = []
    for pass_ in PASSES:
        executables = {"before": before[pass_], "after": after[pass_]}
        results = [jnp.concatenate([jnp.ravel(one) for one in run(arrays)]) for run in executables.values()]
        difference = jnp.linalg.norm(results[1] - results[0]) / jnp.maximum(jnp.linalg.norm(results[0]), 1e-30)
        calls = {key: Call(partial(run, arrays)) for key, run in executables.items()}
        seconds = interleaved(calls, repeats)
        times = [[one[kind] * 1e3 for kind in ("median", "min", "max")] for one in seconds.values()]
        rows.append(
            [
                name,
                pass_,
                *("{} ({} to {})".format(*map(digits, one)) for one in times),
                f"**{digits(times[0][0] / times[1][0])}**",
                *(digits(memory.of_compiled(run) / 2**20) for run in executables.values()),
                f"{float(difference):.1e}",
                "; ".join(patch.left) or "-",
            ]
        )
    return rows


def main() -> None:
    add = parser("patched_models", __doc__)
    add.add_argument("--only", nargs="+", choices=PROGRAMS, default=[*PROGRAMS], metavar="PROGRAM")
    add.add_argument("--repeats", type=int, default=15)
    arguments = add.parse_args()
    os.environ.setdefault("KERAS_BACKEND", "jax")
    before, versions, absent = load(), {}, []
    head = ["program", "pass", "before, ms", "after, ms", "before / after", "before, MiB", "after, MiB", "difference"]
    rows = [[*head, "left to the original"]]
    for name in arguments.only:
        program = PROGRAMS[name]
        try:
            rows += measure(name, program, arguments.repeats)
        except ImportError as error:
            absent.append(f"{name} ({error})")
        for one in program.distributions:
            try:
                versions[one] = version(one)
            except PackageNotFoundError:
                versions[one] = None
    about = machine() | versions | {"load average before": before, "load average after": load()}
    sections = [facts(about), paragraph(NOTE), markdown(rows)]
    if absent:
        sections.append(paragraph(f"Left out: {', '.join(absent)}."))
    write_page(
        arguments.out, f"{jax.default_backend()}-patched-models", "Programs before and after jax_dcn.patch", sections
    )


if __name__ == "__main__":
    main()
