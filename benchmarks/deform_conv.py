"""Deformable convolution beside XLA's ordinary convolution of the same shape."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.timing import compile_for, interleaved, shown, summary


class Shape(NamedTuple):
    """x [batch, height, width, channels] to `features` channels, 3x3."""

    batch: int
    height: int
    width: int
    channels: int
    features: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    offset_groups: int = 1


# Layers of published detectors and video models.
SHAPES = {
    "A": Shape(2, 100, 168, 128, 128),  # ResNet-50 stage c3, an image of 800 x 1333
    "B": Shape(2, 50, 84, 256, 256),  # c4
    "C": Shape(2, 25, 42, 512, 512),  # c5
    "D": Shape(1, 38, 63, 512, 512, dilation=2, offset_groups=4),  # R-FCN res5
    "E": Shape(32, 32, 32, 256, 128),  # CenterNet
    "F": Shape(32, 64, 64, 64, 64, offset_groups=8),  # EDVR
    "G": Shape(8, 64, 64, 128, 64, offset_groups=16),  # BasicVSR++
    "H": Shape(2, 100, 168, 256, 256, groups=32),  # ResNeXt-101 c3
}


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


def table(rows):
    lines = [
        "Ratios of medians to XLA's ordinary convolution of the same shape, timed in turns; median (min to max) in ms;",
        "temporary memory of the compiled call in MiB, ours and the ordinary convolution's.",
        "",
        "| shape | type | forward | | forward + backward | | temporary forward | temporary forward + backward |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["shape"], row["dtype"]]
        for key in ("forward", "forward + backward"):
            ours, plain = row["seconds"][key], row["seconds"][f"plain {key}"]
            cells += [f"**{ours['median'] / plain['median']:.2f}**", f"{shown(ours)} against {shown(plain)}"]
        for key in ("forward", "forward + backward"):
            sizes = row["temporary bytes"]
            cells.append(f"{sizes[key] / 2**20:.0f} against {sizes[f'plain {key}'] / 2**20:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
