"""`python -m benchmarks.aarch64_loops`: inner loops of the CPU kernels on aarch64, and their cost by llvm-mca.

It cross-compiles the kernels with the optimizations of the package, and runs nothing. It needs Debian's
g++-aarch64-linux-gnu, and llvm-mca 17 or newer (llvm-19). Writes benchmarks/results/<date>-aarch64-loops.md.
"""

import functools
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import jax

from benchmarks.reports.formatting import markdown, paragraph
from benchmarks.reports.report import parser, write_page
from benchmarks.support import cached_build

LIB = cached_build.ROOT / "lib"
COMPILER, OBJDUMP = "aarch64-linux-gnu-g++", "aarch64-linux-gnu-objdump"
ANALYZERS = "llvm-mca", "llvm-mca-22", "llvm-mca-19", "llvm-mca-18", "llvm-mca-17"
# As CMakeLists.txt compiles these files.
FLAGS = ["-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-fno-trapping-math", "-Wno-psabi", "-DDCN_CPU"]

# Vector multiply-adds of float32 per cycle, which the processors' optimization guides give: Neoverse V2 and V1 have
# four pipelines of 128 bits, N2 has two. BFDOT multiplies twice as many.
PROCESSORS = {"neoverse-v2": 16, "neoverse-v1": 16, "neoverse-n2": 8}
MAIN = "neoverse-v2"  # of Grace
MULTIPLY_ADD = r"^(fmla|bfdot|fmul|fadd)\s+v"
OF_STACK = r"\[sp"


class Loop(NamedTuple):
    what: str
    function: str  # a part of its name
    instructions: tuple[str, ...]


# Files of lib/cpu.
FUSED, PAIRS, IM2COL, AGGREGATION = (
    *("kernels/deform_conv_fused.cc", "fused/neon_bf16.cc"),
    *("kernels/deform_conv.cc", "kernels/aggregation.cc"),
)
# What a loop does, its file, and its function.
PRODUCTS = [
    ("float32", FUSED, "MultiplyMicroTile<FloatWords, 8, 272, 1>"),
    ("float32, gradient of the weight", FUSED, "MultiplyMicroTile<FloatWords, 8, 1, 272>"),
    ("bfloat16", PAIRS, "MultiplyMicroTile<PairWords, 8, 272, 1>"),
    ("bfloat16, gradient of the weight", PAIRS, "MultiplyMicroTile<PairWords, 8, 1, 272>"),
]
OTHERS = [
    ("fused interpolation, float32", FUSED, "Forward<Widened<float>, float>"),
    ("fused interpolation, float16", FUSED, "Forward<Widened<F16>, F16>"),
    ("fused interpolation, bfloat16 in pairs", PAIRS, "Forward<Pairs<PairProduct>, BF16>"),
    ("all fused gradients, float32", FUSED, "float>::DifferentiateSegment<true, true, true, 4>"),
    ("all fused gradients, bfloat16 in pairs", PAIRS, "DifferentiateSegment<true, true, true, 4>"),
    ("im2col interpolation, float32", IM2COL, "SamplePixels<float>"),
    ("im2col interpolation, float16", IM2COL, "SamplePixels<F16>"),
    ("im2col gradient of offsets, float32", IM2COL, "OffsetCotangentOfPixels<float>"),
    ("attention, float32", AGGREGATION, "ParallelQueries<float, Aggregate("),
    ("attention, float16", AGGREGATION, "ParallelQueries<F16, Aggregate("),
    ("attention, bfloat16", AGGREGATION, "ParallelQueries<BF16, Aggregate("),
    ("gradients of attention's locations, float32", AGGREGATION, "ParallelQueries<float, TapCotangents("),
    ("gradients of attention's locations, float16", AGGREGATION, "ParallelQueries<F16, TapCotangents("),
    ("gradients of attention's locations, bfloat16", AGGREGATION, "ParallelQueries<BF16, TapCotangents("),
]
ABOUT = """**Computed, not measured**: no processor of this architecture was at hand. The inner loops are read from the
machine code, and llvm-mca computes how many cycles an iteration takes if all loads hit the L1 cache. Loads and stores
of the stack are spilled registers."""
ABOUT_PRODUCTS = """The micro-tile of the fused convolution: 8 rows of two vectors. Multiply-adds per cycle are those of
float32, or of bfloat16. The peak is 16 in float32 for Neoverse V1 and V2 and 8 for N2, and twice as many in bfloat16
(BFDOT)."""
ABOUT_OTHERS = """Of each function the loop with the most vector multiply-adds, products and sums included, per
instruction. An iteration reads the four corners of a sample: the fused path one vector of channels, or a pair of
vectors, attention four or more."""


