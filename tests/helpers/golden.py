"""The golden files of all operators: what other people's implementations computed, in the layout in which they do."""

import functools
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import jax_dcn
from tests.helpers.aggregation.cases import Operands as AggregationOperands
from tests.helpers.deform_conv.cases import Operands as ConvolutionOperands
from tests.helpers.roi_pool.cases import Operands as PoolingOperands
from tests.helpers.roi_pool.cases import pool
from tests.helpers.roi_pool.numpy_reference import Align, Pooling
from tests.helpers.sampling.cases import Operands as SamplingOperands

FOLDER = pathlib.Path(__file__).parents[1] / "golden"


class Golden(NamedTuple):
    """A function of the operands, which takes `backend` too, and what it must give."""

    function: Callable
    operands: Any
    result: Any
    cotangent: Any
    gradients: Any


def golden(function, kind, arrays, names=None):
    """The operands, of the named tuple `kind`, have these names in the file, and their gradients the same after "g"."""
    names = names or kind._fields
    found = [arrays.get(name) for name in names]
    gradients = [None if a is None else arrays[f"g{name}"] for a, name in zip(found, names, strict=True)]
    return Golden(function, kind(*found), arrays["y"], arrays["gy"], kind(*gradients))


def convolution(arrays, meta):
    attributes = meta["attrs"]
    keywords = {
        "strides": tuple(attributes["stride"]),
        "padding": tuple((p, p) for p in attributes["padding"]),
        "kernel_dilation": tuple(attributes["dilation"]),
        "feature_group_count": attributes["groups"],
    }
    function = functools.partial(jax_dcn.deform_conv2d, **keywords, data_format="NCHW", precision="highest")
    return golden(function, ConvolutionOperands, arrays)


def convolution_of(function, arrays, meta):
    """A convolution of signals or volumes, channels last."""
    keywords = {name: meta[name] for name in ("strides", "padding", "kernel_dilation", "feature_group_count")}
    return golden(functools.partial(function, **keywords, precision="highest"), ConvolutionOperands, arrays)


def ps_roi_pool(arrays, meta):
    attributes = meta["attrs"]
    pooled_size, group_size, part_size, samples = (
        (attributes[name],) * 2 for name in ("pooled_size", "group_size", "part_size", "sample_per_part")
    )
    factors = (float(np.float32(attributes[name])) for name in ("spatial_scale", "trans_std"))
    pooling = Pooling(pooled_size, group_size, part_size if part_size[0] else None, samples, *factors)
    return pooled(pooling, arrays)


def roi_align(arrays, meta):
    ratio = (meta["sampling_ratio"],) * 2
    align = Align((3, 2), 0.375, ratio, meta.get("aligned", True), "avg", meta["position_sensitive"])
    return pooled(align, arrays)


def pooled(pooling, arrays):
    arrays["grois"] = np.zeros(arrays["rois"].shape)
    function = functools.partial(pool, pooling=pooling, data_format="NCHW")
    return golden(function, PoolingOperands, arrays, ("x", "rois", "trans"))


def attention(arrays, meta):
    keywords = {name: meta[name] for name in ("spatial_shapes", "points", "method")}
    function = functools.partial(jax_dcn.multi_scale_deformable_attention, **keywords)
    return aggregated(function, ("value", "locations", "weights"), arrays, meta)


def dcnv3(arrays, meta):
    pairs = {name: tuple(meta[name]) for name in ("kernel_size", "strides", "padding", "kernel_dilation")}
    rest = {name: meta[name] for name in ("groups", "offset_scale", "remove_center")}
    return aggregated(functools.partial(jax_dcn.dcnv3, **pairs, **rest), ("x", "offset", "mask"), arrays, meta)


def dcnv4(arrays, meta):
    for prefix, suffix in (("", ""), ("g", rule(meta))):
        packed = arrays[f"{prefix}offset_mask{suffix}"]
        arrays[f"{prefix}offset{suffix}"], arrays[f"{prefix}mask"] = unpack(packed, meta)
    return dcnv3(arrays, meta)


def aggregated(function, names, arrays, meta):
    arrays[f"g{names[1]}"] = arrays[f"g{names[1]}{rule(meta)}"]
    return golden(function, AggregationOperands, arrays, names)


def grid_sample(arrays, meta):
    keywords = {name: meta[name] for name in ("method", "padding_mode", "align_corners")}
    function = functools.partial(jax_dcn.grid_sample, **keywords)
    return golden(function, SamplingOperands, arrays, ("x", "grid"))


def rule(meta):
    """The suffix of the gradients by the rule of the CUDA kernels, where samples lie on non-differentiable points."""
    return "_cuda" if meta["kinks"] else ""


def unpack(packed, meta):
    """The offset and the mask of DCNv4's offset_mask."""
    groups, taps = meta["groups"], math.prod(meta["kernel_size"]) - meta["remove_center"]
    of_groups = packed[..., : groups * 3 * taps].reshape(*packed.shape[:-1], groups, 3 * taps)
    parts = of_groups[..., : 2 * taps], of_groups[..., 2 * taps :]
    return tuple(part.reshape(*packed.shape[:-1], -1) for part in parts)


READERS = {
    "aggregation/dcnv3": dcnv3,
    "aggregation/dcnv4": dcnv4,
    "aggregation/msda": attention,
    "deform_conv/deform_conv1d": functools.partial(convolution_of, jax_dcn.deform_conv1d),
    "deform_conv/deform_conv2d": convolution,
    "deform_conv/deform_conv3d": functools.partial(convolution_of, jax_dcn.deform_conv3d),
    "roi_pool/deform_psroi_pool": ps_roi_pool,
    "roi_pool/roi_align": roi_align,
    "sampling/grid_sample": grid_sample,
}
FILES = sorted(path for folder in READERS for path in (FOLDER / folder).glob("*.npz"))


def read(path):
    with np.load(path) as file:
        arrays = dict(file)
    return READERS[str(path.parent.relative_to(FOLDER))](arrays, json.loads(str(arrays["meta"])))
