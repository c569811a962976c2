"""`python -m benchmarks.floors`: lower bounds on the time of a deformable convolution, counted and not measured."""

from datetime import date

from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.measurements.floors import NAMES
from benchmarks.reports.floors import table
from benchmarks.reports.report import RESULTS


def main():
    shapes = "\n".join(f"- {name}: {SHAPES[name]}" for name in NAMES)
    text = (
        f"# Lower bounds for the deformable convolution\n\n{date.today()}, counted, not measured: bfloat16 data, "
        "float32 offsets and masks, on an H200\nwith 790 TFLOP/s for dense products and 4.3 TB/s of memory bandwidth. "
        "MB: operands and results, each moved once per pass.\nColumns: what an unfused convolution moves in "
        "addition.\n\n"
        f"{shapes}\n\n{table()}\n"
    )
    path = RESULTS / f"{date.today()}-floors.md"
    path.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
