"""Cells, tables and paragraphs of the reports, in Markdown."""

from textwrap import fill


def paragraph(text):
    return fill(text, 120)


def markdown(rows):
    """A table; the first row is its head."""
    head, *body = rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width for width in widths]
    aligned = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, rule, *body))
    return "\n".join(map(table_line, aligned))


def table_head(names):
    """The first two lines of a table whose other lines are printed one by one."""
    return f"{table_line(names)}\n{table_line(['-' * len(name) for name in names])}"


def table_line(cells):
    return f"| {' | '.join(cells)} |"


def list_named(values):
    return "\n".join(f"- {name}: {value!s}" for name, value in values.items())


def list_reasons(rows, names):
    """Lists of the notes on implementations: each note once, with the rows that it applies to."""
    for key, before in (("without", ""), ("notes", "in "), ("refused", "**refused**: ")):
        found = {}
        for row in rows:
            for name, reason in row[key].items():
                found.setdefault((names.index(name), f"{name} {before}{reason}"), []).append(row)
        if found:
            yield "\n".join(f"- {text}: {rows_named(rows)}" for (_, text), rows in sorted(found.items()))


def rows_named(rows):
    shapes = {}
    for row in rows:
        shapes.setdefault((row["dtype"], row["pass"]), []).append(row["shape"])
    return "; ".join(f"{' '.join(names)} ({dtype}, {pass_})" for (dtype, pass_), names in shapes.items())


def median(row, name):
    return row["seconds"][name]["median"] if name in row["seconds"] else None


def ratio(row, of, by):
    """The ratio of the times of two implementations."""
    if not (median(row, of) and median(row, by)):
        return "-"
    return f"**{digits(median(row, of) / median(row, by))}**"


def milliseconds(row, name):
    if name not in row["seconds"]:
        return "-"
    middle, low, high = (digits(row["seconds"][name][key] * 1e3) for key in ("median", "min", "max"))
    return f"{middle} (once)" if row["seconds"][name]["turns"] == 1 else f"{middle} ({low} to {high})"


def mebibytes(row, name):
    held = row["bytes"].get(name)
    return "-" if held is None else digits(held / 2**20)


def digits(value):
    """A number with two or three significant digits."""
    places = 0 if value >= 20 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:.{places}f}"
