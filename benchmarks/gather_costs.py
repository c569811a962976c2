"""`python -m benchmarks.gather_costs`: what the CUDA kernels of the aggregation and of the sampling cost on GPUs.

The costs are estimates. It takes minutes, and writes a page in benchmarks/results/ for each family of kernels. Costs
are clocks of an SM per thousand taps or points, counted as those per K step of `kernel_costs`: `issue` of machine
instructions, and `L1` of wavefronts and shuffles, for all instructions of a kernel. Shuffles are also given on their
own.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax

from benchmarks.baselines import Operator
from benchmarks.counting.device_code import linker_name
from benchmarks.counting.devices import DEVICES
from benchmarks.lowering import executed_ptx
from benchmarks.measurements import kernel_costs
from benchmarks.measurements.aggregation import ATTENTION, DCNV3
from benchmarks.measurements.sampling import SAMPLING
from benchmarks.reports.formatting import digits, list_named, markdown
from benchmarks.reports.report import parser, write_page

DTYPE = "bfloat16"


class Case(NamedTuple):
    """A shape of an operator, of whose samples each reads at least `floor` wavefronts per thousand."""

    operator: Operator
    shape: NamedTuple
    samples: int
    floor: int


class Family(NamedTuple):
    """Kernels of some sources, which the custom calls launch."""

    title: str
    sample: str
    sources: tuple[str, ...]
    calls: Mapping[str, str]  # of each kernel
    cases: Mapping[str, Case]
    about: str


def aggregation(operator, name):
    shape = operator.shapes[name]
    return Case(operator, shape, shape.taps, floor=4000)


def sampling(name, floor, **changes):
    shape = SAMPLING.shapes[name]._replace(**changes)
    return Case(SAMPLING, shape, shape.samples, floor)


AGGREGATION = Family(
    title="Estimated cost of the aggregation's CUDA kernels",
    sample="tap",
    sources=("aggregation", "aggregation_value"),
    calls={
        "AggregateKernel": "dcn_aggregate",
        "TapCotangentsKernel": "dcn_aggregation_tap_cotangents",
        "PartitionKernel": "dcn_aggregation_value_cotangent",
        "SortBinsKernel": "dcn_aggregation_value_cotangent",
        "GatherKernel": "dcn_aggregation_value_cotangent",
    },
    cases={
        "encoder": aggregation(ATTENTION, "M1"),
        "decoder": aggregation(ATTENTION, "M2"),
        "dcnv3": aggregation(DCNV3, "W1"),
    },
    about="""\
A tap has four corners, and a pixel of a head is rarely longer than the 128 bytes of a wavefront. So the floor is 4,000
wavefronts of a thousand taps, unless neighbouring queries sample the same pixels.

The last three kernels are the gradient of value: two sort the samples by location, and one gathers. Vectorized atomics
would move 512 bytes per tap for 32 channels: four corners of 32 floats.""",
)
GRID_SAMPLE = Family(
    title="Estimated cost of the sampling's CUDA kernels",
    sample="point",
    sources=("sampling", "sampling_x"),
    calls={
        "SampleKernel": "dcn_sampling",
        "LocationsCotangentKernel": "dcn_sampling_locations_cotangent",
        "PartitionKernel": "dcn_sampling_x_cotangent",
        "SortBinsKernel": "dcn_sampling_x_cotangent",
        "GatherTapsKernel": "dcn_sampling_x_cotangent",
        "GatherLongRowsKernel": "dcn_sampling_x_cotangent",
    },
    cases={
        "S1": sampling("S1", 4000, batch=1),
        "S2": sampling("S2", 4000, batch=8),
        "S3": sampling("S3", 4000, batch=1),
        "S4": sampling("S4", 8000, batch=1),
        "S5": sampling("S5", 4000),
    },
    about="""\
A point reads four pixels of an image, or eight of a volume. Those of S1 and S4 have 128 and 64 bytes, so the floor is a
wavefront for each; so it is for points anywhere, S2 and S5. Neighbouring points of S3 read neighbouring pixels of six
bytes, which share wavefronts.

