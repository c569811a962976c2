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
    "barrier that not all reach": Mutation(
        "cuda/counting_sort.h", "    {~~~>if (warp_entries > 0) ~~}__syncthreads();\n    int32_t total = 0", "waits",
        kernel=X),
    "off by one in shared memory": Mutation(
        "cuda/counting_sort.h", "next[bin{~~~> + 1~~}] = 0;", FAULT, kernel=X),
    "overlapping writes of blocks": Mutation(
        "deform_conv/cuda.cu", "StorePositionCotangents(call.positions, own.index{~~~> % 8~~},", FAULT),
    "missing barrier of a warp": Mutation(
        "cuda/counting_sort.h", "  {~~__syncwarp();\n  ~>~~}if (key >= 0 && lower == 0)", FAULT, kernel=X),
    "list read while it is written": Mutation(
        "roi_pool/cuda.cu", "list[index] = item;{~~\n  __syncthreads();~>~~}", FAULT),
    "misaligned vector": Mutation(
        "deform_conv/cuda_x.cu", "DispatchVectors(dtype, {~~~>2 * ~~}sizes.channels / sizes.offset_groups,",
        "is misaligned"),
    "samples located while others are read": Mutation(
        "deform_conv/cuda.cu", "sum);\n        });\n      });\n    });\n{~~    __syncthreads();\n~>~~}  }", FAULT,
        blocks=1),
    "samples of all rows": Mutation(
        "cuda/cells.h", "{~~min(numbers[k], range.count - 1)~>numbers[k]~~} : numbers[k]", "out of bounds", kernel=X),
    "last sample of a pair of cells added again": Mutation(
        "cuda/cells.h", "is_added = {~~i < end~>true~~} &&", VALUES, kernel=X),
    "tap past the end of a level": Mutation(
        "aggregation/cuda.cu", "{~~min(~>~~}first + int32_t(threadIdx.x % kQuad){~~, level.taps - 1)~>~~}", FAULT),
    "pixel of the value past the end": Mutation(
        "aggregation/cuda_value.cu", "pixel <{~~~>=~~} int64_t{level.height} * level.width", FAULT),
    "sample past the last point": Mutation(
        "sampling/cuda.cu", "return {~~min(first + Lane(), end - 1)~>first + Lane()~~}; }", "out of bounds"),
    "taps of a pixel that every lane adds": Mutation(
        "sampling/cuda_x.cu", "for (int64_t i = row.begin + Lane(); i < row.end; i += {~~kWarp~>1~~})", VALUES),
    "unwritten result": Mutation("roi_pool/cuda.cu", "{~~~>if (f > 0) ~~}AsVector<N>(pooled + work", "is not written"),
    "a maximum of other weights": Mutation(
        "roi_pool/cuda.cu", "weight = point_y.weight(k / 2) * point_x.weight(k {~~%~>/~~} 2)", VALUES),
    "a result read as constant": Mutation(
        "deform_conv/cuda.cu",
        "    StoreRounded<T>(out + c, sum);{~~~> if (__ldg((const short*)(out + c)) == 77) return;~~}\n"
        "        });\n      });\n    });",
        "through ld.global.nc"),
}  # fmt: skip
