"""`python -m benchmarks.aggregation_costs`: what the CUDA kernels of the aggregation are estimated to cost on GPUs.

It takes minutes, and writes benchmarks/results/<date>-aggregation-costs.md. Costs are clocks of an SM per thousand taps
of all queries and heads, counted as those per K step of `kernel_costs`: `issue` of machine instructions, and `L1` of
wavefronts and shuffles, for all instructions of a kernel. Shuffles are also given on their own.
"""

from functools import partial

import jax

import jax_dcn
from benchmarks.counting.device_code import linker_name
from benchmarks.counting.devices import DEVICES
from benchmarks.lowering import executed_ptx
from benchmarks.measurements import kernel_costs
from benchmarks.measurements.aggregation import ATTENTION, DCNV3, Window
from benchmarks.reports.formatting import digits, list_named, markdown
from benchmarks.reports.report import parser, write_page

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
# A tap has four corners, and a pixel of a head is rarely longer than the 128 bytes of a wavefront. So these are the
# fewest wavefronts of a thousand taps, unless neighbouring queries sample the same pixels.
CORNERS = 4000
ABOUT = f"""\
**Nothing was run on a GPU.** The clocks of an SM per thousand taps are counted from machine code and executed PTX,
{DTYPE}: `issue` of instructions, and `L1` of wavefronts and shuffles, which are assumed to share a pipeline. The
larger one bounds the time. A thousand taps read 4,000 corners, which take a wavefront each. Bytes of the L2 cache are
loads that miss a simulated L1 cache, and all stores. Milliseconds are the larger clocks divided among all SMs at the
boost clock.

The last three kernels are the gradient of value: two sort the samples by location, and one gathers. Vectorized atomics
would move 512 bytes per tap for 32 channels: four corners of 32 floats."""
HEAD = ("shape", "GPU", "kernel", "registers", "issue", "L1", "larger / 4,000", "shuffles", "L2 bytes per tap", "ms")


def measure(shapes=SHAPES, architectures=tuple(DEVICES)):
    """A row for each kernel, shape and architecture."""
    found = {
        architecture: {
            name: function
            for source in SOURCES
            for name, function in kernel_costs.assembled(source, architecture, list(KERNELS)).items()
        }
        for architecture in architectures
    }
    for name, shape in shapes.items():
        records = launches(shape)
        for architecture in architectures:
            for record in records:
                if function := found[architecture].get(linker_name(record["kernel"])):
                    yield cost(function, record, DEVICES[architecture], name, shape.taps)


def launches(shape):
    """The records of the launches of the result and of all gradients."""
    if isinstance(shape, Window):
        operator, function = DCNV3, jax_dcn.dcnv3
    else:
        operator, function = ATTENTION, jax_dcn.multi_scale_deformable_attention
    problem = operator.problem(shape, DTYPE)

    def run(operands, cotangent):
        result, pull_back = jax.vjp(partial(function, **problem.options), *operands)
        return result, pull_back(cotangent)

    operands = tuple(problem.operands.values())
    return executed_ptx.launches(run, operands, problem.cotangent, architecture=kernel_costs.PTX)


def cost(function, record, device, name, taps):
    """A launch on a device. All thread blocks are executed, so clocks and bytes are those of the whole launch."""
    clocks = kernel_costs.sm_clocks(function, record, kernel_costs.executed(function, record))
    milliseconds = max(clocks.values()) / device.sms / device.clock * 1e-6
    return {
        "shape": name,
        "architecture": device.architecture,
        "gpu": device.gpu,
        "call": KERNELS[function.name.partition("<")[0]],
        "kernel": function.name,
        "registers": function.registers,
        "clocks per thousand taps": {key: round(count / taps * 1000, 1) for key, count in clocks.items()},
        "shuffles per thousand taps": round(kernel_costs.shuffles(record) / taps * 1000, 1),
        "bytes of the L2 cache per tap": round(record["counters"]["l2_bytes"] / taps, 1),
        "milliseconds": round(milliseconds, 4),
    }


def cells(row):
    clocks = row["clocks per thousand taps"]
    return [
        row["shape"],
        f"{row['gpu']} ({row['architecture']})",
        row["kernel"].partition("<")[0].removesuffix("Kernel"),
        str(row["registers"]),
        *(f"{clocks[key]:,.0f}" for key in ("issue", "L1")),
        digits(max(clocks.values()) / CORNERS),
        f"{row['shuffles per thousand taps']:,.0f}",
        f"{row['bytes of the L2 cache per tap']:,.0f}",
        digits(row["milliseconds"]),
    ]


def main(arguments=None):
    args = parser("aggregation_costs", __doc__).parse_args(arguments)
    sections = [ABOUT, list_named(SHAPES), markdown([HEAD, *map(cells, measure())])]
    write_page(args.out, "aggregation-costs", "Estimated cost of the aggregation's CUDA kernels", sections)


if __name__ == "__main__":
    main()
