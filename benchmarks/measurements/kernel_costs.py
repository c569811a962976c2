"""Estimates of what the launches of the fused kernels cost on a GPU, from their machine code and from executed PTX.

A K step is what the main loop of a fused kernel multiplies at a time: a tile of 128 x N outputs by 128 bytes along K,
which are 64 numbers of 16 bits. N is the first number in the kernel's name. That takes 4 N tensor core instructions.

Clocks of an SM per K step:
- issue: the machine instructions that warps execute, of which each of four schedulers issues one per clock
- L1: the wavefronts of shared memory, asynchronous copies and global accesses, and shuffles, one per clock
- tensor: the tensor core instructions, by the rate of the device

Those of the im2col path's kernels are per 128 bytes of columns instead.

They are of all the kernel's instructions, also those outside of the main loop, divided by the number of K steps. From
issue, L1 and what a warp alone takes, benchmarks/counting/waiting.py estimates the clocks with waiting, for one
resident thread block and for all. The time is that of the SM with the most thread blocks, and at least that of the
tensor cores, of the L2 cache and of device memory.
"""

import math
import re

import jax

from benchmarks.counting import device_code, executed_sass, sass, waiting
from benchmarks.counting.devices import DEVICES, RESERVED_SHARED, SCHEDULERS, WARP, occupancy
from benchmarks.lowering import executed_ptx
from benchmarks.measurements import deform_conv

DTYPE = "bfloat16"
SHAPES = {name: deform_conv.SHAPES[name]._replace(batch=16) for name in "ABCDFG"}
# For the choice of a path only: 64 features or channels, with many channels in each offset group.
OTHER_SHAPES = {"E2": deform_conv.SHAPES["E2"]._replace(batch=4)}
OTHER_SHAPES["E3"] = OTHER_SHAPES["E2"]._replace(channels=64, features=128)
IM2COL_SHAPES = {name: deform_conv.SHAPES[name]._replace(batch=1) for name in "ABF"}
IM2COL_KERNELS = {
    "SampleColumnsKernel": "dcn_sample",
    "OffsetCotangentKernel": "dcn_offset_cotangent",
    "InputCotangentKernel": "dcn_gather_samples",
}
SAMPLED_BLOCKS = 8  # of each launch of a fused kernel
PTX = 80  # the virtual architecture that the package's machine code is compiled from
SOURCES = {
    "deform_conv_fused_forward": "dcn_fused_forward",
    "deform_conv_fused_input": "dcn_fused_input_cotangent",
    "deform_conv_fused_offset": "dcn_fused_offset_cotangent",
    "deform_conv_fused_weight": "dcn_fused_weight_cotangent",
}
POSITION, SUM = 4, 4  # bytes of an offset, a mask or a partial sum
COLUMN_BYTES = 128  # for which the clocks of the im2col kernels are given
ITEM = {"bf16": 2, "f16": 2, "tf32": 4}


def missing():
    """Why nothing can be counted on this machine, or None."""
    return device_code.missing() or executed_ptx.missing()


def measure(shapes=SHAPES):
    """A row for each kernel, shape and architecture."""
    records = {}
    for architecture, device in DEVICES.items():
        found = functions(architecture)
        for name, shape in shapes.items():
            key = name, device.shared_bytes  # which the choice of a tile depends on
            if key not in records:
                records[key] = executed_launches(shape, "forward", device) + executed_launches(shape, "others", device)
            weight = executed_launches(shape, "weight", device)  # whose thread blocks depend on the number of SMs, too
            yield from costs(records[key] + weight, found, architecture, name, shape)


def measure_im2col():
    """A row for each kernel of the im2col path, shape and architecture, without those that sort."""
    records = {
        name: [
            record
            for computation in ("forward", "backward")
            for record in executed_launches(shape, computation, backend="im2col")
        ]
        for name, shape in IM2COL_SHAPES.items()
    }
    for architecture in DEVICES:
        found = {
            name: function
            for source in ("deform_conv", "deform_conv_input")
            for name, function in assembled(source, architecture).items()
        }
        for name, shape in IM2COL_SHAPES.items():
            for record in records[name]:
                function = found[device_code.linker_name(record["kernel"])]
                call = IM2COL_KERNELS.get(function.name.partition("<")[0])
                if call:
                    elements = pixels(shape) * 9 * shape.channels
                    vectors = elements * ITEM["bf16"] / COLUMN_BYTES * record["blocks"] / record["grid"]
                    device, executions = DEVICES[architecture], executed(function, record)
                    clocks = sm_clocks(function, record, executions)
                    clocks["L2"] = record["counters"]["l2_bytes"] * device.sms / device.l2_rate
                    with_waiting = clocks_with_waiting(function, record, executions)
                    clocks["with waiting"] = with_waiting(residency(function, record, device).blocks)
                    clocks = {key: round(count / vectors, 2) for key, count in clocks.items()}
                    row = {"shape": name, "batch": shape.batch, "architecture": architecture, "call": call}
                    yield row | {"kernel": function.name, "clocks per 128 bytes of columns": clocks}


def pixels(shape):
    return math.prod(deform_conv.output_size(shape))


