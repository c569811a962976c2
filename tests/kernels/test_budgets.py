"""Holds the main loops of the fused kernels to budgets of machine instructions.

The PTX of each kernel is assembled, and that of some is executed on the CPU, so no GPU is needed. The budgets are in
budgets.json, 3% above the counts of the day when they were made. This makes them again:

    python -m tests.kernels.test_budgets

A change that needs more must say why it is worth its time.

Counts are instructions of all warps of a thread block per K step (kernel_costs says what that is), of two kinds:

- executed: as often as they run for shape A with batch 1, in bfloat16 with 128 features. They are not comparable with
  benchmarks/results, which has batch 16.
- compiled: each instruction of the main loop once, also on branches that are not taken. They are larger than executed
  counts where a branch is rare, and smaller where the main loop has loops inside.
"""

import collections
import functools
import json
import pathlib

import pytest

from benchmarks import gather_costs
from benchmarks.counting import device_code, machine_code
from benchmarks.counting.devices import DEVICES
from benchmarks.lowering import executed_ptx
from benchmarks.measurements import aggregation, deform_conv, kernel_costs

pytestmark = [
    pytest.mark.skipif(kernel_costs.missing() is not None, reason=str(kernel_costs.missing())),
    pytest.mark.platforms("cpu"),
    pytest.mark.thorough,
]

BUDGETS = pathlib.Path(__file__).with_name("budgets.json")  # by kind, kernel and architecture
MARGIN = 1.03
ARCHITECTURES = ["sm_80", "sm_90", "sm_120"]
KERNELS = ("KernelI13__nv_bfloat16Li", "KernelIfLi")  # parts of linker names: the fused kernels that are counted


@functools.cache
def launches(computation, architecture):
    return kernel_costs.executed_launches(deform_conv.SHAPES["A"]._replace(batch=1), computation, DEVICES[architecture])


@functools.cache
def assembled(architecture):
    return kernel_costs.functions(architecture, KERNELS)


def costs(architecture):
    """The machine code, the record and the executions of the blocks of each executed kernel."""
    found = assembled(architecture)
    for record in launches("forward", architecture) + launches("backward", architecture):
        if (name := device_code.linker_name(record["kernel"])) in found:
            function = found[name][0]
            yield function, record, kernel_costs.executed(function, record)


def executed_counts(architecture):
    return {
        function.name: kernel_costs.issued(function, executions, kernel_costs.main_loop(function, executions))
        / kernel_costs.k_steps(function, record)
        for function, record, executions in costs(architecture)
    }


def compiled_counts(functions):
    return {function.name: kernel_costs.compiled(function) for function, _ in functions.values()}


def check(kind, architecture, counts):
    of_kind = json.loads(BUDGETS.read_text())[kind]
    budgets = {kernel: of[architecture] for kernel, of in of_kind.items() if architecture in of}
    assert counts.keys() == budgets.keys()
    exceeded = [
        f"{kernel} on {architecture}: {count:.0f} {kind} instructions per K step, {budgets[kernel]} budgeted"
        for kernel, count in counts.items()
        if count > budgets[kernel]
    ]
    assert not exceeded, "; ".join(exceeded)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_main_loops_stay_within_their_budgets(architecture):
    check("compiled", architecture, compiled_counts(assembled(architecture)))
    check("executed", architecture, executed_counts(architecture))


def test_float16_has_as_many_ptx_instructions_as_bfloat16():
    """So the budgets of bfloat16 hold for both."""
    for source in kernel_costs.SOURCES:
        ptx = device_code.ptx_instructions(device_code.compile_ptx(executed_ptx.KERNELS[source], kernel_costs.PTX))
        counts = {device_code.linker_name(name): len(instructions) for name, instructions in ptx.items()}
        of_half = [name for name in counts if "KernelI6__halfLi" in name]
        assert of_half
        for name in of_half:
            assert counts[name] == counts[name.replace("6__half", "13__nv_bfloat16")], name


# PTX and machine instructions that correspond one to one here. The linear program is fitted only to the first ones.
KNOWN, HELD_OUT = {"mma.": "HMMA", "ldmatrix.": "LDSM", "cp.async.c": "LDGSTS"}, {"fma.rn.f32": "FFMA"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_machine_code_executes_as_often_as_its_ptx(architecture):
    for function, record, executions in costs(architecture):
        machine, ptx = collections.Counter(), collections.Counter()
        for count, block in zip(executions, function.blocks, strict=True):
            for instruction in block.instructions:
                machine[instruction.opcode.split(".")[0]] += count
        for *_, opcode, count, _ in record["lines"]:
            for start in (*KNOWN, *HELD_OUT):
                ptx[start] += count * opcode.startswith(start)
        for start, opcode in KNOWN.items():
            assert machine[opcode] == pytest.approx(ptx[start], rel=1e-3), (function.name, opcode)
        for start, opcode in HELD_OUT.items():
            assert machine[opcode] == pytest.approx(ptx[start], rel=0.03), (function.name, opcode)


@pytest.mark.skipif(machine_code.missing() is not None, reason=str(machine_code.missing()))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_assembled_code_is_that_of_the_module(architecture):
    """Line numbers do not change the machine code."""
    built = {kernel.name: kernel.instructions for kernel in machine_code.kernels(architecture)}
    for function, _ in assembled(architecture).values():
        opcodes = (one.opcode for block in function.blocks for one in block.instructions)
        assert collections.Counter(opcodes) == built[function.name], function.name


# Clocks per thousand taps of the encoder of gather_costs on sm_90: the larger of issue and L1.
AGGREGATION = {
    "AggregateKernel": 5400,  # less than 1.5 times the 4,000 wavefronts that the corners take
    "TapCotangentsKernel": 6450,
    "PartitionKernel": 1700,
    "SortBinsKernel": 3500,
    "GatherKernel": 7100,
}


def test_the_aggregation_stays_within_its_budgets():
    encoder = gather_costs.AGGREGATION.cases["encoder"]
    shape = encoder.shape._replace(batch=1)
    case = encoder._replace(shape=shape, samples=shape.taps)
    rows = list(gather_costs.measure(gather_costs.AGGREGATION, {"encoder": case}, architectures=("sm_90",)))
    clocks = {row["kernel"].partition("<")[0]: max(row["clocks per thousand"].values()) for row in rows}
    assert clocks.keys() == AGGREGATION.keys()
    assert {name: count for name, count in clocks.items() if count > AGGREGATION[name]} == {}
    sorting = [row for row in rows if row["call"] == "dcn_aggregation_value_cotangent"]
    atomics = 4 * aggregation.CHANNELS * 4  # bytes that vectorized atomics would add per sample
    assert sum(row["bytes of the L2 cache per sample"] for row in sorting) < atomics


def write_budgets():
    budgets = {"executed": collections.defaultdict(dict), "compiled": collections.defaultdict(dict)}
    for architecture in ARCHITECTURES:
        for kernel, count in executed_counts(architecture).items():
            budgets["executed"][kernel][architecture] = int(count * MARGIN)
        for kernel, count in compiled_counts(assembled(architecture)).items():
            budgets["compiled"][kernel][architecture] = int(count * MARGIN)
    lines = (
        f" {json.dumps(kind)}: {{\n"
        + ",\n".join(f"  {json.dumps(kernel)}: {json.dumps(of)}" for kernel, of in sorted(kernels.items()))
        + "\n }"
        for kind, kernels in budgets.items()
    )
    BUDGETS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_budgets()
