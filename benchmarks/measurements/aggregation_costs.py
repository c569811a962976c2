"""Estimates of what the CUDA kernels of the aggregation cost, from their machine code and from executed PTX.

They are clocks of an SM per thousand taps of all queries and heads, counted as those per K step of `kernel_costs`:
`issue` of machine instructions and `L1` of wavefronts, for all instructions of a kernel. Shuffles, which are no
wavefronts here, are given beside them.

A tap has four corners, and a pixel of a head is rarely longer than the 128 bytes of a wavefront. So 4,000 wavefronts
are the least that a thousand taps take, unless neighbouring queries sample the same pixels.
"""

from functools import partial

import jax

import jax_dcn
from benchmarks.counting import device_code
from benchmarks.counting.devices import DEVICES, occupancy
from benchmarks.lowering import executed_ptx
from benchmarks.measurements import kernel_costs
from benchmarks.measurements.aggregation import ATTENTION, DCNV3

DTYPE = "bfloat16"
KERNELS = {
    "AggregateKernel": "dcn_aggregate",
    "TapCotangentsKernel": "dcn_aggregation_tap_cotangents",
    "PartitionKernel": "dcn_aggregation_value_cotangent",
    "SortBinsKernel": "dcn_aggregation_value_cotangent",
    "GatherKernel": "dcn_aggregation_value_cotangent",
}
SOURCES = ("aggregation", "aggregation_value")
SHAPES = {"encoder": ATTENTION.shapes["M1"], "decoder": ATTENTION.shapes["M2"], "dcnv3": DCNV3.shapes["W1"]}


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
    if isinstance(shape, type(SHAPES["dcnv3"])):
        operator, function = DCNV3, jax_dcn.dcnv3
    else:
        operator, function = ATTENTION, jax_dcn.multi_scale_deformable_attention
    problem = operator.problem(shape, dtype)

    def run(operands, cotangent):
        result, pull_back = jax.vjp(partial(function, **problem.options), *operands)
        return result, pull_back(cotangent)

    operands = tuple(problem.operands.values())
    return executed_ptx.launches(run, operands, problem.cotangent, architecture=kernel_costs.PTX)


def functions(architecture):
    """The machine code of the kernels."""
    found = {}
    for source in SOURCES:
        ptx = device_code.compile_ptx(executed_ptx.KERNELS[source], kernel_costs.PTX)
        found |= device_code.assemble(ptx, architecture, list(KERNELS))
    return found


def cost(function, record, device, name, shape):
    """A launch on a device. All thread blocks are executed, so clocks and bytes are those of the whole launch."""
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
