"""Mutations of the CUDA kernels, which the tests must find: one line of a file of lib/ is replaced."""

import pathlib
from typing import NamedTuple

from benchmarks.lowering.executed_ptx import KERNELS, LIB

from . import build

VALUES = "differs by"  # the results are wrong
FAULT = "is a race|was not written|out of bounds"  # which of them depends on the order of the warps

X = "deform_conv/cuda_x"


class Mutation(NamedTuple):
    file: str  # of lib/
    change: str  # of the file: see build.mutated_source
    report: str  # a pattern of what the PTX interpreter reports
    kernel: str = ""  # the file of kernels that is compiled with a mutated header
    blocks: int = 2**31 - 1  # grids are cut to this many blocks

    def kernels(self, parent: pathlib.Path) -> dict[str, pathlib.Path]:
        """The files of all kernels, one of them mutated: it is in a copy of lib/ that is made in `parent`."""
        folder = build.mutated(LIB, self.file, self.change, parent)
        name = self.kernel or self.file.removesuffix(".cu")
        return KERNELS | {name: folder / f"{name}.cu"}


MUTATIONS = {
    "missing barrier": Mutation(
        "cuda/counting_sort.h", "    {~~__syncthreads();\n    ~>~~}int32_t total = 0", FAULT, kernel=X),
    "totals read before they are stored": Mutation(
        "cuda/counting_sort.h", "    {~~__syncthreads();\n    ~>~~}sum = 0;", FAULT, kernel=X),
    "another missing barrier": Mutation(
        "cuda/counting_sort.h", "    {~~__syncthreads();\n    ~>~~}int32_t* part_ids", FAULT, kernel=X),
    "barrier that not all reach": Mutation(
        "cuda/counting_sort.h", "    {~~~>if (warp_entries > 0) ~~}__syncthreads();\n    int32_t total = 0", "waits",
        kernel=X),
    "off by one in shared memory": Mutation(
        "cuda/counting_sort.h", "next[bin{~~~> + 1~~}] = 0;", FAULT, kernel=X),
    "off by one in global memory": Mutation(
        "cuda/counting_sort.h", "shape.first_row(bin + 1) : shape.rows{~~~> + 1~~})", FAULT, kernel=X),
    "overlapping writes of threads": Mutation(
        "deform_conv/cuda_sample_rounds.h", "sample.tap{~~~> / 2~~}) * tap_bytes", FAULT, kernel="deform_conv/cuda"),
    "overlapping writes of blocks": Mutation(
        "deform_conv/cuda.cu", "StorePositionCotangents(call.positions, own.index{~~~> % 8~~},", FAULT),
    "missing barrier of a warp": Mutation(
        "cuda/counting_sort.h", "  {~~__syncwarp();\n  ~>~~}if (key >= 0 && lower == 0)", FAULT, kernel=X),
    "entry that is not stored": Mutation(
        "cuda/counting_sort.h", "if (bin >{~~=~>~~} 0) part_ids[place]", FAULT, kernel=X),
    "rows counted where the ranges of the bin are still read": Mutation(
        "cuda/counting_sort.h", "{~~    __syncwarp();  // the ranges have been read\n~>~~}", FAULT, kernel=X),
    "list read while it is written": Mutation(
        "roi_pool/cuda.cu", "list[index] = item;{~~\n  __syncthreads();~>~~}", FAULT),
    "bins of a region that are not tested": Mutation(
        "roi_pool/cuda.cu", "BinRange{0, sizes.output[1]{~~~> / 2~~}}", VALUES),
    "misaligned vector": Mutation(
        "deform_conv/cuda_x.cu", "DispatchVectors(dtype, {~~~>2 * ~~}sizes.channels / sizes.offset_groups,",
        "is misaligned"),
    "samples read before they are located": Mutation(
        "deform_conv/cuda.cu",
        "call.Locate<A>(own));\n{~~    __syncthreads();\n~>~~}    const char* const pixels", FAULT),
    "samples located while others are read": Mutation(
        "deform_conv/cuda.cu", "sum);\n        });\n      });\n    });\n{~~    __syncthreads();\n~>~~}  }", FAULT,
        blocks=1),
    "dot products of a sample read before they are stored": Mutation(
        "deform_conv/cuda.cu", "    });\n{~~    __syncthreads();\n~>~~}    if (own.index >= 0) {", FAULT),
    "samples of the next round that are located, too": Mutation(
        "deform_conv/cuda_sample_rounds.h", "{~~int(threadIdx.x) >= round_samples || ~>~~}i >= image_samples", FAULT,
        kernel="deform_conv/cuda"),
    "rounds of as many samples as a block has threads": Mutation(
        "deform_conv/cuda_sample_rounds.h",
        "image_rounds) * {~~round_samples~>kThreads~~} + threadIdx.x", FAULT, kernel="deform_conv/cuda"),
    "samples past the end of the last round": Mutation(
        "deform_conv/cuda_sample_rounds.h", "return {~~left < round_samples ? int(left) : ~>~~}round_samples;", FAULT,
        kernel="deform_conv/cuda"),
    "samples of other images than those of the part": Mutation(
        "deform_conv/cuda_x.cu", "first_table = Clamped(start[{~~1~>0~~}]", VALUES),
    "images of x that are those of the samples": Mutation(
        "deform_conv/cuda_x.cu", "first_pixel = Clamped(start[{~~0~>1~~}]", VALUES),
    "samples of other rows than those of the part": Mutation(
        "cuda/cells.h", "(kHasOtherSamples ? {~~range.first~>0~~} : 0)", VALUES, kernel=X),
    "samples of all rows": Mutation(
        "cuda/cells.h", "{~~min(numbers[k], range.count - 1)~>numbers[k]~~} : numbers[k]", "out of bounds", kernel=X),
    "samples of other rows taken for the last of the part": Mutation(
        "cuda/cells.h", "(!kHasOtherSamples || {~~numbers[k] < range.count~>true~~});", VALUES, kernel=X),
    "ranges of parts that overlap": Mutation(
        "cuda/counting_sort.h", "(bin > 0) + {~~2 * ~>~~}part;", FAULT, kernel=X),
    "part that is left out": Mutation(
        "cuda/counting_sort.h", "parts = wanted ? int32_t(CeilDiv(entries{~~~> / 2~~},", VALUES, kernel=X),
    "record past the end of a pair of cells": Mutation(
        "cuda/cells.h", "samples[{~~min(first + k * turns, end - 1)~>first + k * turns~~}]", FAULT, kernel=X),
    "last sample of a pair of cells added again": Mutation(
        "cuda/cells.h", "is_added = {~~i < end~>true~~} &&", VALUES, kernel=X),
    "cells at the ends of a circular row as neighbours": Mutation(
        "deform_conv/cuda_x.cu", "has_two_sides(sizes.circular && x {~~=~>>~~}= 0)", VALUES),
    "tap past the end of a level": Mutation(
        "aggregation/cuda.cu", "{~~min(~>~~}first + int32_t(threadIdx.x % kQuad){~~, level.taps - 1)~>~~}", FAULT),
    "cotangents of a tap stored by several lanes": Mutation(
        "aggregation/cuda.cu", "if (!is_valid{~~ || lanes.lane() >= tap.quad_taps~>~~}) return;", FAULT),
    "levels without taps": Mutation(
        "aggregation/cuda.cu", "if (sizes.levels[i].taps {~~>~>>=~~} 0)", FAULT),
    "quads of taps past the last level": Mutation(
        "aggregation/cuda.cu", "count = is_past ? {~~0~>kQuad~~} :", f"{FAULT}|{VALUES}"),
    "turns that are not added up": Mutation(
        "aggregation/cuda.cu", "distance < {~~1 << lanes.log2_lanes~>lanes.subwarp()~~}; distance *= 2) {", VALUES),
    "pixel of the value past the end": Mutation(
        "aggregation/cuda_value.cu", "pixel <{~~~>=~~} int64_t{level.height} * level.width", FAULT),
    "pixels of the value that two subwarps have": Mutation(
        "aggregation/cuda_value.cu", "(warp_of_table - shape.first_warp[i]){~~ * shape.pixels_of_subwarp[i]~>~~};",
        "is a race"),
    "shares before they are computed": Mutation(
        "roi_pool/cuda.cu", "listed_bins[threadIdx.x]);{~~\n            __syncthreads();~>~~}", FAULT),
    "share of a column in another tile": Mutation(
        "roi_pool/cuda.cu", "if (pixel >= first && {~~pixel < first + kSize~>true~~}) shares", FAULT),
    "shares that are sums and not means": Mutation("roi_pool/cuda.cu", "shares[k] /= {~~points~>A(1)~~};", VALUES),
    "sample past the last point": Mutation(
        "sampling/cuda.cu", "return {~~min(first + Lane(), end - 1)~>first + Lane()~~}; }", "out of bounds"),
    "sample of a pixel outside the image": Mutation(
        "sampling/cuda.cu", "LoadOrZeros<N>(pixel[tap] >= {~~0~>-1~~}, reinterpret_cast", "out of bounds"),
    "sums of a point that are not exchanged": Mutation(
        "sampling/cuda.cu", "for (int distance = 1; distance < {~~1~>0~~} << log2_lanes; distance *= 2)", VALUES),
    "pixels of a sample in rows of another length": Mutation(
        "sampling/cuda_point.h", "index = index * sizes.size[{~~a~>0~~}] + of_axis;", FAULT, kernel="sampling/cuda"),
    "images of samples sorted at once, of which only the first is taken": Mutation(
        "sampling/cuda_x.cu", "const int32_t* const start = row_start + {~~image~>0~~} * (pixels + 1) +", FAULT),
    "taps of a pixel that every lane adds": Mutation(
        "sampling/cuda_x.cu", "for (int64_t i = row.begin + Lane(); i < row.end; i += {~~kWarp~>1~~})", VALUES),
    "pixel with many taps that is left out": Mutation(
        "sampling/cuda_x.cu", "const bool is_long = {~~~>Lane() > 3 && ~~}first + Lane() < pixels", "is not written"),
    "column of an argmax outside the image": Mutation(
        "roi_pool/cuda.cu",
        "{~~~>if (largest[v].column >= 0) ~~}columns[index + v] = largest[v].column;", "is not written"),
    "columns of the argmax over their rows": Mutation(
        "roi_pool/cuda.cu", "StoreArgmax{argmax, argmax + count{~~~> / 2~~}}", FAULT),
    "unwritten result": Mutation("roi_pool/cuda.cu", "{~~~>if (f > 0) ~~}AsVector<N>(pooled + work", "is not written"),
    "dot products of another tap": Mutation("aggregation/cuda.cu", "is_upper = threadIdx.x & {~~2~>1~~}", VALUES),
    "corners by the far flag of the other axis": Mutation(
        "aggregation/cuda.cu", "flags & {~~kIsFarRight~>kIsFarDown~~} ? 0", "out of bounds"),
    "left pixels with the weights of the right ones": Mutation(
        "cuda/cells.h", "i {~~<~>>~~} middle", VALUES, kernel="aggregation/cuda_value"),
    "row and column of an argmax swapped": Mutation(
        "roi_pool/cuda.cu", "i = {~~rows[index + v], j = columns~>columns[index + v], j = rows~~}[index + v]", VALUES),
    "a maximum of other weights": Mutation(
        "roi_pool/cuda.cu", "weight = point_y.weight(k / 2) * point_x.weight(k {~~%~>/~~} 2)", VALUES),
    "a result read as constant": Mutation(
        "deform_conv/cuda.cu",
        "    StoreRounded<T>(out + c, sum);{~~~> if (__ldg((const short*)(out + c)) == 77) return;~~}\n"
        "        });\n      });\n    });",
        "through ld.global.nc"),
}  # fmt: skip
