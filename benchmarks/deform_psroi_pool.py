"""Deformable PS-RoI pooling beside its form in `jax.numpy`, the reference."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.timing import compile_for, interleaved, shown, summary


class Shape(NamedTuple):
    """Maps [images, height, width, features · group²] of pictures `stride` times as large, pooled to BINS x BINS."""

    images: int
    height: int
    width: int
    features: int
    rois: int
    stride: int = 16
    group: int = 1
    classes: int = 1


SHAPES = {
    "P1": Shape(2, 38, 63, 81, rois=300, group=7, classes=81),  # R-FCN, scores
    "P2": Shape(2, 38, 63, 8, rois=300, group=7),  # R-FCN, boxes
    "P3": Shape(2, 38, 63, 256, rois=512),  # Faster R-CNN
    "P4": Shape(2, 200, 336, 256, rois=1000, stride=4),  # feature pyramid
}

BINS = 7
TIMED_POINTS = 4  # sample_per_part
POINTS = (2, 4, 8)  # for which memory is measured
KEYS = ("forward", "forward + backward")
# The reference may hold this much; where it would hold more, both are timed on fewer regions.
MOST_BYTES = 6 * 2**30
SECONDS = 40  # a row: a call of the reference takes seconds


def measure(name, dtype, repeats):
    shape = timed = SHAPES[name]
    memory = {points: {k: held for k, (_, held) in compiled(shape, dtype, points).items()} for points in POINTS}
    while (candidates := compiled(timed, dtype, TIMED_POINTS))["reference forward + backward"][1] > MOST_BYTES:
        timed = timed._replace(rois=timed.rois // 2)
    calls = {key: call for key, (call, _) in candidates.items()}
    check(calls)
    times = interleaved(calls, repeats, SECONDS)
    return {
        "shape": name,
        "dtype": dtype,
        "rois": shape.rois,
        "rois timed": timed.rois,
        "seconds": {key: summary(values) for key, values in times.items()},
        "temporary bytes": memory,
    }


def variants(shape, points):
    """Functions of what `make_operands` returns."""

    def pool(backend, x, rois, offset):
        return jax_dcn.deform_psroi_pool(
            x,
            rois,
            offset,
            output_size=BINS,
            spatial_scale=1 / shape.stride,
            group_size=shape.group,
            sample_per_part=points,
            backend=backend,
        )

    def forward(backend, x, rois, offset, cotangent):
        return pool(backend, x, rois, offset)

    def both(backend, x, rois, offset, cotangent):
        y, pull_back = jax.vjp(lambda x, offset: pool(backend, x, rois, offset), x, offset)
        return y, pull_back(cotangent)

    return {
        "forward": partial(forward, None),
        "reference forward": partial(forward, "reference"),
        "forward + backward": partial(both, None),
        "reference forward + backward": partial(both, "reference"),
    }


def compiled(shape, dtype, points):
    operands = make_operands(shape, dtype)
    return {key: compile_for(function, *operands) for key, function in variants(shape, points).items()}


def make_operands(shape, dtype):
    random = np.random.default_rng(0)

    def normal(*size, dtype=dtype):
        return jnp.asarray(random.normal(size=size), dtype)

    x = normal(shape.images, shape.height, shape.width, shape.features * shape.group**2)
    offset = normal(shape.rois, BINS, BINS, 2 * shape.classes, dtype=jnp.float32)
    return x, make_rois(shape, random), offset, normal(shape.rois, BINS, BINS, shape.features)


def make_rois(shape, random):
    """As of a detector: image after image, of all sizes from 32 to 600 pixels alike on a logarithmic scale."""
    picture = np.array([shape.width, shape.height]) * shape.stride
    size = np.minimum(np.exp(random.uniform(np.log(32), np.log(600), (shape.rois, 2))), picture)
    corner = random.uniform(0, picture - size)
    image = np.arange(shape.rois)[:, None] * shape.images // shape.rois
    return jnp.asarray(np.concatenate([image, corner, corner + size - 1], 1), jnp.float32)


def check(calls):
    """The two are the same function; a wrong one is not worth timing."""
    for key in KEYS:
        for ours, reference in zip(*(jax.tree.leaves(calls[k]()) for k in (key, f"reference {key}")), strict=True):
            expected = np.asarray(reference, np.float32)
            np.testing.assert_allclose(np.asarray(ours, np.float32), expected, atol=0.02 * np.abs(expected).max())


def table(rows):
    points = ", ".join(map(str, POINTS))
    lines = [
        f"How many times faster than the reference, by medians, timed in turns with sample_per_part {TIMED_POINTS};",
        "median (min to max) in ms; temporary memory of the compiled call in MiB, ours and the reference's, with",
        f"sample_per_part {points}. A thread of the CPU kernels holds up to 32 channels of one image besides.",
        "",
        "| shape | type | regions | forward | | forward + backward | | temporary forward | "
        "temporary forward + backward |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        regions = str(row["rois"]) if row["rois timed"] == row["rois"] else f"{row['rois timed']} of {row['rois']}"
        cells = [row["shape"], row["dtype"], regions]
        for key in KEYS:
            ours, reference = row["seconds"][key], row["seconds"][f"reference {key}"]
            cells += [f"**{reference['median'] / ours['median']:.0f}**", f"{shown(ours)} against {shown(reference)}"]
        for key in KEYS:
            ours, reference = (mebibytes(row["temporary bytes"], k) for k in (key, f"reference {key}"))
            cells.append(f"{ours} against {reference}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def mebibytes(temporary, key):
    return ", ".join(f"{temporary[points][key] / 2**20:.0f}" for points in POINTS)
