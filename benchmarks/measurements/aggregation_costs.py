"""Estimates of what the CUDA kernels of the aggregation cost, from their machine code and from executed PTX.

They are clocks of an SM per thousand taps of all queries and heads, counted as those per K step of `kernel_costs`:
`issue` of machine instructions and `L1` of wavefronts, for all instructions of a kernel. Shuffles, which are no
wavefronts here, are given beside them.

A tap has four corners, and a pixel of a head is rarely longer than the 128 bytes of a wavefront. So 4,000 wavefronts
are the least that a thousand taps take, unless neighbouring queries sample the same pixels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.measurements import kernel_costs
from benchmarks.readers import device_code, executed_ptx
from benchmarks.readers.devices import DEVICES, occupancy

DTYPE = "bfloat16"
KERNELS = {
    "AggregateKernel": "dcn_aggregate",
    "TapCotangentsKernel": "dcn_aggregation_tap_cotangents",
    "PartitionKernel": "dcn_aggregation_value_cotangent",
    "SortBinsKernel": "dcn_aggregation_value_cotangent",
    "GatherKernel": "dcn_aggregation_value_cotangent",
}
SOURCES = ("aggregation", "aggregation_value")


class Attention(NamedTuple):
    """The encoder of Deformable DETR: queries are the pixels of all levels. With `queries`, a decoder."""

    batch: int
    levels: tuple[tuple[int, int], ...]
    heads: int
    channels: int  # of a head
    points: int
    queries: int | None = None

    @property
    def taps(self):
        """Of all queries and heads."""
        queries = self.queries or sum(height * width for height, width in self.levels)
        return self.batch * queries * self.heads * len(self.levels) * self.points

    def problem(self, dtype):
        """(function, its operands)."""
        random = np.random.default_rng(0)
        if self.queries:
            centers = random.random((self.queries, 2))
        else:
            grids = [np.mgrid[:height, :width].reshape(2, -1).T[:, ::-1] for height, width in self.levels]
            centers = np.concatenate(
                [(grid + 0.5) / (width, height) for grid, (height, width) in zip(grids, self.levels, strict=True)]
            )
        taps = (self.batch, len(centers), self.heads, len(self.levels), self.points)
        sizes = np.array([(width, height) for height, width in self.levels])[:, None]
        locations = centers[:, None, None, None] + 2 * random.standard_normal((*taps, 2)) / sizes
        pixels = sum(height * width for height, width in self.levels)
        value = random.standard_normal((self.batch, pixels, self.heads, self.channels))

        def function(*operands):
            return jax_dcn.multi_scale_deformable_attention(*operands, spatial_shapes=self.levels)

        weights = random.random(taps)
        return function, (jnp.asarray(value, dtype), *(jnp.asarray(a, jnp.float32) for a in (locations, weights)))


class Window(NamedTuple):
    """A DCNv3 of 3 x 3 taps."""

    batch: int
    size: tuple[int, int]
    groups: int
    channels: int  # of a group

    @property
    def taps(self):
        return self.batch * self.size[0] * self.size[1] * self.groups * 9

    def problem(self, dtype):
        """(function, its operands)."""
        random = np.random.default_rng(0)
        image = (self.batch, *self.size)
        x = random.standard_normal((*image, self.groups * self.channels))
        offset = random.standard_normal((*image, self.groups * 18))
        mask = random.random((*image, self.groups * 9))

        def function(*operands):
            return jax_dcn.dcnv3(*operands, kernel_size=3, padding=1, groups=self.groups)

        return function, (jnp.asarray(x, dtype), *(jnp.asarray(a, jnp.float32) for a in (offset, mask)))


PYRAMID = ((64, 64), (32, 32), (16, 16), (8, 8))
SHAPES = {
    "encoder": Attention(2, PYRAMID, 8, 32, 4),
    "decoder": Attention(2, PYRAMID, 8, 32, 4, queries=300),
    "dcnv3": Window(2, (56, 56), 4, 32),
}


def measure(shapes=SHAPES, dtype=DTYPE, architectures=tuple(DEVICES)):
    """A row for each kernel, shape and architecture."""
    found = {architecture: functions(architecture) for architecture in architectures}
    for name, shape in shapes.items():
        records = launches(shape, dtype)
        for architecture in architectures:
            for record in records:
                function = found[architecture].get(device_code.linker_name(record["kernel"]))
                if function:
                    yield cost(function, record, DEVICES[architecture], name, shape)


def launches(shape, dtype):
    """The records of the launches of the result and of all gradients."""
    function, operands = shape.problem(dtype)

    def run(*operands):
        result, pull_back = jax.vjp(function, *operands)
        return result, pull_back(jnp.ones_like(result))

    return executed_ptx.launches(run, *operands, architecture=kernel_costs.PTX)


def functions(architecture):
    """The machine code of the kernels."""
    found = {}
    for source in SOURCES:
        ptx = device_code.compile_ptx(executed_ptx.KERNELS[source], kernel_costs.PTX)
        found |= device_code.assemble(ptx, architecture, list(KERNELS))
    return found


def cost(function, record, device, name, shape):
    """A launch on a device. The clocks and bytes are those of the executed thread blocks, which are all."""
    thousands = shape.taps / 1000
    clocks = kernel_costs.sm_clocks(function, record)
    shared = record["static_shared"] + record["dynamic_shared"]
    resident = occupancy(device, function.registers, shared, record["threads"])
    shuffles = sum(line[4] for line in record["lines"] if line[3].startswith("shfl"))
    row = {"shape": name, "architecture": device.architecture, "gpu": device.gpu}
    row |= {"call": KERNELS[function.name.partition("<")[0]], "kernel": function.name, "grid": record["grid"]}
    row |= {"registers": function.registers, "resident warps": resident.warps}
    row["clocks per thousand taps"] = {key: round(count / thousands, 1) for key, count in clocks.items()}
    row["shuffles per thousand taps"] = round(shuffles / thousands, 1)
    row["bytes of the L2 cache per tap"] = round(record["counters"]["l2_bytes"] / shape.taps, 1)
    milliseconds = max(clocks.values()) / device.sms / device.clock * 1e-6
    return row | {"milliseconds": round(milliseconds, 4)}
