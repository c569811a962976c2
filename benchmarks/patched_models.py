"""`python -m benchmarks.patched_models`: functions and models of other libraries before and after `jax_dcn.patch`.

It measures what is installed, with random weights. keras must run on jax: KERAS_BACKEND=jax.
"""

import functools
import importlib.util
import warnings

import jax
import numpy as np

from benchmarks.baselines import Call
from benchmarks.measurements.detectors.patched import MODELS
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import digits, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import installed, load, machine
from jax_dcn import patch

TITLE = "Models of other libraries before and after jax_dcn.patch"
PACKAGES = ("keras", "zeromodels", "keras-hub")
ABOUT = (
    "Random weights, float32, one image (RAFT: two). The size is that of the image. Functions of attention sample maps "
    "of 80 x 80, 40 x 40 and 20 x 20 pixels, with 8 heads of 32 channels and 4 points on each; RoIAlign takes 7 x 7 "
    "bins of 2 x 2 samples from 80 x 80 pixels with 256 channels. With gradients: the mean of the squares of the "
    "outputs, and its gradients in all weights, or in all arrays of a function. Milliseconds: the median of calls that "
    "take turns, with the smallest and the largest. MiB: the temporary arrays that XLA plans, "
    "`compiled.memory_analysis().temp_size_in_bytes`. Difference: the norm of that of the outputs, or of the "
    "gradients, relative to their norm."
)
HEAD = ["what", "size", "pass", "before, ms", "after, ms", "before / after", "before, MiB", "after, MiB", "difference"]


def rows(name, model, size, repeats):
    program = model.make(size)
    for pass_, function in {"forward": program.forward, "with gradients": jax.value_and_grad(program.loss)}.items():
        before = compiled(function, program)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scenic and jax_raft may lie in a folder, which has no version
            with patch(model.library):
                after = compiled(function, program)
        results = [jax.tree.leaves(call()) for call in (before, after)]
        calls = {"before": Call(before), "after": Call(after)}
        seconds = interleaved(calls, repeats)
        held = [call.func.memory_analysis().temp_size_in_bytes / 2**20 for call in (before, after)]
        ratio = f"**{seconds['before']['median'] / seconds['after']['median']:.2f}**"
        times = [milliseconds(seconds[key]) for key in calls]
        yield [name, str(size or "-"), pass_, *times, ratio, *map(digits, held), difference(*results)]


def compiled(function, program):
    arguments = program.weights, program.inputs
    return functools.partial(jax.jit(function).lower(*arguments).compile(), *arguments)


def milliseconds(times):
    middle, low, high = (digits(times[key] * 1e3) for key in ("median", "min", "max"))
    return f"{middle} ({low} to {high})"


def difference(before, after):
    """Of the leaves that are numbers."""
    one, other = (
        np.concatenate([np.ravel(leaf) for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)])
        for leaves in (before, after)
    )
    return f"{np.linalg.norm(one - other) / np.linalg.norm(one):.1e}"


def main(arguments=None):
    options = parser("patched_models", __doc__)
    options.add_argument("--only", nargs="+", choices=MODELS, default=[*MODELS], metavar="NAME", help="of the table")
    options.add_argument("--small", action="store_true", help="with the images of the tests")
    options.add_argument("--repeats", type=int, default=7, help="how often each program is timed")
    args = options.parse_args(arguments)
    about = machine() | {name: installed(name) for name in PACKAGES} | {"load average before": load()}
    chosen = {name: MODELS[name] for name in args.only if importlib.util.find_spec(MODELS[name].library)}
    table = [HEAD]
    for name, model in chosen.items():
        for row in rows(name, model, model.small if args.small else model.size, args.repeats):
            print(*row, sep=" | ", flush=True)
            table.append(row)
    sections = [facts(about | {"load average after": load()}), paragraph(ABOUT), markdown(table)]
    write_page(args.out, f"{jax.default_backend()}-patch", TITLE, sections)


if __name__ == "__main__":
    main()
