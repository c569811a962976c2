"""Tables of each operator beside its alternatives: speed, time and memory."""

from benchmarks.contenders import PASSES
from benchmarks.measurements.operators import OPERATORS
from benchmarks.reports.formatting import list_reasons, markdown, mebibytes, milliseconds, paragraph, ratio

RATIOS = (
    "jax_dcn beside the others, by medians of calls that took turns. {floors}Speed: how many times faster jax_dcn is. "
    "Each was timed once its results agreed with jax_dcn's."
)
FLOORS = (
    "Time: as a multiple of the ordinary convolution's, which samples nothing, and of the matrix products' alone, of "
    "samples that lie ready. "
)
TIMES = "Milliseconds, median (min to max); once: so slow that it was timed only once."
MEMORY = (
    "MiB that a call holds besides its operands, its results included. JAX: temporaries and results as XLA planned "
    "them, without what custom calls and libraries take for themselves. "
)
MEMORY_OF_OTHERS = (
    "torchvision on a GPU: its allocator's peak. torchvision and onnxruntime on a CPU: how much the process grew "
    "around the first call."
)


def tables(rows):
    for name, operator in OPERATORS.items():
        if own := [row for row in rows if row["operator"] == name]:
            dtypes = list(dict.fromkeys(row["dtype"] for row in own))
            own.sort(key=lambda row: (dtypes.index(row["dtype"]), PASSES.index(row["pass"])))
            yield f"## {name}\n\n{table_set(operator, own)}"


def table_set(operator, rows):
    floors, everyone = operator.FLOORS, list(operator.CONTENDERS)

    def table(names, cell, title=str):
        head = ["shape", "type", "pass", *map(title, names)]
        body = ([row["shape"], row["dtype"], row["pass"], *(cell(row, name) for name in names)] for row in rows)
        return markdown([head, *body])

    def to_jax_dcn(row, name):
        return ratio(row, "jax_dcn", name) if name in floors else ratio(row, name, "jax_dcn")

    named = dict.fromkeys(row["shape"] for row in rows)
    return "\n\n".join(
        [
            "\n".join(f"- {name}: {operator.SHAPES[name]}" for name in named),
            paragraph(RATIOS.format(floors=FLOORS if floors else "")),
            table(everyone[1:], to_jax_dcn, lambda name: f"{'time' if name in floors else 'speed'} / {name}"),
            *list_reasons(rows, everyone),
            TIMES,
            table(everyone, milliseconds),
            paragraph(MEMORY + (MEMORY_OF_OTHERS if "torchvision" in everyone else "")),
            table(everyone, mebibytes),
        ]
    )