def main(arguments=None):
    options = parser("aarch64_loops", __doc__).parse_args(arguments)
    if reason := missing():
        raise SystemExit(reason)
    head = ["loop", "instructions", "vector multiply-adds", "loads and stores of the stack"]
    rates = (f"multiply-adds per cycle, {short_name(name)}" for name in PROCESSORS)
    products = [[*head, *rates, f"of the peak, {short_name(MAIN)}"]]
    others = [[*head, f"cycles, {short_name(MAIN)}"]]
    for row in PRODUCTS:
        loop = find(*row)
        values = 2 if "bfdot" in " ".join(loop.instructions) else 1
        rates = {name: 4 * values * count(loop, MULTIPLY_ADD) / cycles(loop, name) for name in PROCESSORS}
        share = rates[MAIN] / (values * PROCESSORS[MAIN])
        products.append([*facts(loop), *(f"{rate:.1f}" for rate in rates.values()), f"{share:.0%}"])
    for row in OTHERS:
        loop = find(*row)
        others.append([*facts(loop), f"{cycles(loop, MAIN):.1f}"])
    tools = f"{first_line(COMPILER, '--version')}; {first_line(analyzer(), '--version')}, {' '.join(FLAGS[:2])}"
    sections = [paragraph(tools), paragraph(ABOUT), paragraph(ABOUT_PRODUCTS), markdown(products)]
    sections += [paragraph(ABOUT_OTHERS), markdown(others)]
    write_page(options.out, "aarch64-loops", "Inner loops on aarch64", sections)


def short_name(processor):
    return processor.replace("neoverse-v", "V").replace("neoverse-n", "N")


def missing():
    """Why the loops cannot be read here, or an empty string."""
    if shutil.which(COMPILER) is None:
        return f"{COMPILER} is not installed (Debian: g++-aarch64-linux-gnu)"
    return "" if analyzer() else "no llvm-mca knows Neoverse V2 here (Debian: llvm-19)"


def analyzer():
    """The first llvm-mca that knows the processor."""
    for name in filter(shutil.which, ANALYZERS):
        command = [name, "-mtriple=aarch64", f"-mcpu={MAIN}"]
        result = subprocess.run(command, input="nop\n", capture_output=True, text=True)
        if result.returncode == 0 and "not a recognized processor" not in result.stderr:
            return name
    return None


def find(what, file, function):
    """The innermost loop of a function that has the most vector multiply-adds per instruction."""
    loops = [loop for name, body in functions(file) if function in name for loop in innermost(body)]
    assert loops, f"{file} has changed: it must have loops in {function}"
    return max(
        (Loop(what, function, loop) for loop in loops),
        key=lambda loop: count(loop, MULTIPLY_ADD) / len(loop.instructions),
    )


@functools.cache
def functions(file):
    """The names and machine code of a file's functions."""
    instructions = "neon" if file.startswith("kernels/") else Path(file).stem
    own = [f"-DDCN_INSTRUCTION_SET={instructions}"] if file.startswith("kernels/") else []
    include = [f"-I{LIB}", f"-I{LIB / 'cpu'}", f"-isystem{jax.ffi.include_dir()}"]
    source = LIB / "cpu" / file
    command = [COMPILER, *FLAGS, *own, *include, "-c", source]
    compiled = cached_build.build(f"{source.stem}.o", command, [source, *sorted(LIB.rglob("*.h"))])
    code = subprocess.check_output([OBJDUMP, "-d", "-C", "--no-show-raw-insn", compiled], text=True)
    parts = re.split(r"^[0-9a-f]+ <(.*)>:$", code, flags=re.MULTILINE)
    names = (re.sub(rf"\(anonymous namespace\)::|dcn::|{instructions}::", "", name) for name in parts[1::2])
    return list(zip(names, parts[2::2], strict=True))


def innermost(body):
    """The loops of a function that contain no other loop, as lists of instructions."""
    lines = re.findall(r"^ *([0-9a-f]+):\t(.*)$", body, re.MULTILINE)
    index = {address: i for i, (address, _) in enumerate(lines)}
    loops = set()
    for i, (_, instruction) in enumerate(lines):
        jump = re.match(r"(?:b\.\w+|cbn?z|tbn?z|b)\s+(?:.*,\s*)?([0-9a-f]+) <", instruction)
        if jump and index.get(jump[1], len(lines)) <= i:
            loops.add((index[jump[1]], i))
    for first, last in sorted(loops):
        if not any(a >= first and b <= last for a, b in loops - {(first, last)}):
            yield tuple(instruction for _, instruction in lines[first : last + 1])


def count(loop, pattern):
    return sum(re.search(pattern, instruction) is not None for instruction in loop.instructions)


def facts(loop):
    numbers = len(loop.instructions), count(loop, MULTIPLY_ADD), count(loop, OF_STACK)
    return [loop.what, *map(str, numbers)]


def cycles(loop, processor):
    """The cycles of an iteration, of which llvm-mca simulates a thousand."""
    code = "\n".join(re.sub(r"\b[0-9a-f]+ <.*", "0", line.partition("//")[0]) for line in loop.instructions)
    command = [analyzer(), "-mtriple=aarch64", f"-mcpu={processor}", "-mattr=+bf16", "-iterations=1000"]
    report = subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", report)[1]) / 1000


def first_line(*command):
    lines = subprocess.check_output(command, text=True).splitlines()
    return next(line.strip() for line in lines if re.search(r"\d+\.\d+", line))


if __name__ == "__main__":
    main()
