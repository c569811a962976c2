"""`python -m benchmarks`: deformable convolution beside XLA's ordinary convolution of the same shape, in one run."""

import argparse
import json
import os
import platform
import subprocess
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.shapes import SHAPES
from benchmarks.timing import interleaved, summary

RESULTS = Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["A", "B", "C", "D"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file and the table")
    args = parser.parse_args()

    rows = [measure(name, dtype, args.repeats) for dtype in args.dtypes for name in args.shapes]
    report = {"machine": machine(), "rows": rows}
    table = markdown(report)
    print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{date.today()}-{jax.devices()[0].platform}"
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    stem.with_suffix(".md").write_text(table)


def measure(name, dtype, repeats):
    shape = SHAPES[name]
    operands = make_operands(shape, dtype)
    x, offset, weight, mask, cotangent = operands
    options = dict(strides=shape.stride, kernel_dilation=shape.dilation, feature_group_count=shape.groups)
    deformable = partial(jax_dcn.deform_conv2d, padding=shape.dilation, **options)
    plain = partial(
        jax.lax.conv_general_dilated,
        window_strides=(shape.stride,) * 2,
        padding=[(shape.dilation,) * 2] * 2,
        rhs_dilation=(shape.dilation,) * 2,
        feature_group_count=shape.groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    check(partial(deformable, x, jnp.zeros_like(offset), weight), partial(plain, x, weight))

    def both(function, *operands):
        y, pull_back = jax.vjp(function, *operands)
        return y, pull_back(cotangent)

    def with_mask(x, offset, weight, mask):
        return deformable(x, offset, weight, mask=mask)

    compiled = {
        "plain forward": compile_for(plain, x, weight),
        "forward": compile_for(with_mask, x, offset, weight, mask),
        "plain forward + backward": compile_for(partial(both, plain), x, weight),
        "forward + backward": compile_for(partial(both, with_mask), x, offset, weight, mask),
    }
    times = interleaved({key: call for key, (call, _) in compiled.items()}, repeats)
    return {
        "shape": name,
        "dtype": dtype,
        "seconds": {key: summary(values) for key, values in times.items()},
        "temporary bytes": {key: bytes_ for key, (_, bytes_) in compiled.items()},
    }


def make_operands(shape, dtype):
    random = np.random.default_rng(0)
    height, width = -(-shape.height // shape.stride), -(-shape.width // shape.stride)
    out, samples = (shape.batch, height, width), 9 * shape.offset_groups

    def normal(*size, scale=1.0, dtype=dtype):
        return jnp.asarray(random.normal(size=size) * scale, dtype)

    x = normal(shape.batch, shape.height, shape.width, shape.channels)
    weight = normal(3, 3, shape.channels // shape.groups, shape.features, scale=0.02)
    offset = normal(*out, 2 * samples, scale=2.0, dtype=jnp.float32)
    mask = jnp.asarray(random.uniform(size=(*out, samples)), jnp.float32)
    return x, offset, weight, mask, normal(*out, shape.features)


def check(deformable, plain):
    """With zero offsets the two are the same function; a wrong one is not worth timing."""
    y, expected = np.asarray(deformable(), np.float32), np.asarray(plain(), np.float32)
    np.testing.assert_allclose(y, expected, atol=0.02 * np.abs(expected).max())


def compile_for(function, *operands):
    compiled = jax.jit(function).lower(*operands).compile()
    return partial(compiled, *operands), compiled.memory_analysis().temp_size_in_bytes


def machine():
    def commit():
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"

    return {
        "date": str(date.today()),
        "commit": commit(),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}, {cpu_name()}, {cpu_count()} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax_dcn", "jax", "jaxlib")},
    }


def cpu_name():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cpu_count():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def markdown(report):
    lines = [f"{', '.join(f'{key} {value}' for key, value in report['machine'].items())}", ""]
    lines += [
        "Ratios of medians to XLA's ordinary convolution of the same shape, timed in turns; median (min to max) in ms;",
        "temporary memory of the compiled call in MiB, ours and the ordinary convolution's.",
        "",
        "| shape | type | forward | | forward + backward | | temporary forward | temporary forward + backward |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        cells = [row["shape"], row["dtype"]]
        for key in ("forward", "forward + backward"):
            ours, plain = row["seconds"][key], row["seconds"][f"plain {key}"]
            cells += [f"**{ours['median'] / plain['median']:.2f}**", f"{shown(ours)} against {shown(plain)}"]
        for key in ("forward", "forward + backward"):
            sizes = row["temporary bytes"]
            cells.append(f"{sizes[key] / 2**20:.0f} against {sizes[f'plain {key}'] / 2**20:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def shown(seconds):
    return f"{seconds['median'] * 1e3:.0f} ({seconds['min'] * 1e3:.0f} to {seconds['max'] * 1e3:.0f})"


if __name__ == "__main__":
    main()