def sm_clocks(function, record, executions):
    """Clocks of one SM for all executed blocks, without tensor core instructions."""
    counters = record["counters"]
    wavefronts = sum(counters[name] for name in ("shared_wavefronts", "async_wavefronts", "l1_wavefronts"))
    return {"issue": issued(function, executions) / SCHEDULERS, "L1": wavefronts + shuffles(record)}


def clocks_with_waiting(function, record, executions, mma_clocks=0.0):
    """The clocks of one SM for all executed blocks with waiting, as a function of how many blocks are resident.

    `mma_clocks`: of a scheduler for one tensor core instruction.
    """
    warps = -(-record["threads"] // (WARP * SCHEDULERS))  # of a block, on each scheduler
    of_scheduler = record["blocks"] * warps
    service = max(sm_clocks(function, record, executions).values()) / of_scheduler
    alone = waiting.alone(function.blocks, executions, mma_clocks) / SCHEDULERS / of_scheduler
    return lambda resident: of_scheduler * waiting.together(service, max(alone - service, 0), resident * warps)


def residency(function, record, device):
    shared = record["static_shared"] + record["dynamic_shared"]
    return occupancy(device, function.registers, shared, record["threads"])


def executed_launches(shape, computation, device=DEVICES["sm_90"], backend="fused"):
    """The records of all launches of the "forward", or "backward", which has the gradients of all operands.

    "weight" has only the gradient of the weight, and "others" those of the other operands.
    """
    problem = deform_conv.problem(shape, DTYPE)

    def forward(operands):
        return deform_conv.deformable(**operands, **problem.options, backend=backend)

    def backward(operands, cotangent):
        names = [
            name for name in operands if computation == "backward" or (name == "weight") == (computation == "weight")
        ]
        requested = {name: operands[name] for name in names}
        return jax.vjp(lambda varied: forward(operands | varied), requested)[1](cotangent)

    if computation == "forward":
        function, arguments = forward, (problem.operands,)
    else:
        function, arguments = backward, (problem.operands, problem.cotangent)
    return launches_on(device, function, *arguments)


def launches_on(device, function, *arguments, **options):
    """The records of all launches of a function on a device, with these options of the interpreter."""
    interpreter = executed_ptx.interpreter(PTX)
    before = interpreter.set(
        max_shared_bytes=device.shared_bytes - RESERVED_SHARED,
        sms=device.sms,
        device=list(DEVICES).index(device.architecture) + 1,  # one of its own, as kernels request memory only once
        requires_loading=0,
        **options,
    )
    capability = int(device.architecture.removeprefix("sm_"))
    try:
        return executed_ptx.launches(
            function, *arguments, sampled_blocks=SAMPLED_BLOCKS, architecture=PTX, compute_capability=capability
        )
    finally:
        interpreter.set(**before)


def assembled(source, architecture, kernels=None):
    """The machine code of the kernels of a file: all, or those with these parts of names."""
    ptx = device_code.compile_ptx(executed_ptx.KERNELS[source], PTX)
    return device_code.assemble(ptx, architecture, kernels)


def functions(architecture, kernels=None):
    """The machine code of the fused kernels and of the sort, and the custom call of each."""
    return {
        name: (function, call)
        for source, call in SOURCES.items()
        for name, function in assembled(source, architecture, kernels).items()
    }


def executed(function, record):
    """The executions of each block of the machine code in a recorded launch."""
    lines = record["lines"]
    if [opcode for _, opcode in function.ptx] != [line[3] for line in lines]:
        raise RuntimeError(f"other PTX ran than the machine code of {function.name} was compiled from")
    ptx = {number: (opcode, line[4]) for (number, opcode), line in zip(function.ptx, lines, strict=True)}
    warps = record["blocks"] * -(-record["threads"] // WARP)
    return executed_sass.block_executions(function.blocks, ptx, warps)


def issued(function, executions, blocks=None):
    """Machine instructions, of all blocks or of some."""
    chosen = range(len(function.blocks)) if blocks is None else blocks
    return sum(executions[k] * len(function.blocks[k].instructions) for k in chosen)


def wavefronts(record):
    """Those of a launch, by the kind of PTX instruction."""
    kinds = {"ldmatrix": "ldmatrix", "cp.async": "copies", "ld.global": "global loads", "st.global": "global stores"}
    kinds |= {"ld.shared": "shared loads", "st.shared": "shared stores"}
    return {
        kind: sum(line[5] for line in record["lines"] if line[3].startswith(opcode)) for opcode, kind in kinds.items()
    }


def shuffles(record):
    return sum(line[4] for line in record["lines"] if line[3].startswith("shfl"))


def products(block):
    """How many tensor core instructions a block has."""
    return sum(executed_sass.is_anchor("mma.", one.opcode) for one in block.instructions)


def main_loop(function, executions):
    """The innermost loop with the tensor core instructions, as a set of blocks."""
    counts = [count * products(block) for count, block in zip(executions, function.blocks, strict=True)]
    inside = {k for k, count in enumerate(counts) if count > max(counts) / 2}
    *_, innermost = sass.loops(function.blocks, inside)
    return innermost


def k_steps(function, record):
    """In the executed thread blocks; 0 for kernels without products."""
    instructions = sum(record["counters"]["mma"].values())
    return instructions / products_of_k_step(function) if instructions else 0


def products_of_k_step(function):
    return 4 * int(re.search(r", (\d+)", function.name)[1])


def compiled(function):
    """Machine instructions of all warps per K step, if the main loop's code ran from top to bottom once.

    Nothing is executed, so branches that are not taken count as well, and loops inside of it count once.
    """
    once = [1] * len(function.blocks)
    loop = main_loop(function, once)
    per_product = issued(function, once, loop) / sum(products(function.blocks[k]) for k in loop)
    return per_product * products_of_k_step(function)


def cost(function, call, record, device, shape):
    """A launch on a device, with `shape` as the size of the whole call."""
    counters, executions = record["counters"], executed(function, record)
    resident = residency(function, record, device)
    clocks = sm_clocks(function, record, executions)  # of all executed blocks, on one SM
    clocks["tensor"] = sum(count * device.clocks(kind) for kind, count in counters["mma"].items())
    blocks_of_busiest = -(-record["grid"] // device.sms)
    of_busiest = blocks_of_busiest / record["blocks"]
    milliseconds = {name: count * of_busiest / device.clock * 1e-6 for name, count in clocks.items()}
    mma_clocks = max((SCHEDULERS * device.clocks(kind) for kind in counters["mma"]), default=0)
    with_waiting = clocks_with_waiting(function, record, executions, mma_clocks)
    waves, last = divmod(blocks_of_busiest, resident.blocks)
    waited = waves * resident.blocks * with_waiting(resident.blocks) + (last * with_waiting(last) if last else 0)
    milliseconds["waiting"] = waited / record["blocks"] / device.clock * 1e-6
    if device.l2_bytes:
        moved = counters["l2_bytes"] * record["grid"] / record["blocks"]
        milliseconds["L2"] = moved / device.l2_bytes / device.clock * 1e-6
    row = {"kernel": function.name, "call": call, "grid": record["grid"], "resident blocks": resident.blocks}
    row |= {"resident warps": resident.warps, "occupancy limited by": resident.limit}
    if steps := k_steps(function, record):
        (kind,) = counters["mma"]
        milliseconds["memory"] = compulsory_bytes(call, shape, ITEM[kind]) / device.memory * 1e-6
        row["clocks per K step"] = {name: round(count / steps, 1) for name, count in clocks.items()}
        row["waiting per K step"] = {
            name: round(max(with_waiting(number), clocks["tensor"]) / steps, 1)
            for name, number in (("one block", 1), ("all blocks", resident.blocks))
        }
        row["wavefronts per K step"] = {name: round(count / steps, 1) for name, count in wavefronts(record).items()}
        row["shuffles per K step"] = round(shuffles(record) / steps, 1)
        loop = main_loop(function, executions)
        row["main loop, instructions per K step"] = round(issued(function, executions, loop) / steps, 1)
    return row | {"bounds": milliseconds}


def compulsory_bytes(call, shape, item):
    """Operands and results of the custom call, each moved once."""
    samples = 9 * pixels(shape) * shape.offset_groups
    positions, weight = 3 * samples * POSITION, 9 * shape.channels // shape.groups * shape.features
    x = shape.batch * shape.height * shape.width * shape.channels * item
    y = pixels(shape) * shape.features * item
    return {
        "dcn_fused_forward": x + positions + weight * item + y,
        "dcn_fused_input_cotangent": y + 4 * samples * 8 + weight * item + x,  # the lists have 8 bytes per corner
        "dcn_fused_offset_cotangent": x + y + 2 * positions + weight * item,
        "dcn_fused_weight_cotangent": x + y + positions + weight * SUM,
    }[call]


def costs(records, found, architecture, name, shape):
    """The launches of a shape, one row for each kernel: those of several parts of the batch are added up."""
    device, rows = DEVICES[architecture], {}
    for record in records:
        linker_name = device_code.linker_name(record["kernel"])
        if linker_name not in found:
            continue
        row = cost(*found[linker_name], record, device, shape)
        key = row["kernel"], row["call"]
        rows[key] = _sum(rows[key], row) if key in rows else row
    calls = list(SOURCES.values())
    for row in sorted(rows.values(), key=lambda row: calls.index(row["call"])):
        bounds = row["bounds"]
        bound_by = max(bounds.keys() - {"waiting"}, key=bounds.get)
        row["bounds"] = {key: round(value, 4) for key, value in bounds.items()}
        place = {"shape": name, "batch": shape.batch, "architecture": architecture, "gpu": device.gpu}
        yield place | row | {"milliseconds": round(max(bounds.values()), 4), "bound_by": bound_by}


def _sum(row, other):
    """The same kernel, launched again for other images. Device memory is that of the whole call already."""
    bounds = {key: value + other["bounds"][key] for key, value in row["bounds"].items() if key != "memory"}
    if "memory" in row["bounds"]:
        bounds["memory"] = row["bounds"]["memory"]
    return row | {"grid": row["grid"] + other["grid"], "bounds": bounds}