The last four kernels are the gradient of x: two sort the samples by pixel, and two gather; the last one adds up pixels
that more than 512 taps read.""",
)
FAMILIES = {"aggregation": AGGREGATION, "sampling": GRID_SAMPLE}

ABOUT = """\
**Nothing was run on a GPU.** The clocks of an SM per thousand {sample}s are counted from machine code and executed PTX,
{dtype}: `issue` of instructions, and `L1` of wavefronts and shuffles, which are assumed to share a pipeline. The
larger one bounds the time. Bytes of the L2 cache are loads that miss a simulated L1 cache, and all stores. Milliseconds
are the larger clocks divided among all SMs at the boost clock.

{family}"""


def measure(family, cases=None, architectures=tuple(DEVICES)):
    """A row for each kernel, case and architecture."""
    found = {
        architecture: {
            name: function
            for source in family.sources
            for name, function in kernel_costs.assembled(source, architecture, list(family.calls)).items()
        }
        for architecture in architectures
    }
    for name, case in (cases or family.cases).items():
        records = launches(case)
        for architecture in architectures:
            for record in records:
                if function := found[architecture].get(linker_name(record["kernel"])):
                    yield cost(family, name, case, function, record, DEVICES[architecture])


def launches(case):
    """The records of the launches of the result and of all gradients."""
    problem = case.operator.problem(case.shape, DTYPE)

    def run(operands, cotangent):
        result, pull_back = jax.vjp(partial(case.operator.function, **problem.options), *operands)
        return result, pull_back(cotangent)

    operands = tuple(problem.operands.values())
    return executed_ptx.launches(run, operands, problem.cotangent, architecture=kernel_costs.PTX)


def cost(family, name, case, function, record, device):
    """A launch on a device. All thread blocks are executed, so clocks and bytes are those of the whole launch."""
    clocks = kernel_costs.sm_clocks(function, record, kernel_costs.executed(function, record))
    milliseconds = max(clocks.values()) / device.sms / device.clock * 1e-6

    def per_thousand(count):
        return round(count / case.samples * 1000, 1)

    return {
        "case": name,
        "architecture": device.architecture,
        "gpu": device.gpu,
        "call": family.calls[function.name.partition("<")[0]],
        "kernel": function.name,
        "registers": function.registers,
        "clocks per thousand": {key: per_thousand(count) for key, count in clocks.items()},
        "times the floor": max(map(per_thousand, clocks.values())) / case.floor,
        "shuffles per thousand": per_thousand(kernel_costs.shuffles(record)),
        "bytes of the L2 cache per sample": round(record["counters"]["l2_bytes"] / case.samples, 1),
        "milliseconds": round(milliseconds, 4),
    }


def cells(row):
    clocks = row["clocks per thousand"]
    return [
        row["case"],
        f"{row['gpu']} ({row['architecture']})",
        row["kernel"].partition("<")[0].removesuffix("Kernel"),
        str(row["registers"]),
        *(f"{clocks[key]:,.0f}" for key in ("issue", "L1")),
        digits(row["times the floor"]),
        f"{row['shuffles per thousand']:,.0f}",
        f"{row['bytes of the L2 cache per sample']:,.0f}",
        digits(row["milliseconds"]),
    ]


def page(family):
    """The sections of a family's page."""
    head = ["case", "GPU", "kernel", "registers", "issue", "L1", "larger / floor", "shuffles"]
    about = ABOUT.format(sample=family.sample, dtype=DTYPE, family=family.about)
    cases = list_named({name: case.shape for name, case in family.cases.items()})
    return [about, cases, markdown([[*head, f"L2 bytes per {family.sample}", "ms"], *map(cells, measure(family))])]


def main(arguments=None):
    made = parser("gather_costs", __doc__)
    made.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="of kernels")
    args = made.parse_args(arguments)
    for name in args.families:
        write_page(args.out, f"{name}-costs", FAMILIES[name].title, page(FAMILIES[name]))


if __name__ == "__main__":
    main()
