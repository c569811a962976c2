"""`python -m benchmarks.instead_of`: the functions of docs/instead_of.md, beside the calls that replace them.

Prints the time and XLA's temporary memory of each pair, forward and with gradients, and fails if their values differ.
"""

import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.baselines import Call
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import markdown
from benchmarks.support.machine import machine
from benchmarks.support.memory import of_compiled

PAGE = Path(__file__).parents[1] / "docs/instead_of.md"
REPEATS = 7
LEVELS = ((80, 80), (40, 40), (20, 20))


def functions():
    """The names that the page defines."""
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(block, names)
    return names


def cases(names):
    """The title of a section, the function, the call that replaces it, their arguments, and which have gradients."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    def uniform(low, high, *shape):
        return jnp.asarray(rng.uniform(low, high, shape), jnp.float32)

    image, places = normal(2, 128, 128, 64), uniform(0, 127, 2, 128 * 128, 2)
    pixels = sum(height * width for height, width in LEVELS)
    corner, sides = uniform(0, 80, 512, 2), uniform(4, 80, 512, 2)
    yield "Four gathers", names["four_gathers"], names["one_call"], (image, places), (0, 1)
    yield "map_coordinates for each channel", names["for_each_channel"], names["one_call"], (image, places), (0, 1)
    for queries in (300, pixels):
        value, weights = normal(1, pixels, 8, 32), uniform(0, 1, 1, queries, 8, 3, 4)
        arguments = value, uniform(0, 1, 1, queries, 8, 3, 4, 2), weights
        pair = (partial(names[name], shapes=LEVELS) for name in ("for_each_level", "attention"))
        yield f"Gathers of all levels, {queries:,} queries", *pair, arguments, (0, 1, 2)
    boxes = jnp.concatenate([corner, corner + sides], -1)
    yield "One-hot products", names["one_hot_products"], names["pooled"], (normal(160, 160, 256), boxes), (0,)


def compiled(function, arguments, varied):
    """The program of the sum of squares, or of its gradients of the arguments with the numbers `varied`."""

    def squares(*arguments):
        return jnp.square(function(*arguments)).sum()

    return jax.jit(jax.grad(squares, varied) if varied else squares).lower(*arguments).compile()


def main():
    """Prints a line of facts, and a table."""
    print(machine(), end="\n\n")
    rows = [["", "pass", "ms", "with jax_dcn", "times", "MiB", "with jax_dcn"]]
    for title, function, call, arguments, numbers in cases(functions()):
        for varied in ((), numbers):
            programs = {name: compiled(one, arguments, varied) for name, one in (("", function), ("dcn", call))}
            results = [jax.tree.leaves(program(*arguments)) for program in programs.values()]
            for found, expected in zip(*results, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * float(jnp.abs(expected).max()))
            seconds = interleaved({name: timed_call(one, arguments) for name, one in programs.items()}, REPEATS)
            times = [1e3 * seconds[name]["median"] for name in programs]
            held = [of_compiled(program) / 2**20 for program in programs.values()]
            cells = [f"{value:.3g}" for value in (*times, times[0] / times[1], *held)]
            rows.append([title, "gradients" if varied else "forward", *cells])
    print(markdown(rows))


def timed_call(program, arguments):
    return Call(partial(program, *arguments), queued=jax.default_backend() != "cpu")


if __name__ == "__main__":
    main()
