"""`python -m benchmarks.lower_bounds`: lower bounds on the time of a deformable convolution, counted."""

from benchmarks.baselines import PASSES
from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.measurements.lower_bounds import BYTES, NAMES, OPERATIONS, count
from benchmarks.reports.formatting import markdown, paragraph
from benchmarks.reports.report import parser, write_page

ABOUT = (
    "Counted, not measured: bfloat16 data, float32 offsets and masks, on an H200 with "
    f"{OPERATIONS / 1e12:.0f} TFLOP/s for dense products and {BYTES / 1e12:.1f} TB/s of memory bandwidth. MB: operands "
    "and results, each moved once per pass. Columns: what an unfused convolution moves in addition."
)
HEAD = ("shape", "pass", "GFLOP", "MB", "columns, MB", "products, ms", "memory, ms", "memory with columns, ms")


def main(arguments=None):
    args = parser("lower_bounds", __doc__).parse_args(arguments)
    shapes = "\n".join(f"- {name}: {SHAPES[name]}" for name in NAMES)
    sections = [paragraph(ABOUT), shapes, markdown([HEAD, *rows()])]
    write_page(args.out, "lower-bounds", "Lower bounds for the deformable convolution", sections)


def rows():
    for name in NAMES:
        for title, (operations, moved, columns) in zip(PASSES, count(SHAPES[name]), strict=True):
            times = (operations / OPERATIONS, moved / BYTES, (moved + columns) / BYTES)
            counts = (f"{operations / 1e9:.0f}", f"{moved / 1e6:.0f}", f"{columns / 1e6:.0f}")
            yield [name, title, *counts, *(f"{1e3 * time:.3f}" for time in times)]


if __name__ == "__main__":
    main()
