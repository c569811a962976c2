// The tiling of the fused kernels' implicit GEMMs: the shapes of tiles, the layout of a stage in shared memory, and the
// accumulators of a warp.
//
// A block computes an M × N block tile. Its operands A (M × K) and B (K × N) pass through shared memory one K slice at
// a time, in two stages: while the tensor cores multiply one, the threads load the next (double buffering). Each warp
// computes a warp tile, from fragments that ldmatrix loads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deform_conv/fused.h"
#include "dtype.h"
#include "launch.h"
#include "matrix.h"

extern __shared__ uint4 dynamic_shared[];

namespace dcn {

// A vector is what a thread loads, samples or copies at once, and a row of one of the 8 × 8 matrices of ldmatrix.
constexpr int kGemmVectorBytes = FusedLimits::kVectorBytes;
template <typename T>
constexpr int kVectorElements = kGemmVectorBytes / sizeof(T);

constexpr int kStages = 2;
constexpr int kSliceVectors = 8;                // vectors per row of a K slice: 128 bytes, which are all 32 banks
constexpr int kSliceSteps = kSliceVectors / 2;  // mma steps per K slice: an mma takes 32 bytes of K
constexpr int kTilePixels = FusedLimits::kTilePixels;  // M of the block tiles whose rows are pixels

// The steps of the carve-out, in KiB: the shared memory that an SM can have, whose rest is L1 cache. An architecture
// has the steps up to its largest. (CUDA C++ Programming Guide, "Compute Capabilities".)
constexpr size_t kCarveOuts[] = {0, 8, 16, 32, 64, 100, 132, 164, 196, 228};
constexpr size_t kSmSharedBytesSm80 = 164 << 10;
constexpr size_t kSmSharedBytesSm86 = 100 << 10;  // also sm_89 and sm_120
constexpr size_t kSmSharedBytesSm90 = 228 << 10;  // also sm_100

constexpr int kMinResidentWarps = 8;  // per SM, two for each scheduler, so that one can issue while the other waits

// The first step of the carve-out that has room for `shared_bytes`, in bytes.
constexpr size_t CarveOut(size_t shared_bytes) {
  for (const size_t step : kCarveOuts) {
    if (step << 10 >= shared_bytes) return step << 10;
  }
  return SIZE_MAX;
}

// Whether an SM with `sm_shared_bytes` runs kMinResidentWarps or more of a kernel whose blocks have `warps` warps, and
// whether the carve-out that Launch requests for `blocks` blocks has room for them, or is all of the SM's.
constexpr bool FitsSm(size_t sm_shared_bytes, size_t shared_bytes, int blocks, int warps) {
  const size_t needed = blocks * (shared_bytes + kReservedSharedBytes);
  const size_t requested = CarveOut(CarveOutPercent(needed, sm_shared_bytes) * sm_shared_bytes / 100);
  return ResidentBlocks(shared_bytes, sm_shared_bytes) * warps >= kMinResidentWarps &&
         requested == (needed < sm_shared_bytes ? CarveOut(needed) : sm_shared_bytes);
}

// Checks that each SM that a tile is for has room for its resident blocks. sm_86, sm_89 and sm_120 run the tiles of 8
// warps and fewer than 256 features.
template <typename Tile, int kWarps, size_t kSharedBytes>
constexpr void CheckResidentBlocks() {
  constexpr int kBlocks = Tile::kResidentBlocks;
  static_assert(Tile::kThreads == kWarps * kWarp);
  static_assert(FitsSm(kSmSharedBytesSm80, kSharedBytes, kBlocks, kWarps));
  static_assert(FitsSm(kSmSharedBytesSm90, kSharedBytes, kBlocks, kWarps));
  static_assert(kWarps == 4 || Tile::kN == 256 || FitsSm(kSmSharedBytesSm86, kSharedBytes, kBlocks, kWarps));
}

// Calls f with a value of the type that tensor cores take for `dtype`.
template <typename F>
const char* DispatchTensorCoreType(DType dtype, const F& f) {
  if (dtype == DType::kF16) return f(__half());
  if (dtype == DType::kBF16) return f(__nv_bfloat16());
  if (dtype == DType::kF32) return f(float());
  return "the tensor cores take no float64";
}

// The index of a vector in an operand's part of a stage. XOR swizzle: the eight rows that one ldmatrix phase reads fall
// into different banks, and so do the eight 16-byte vectors of a row.
template <int kRowVectors = kSliceVectors>
__device__ constexpr int swizzled_index(int row, int vector) {
  static_assert(kRowVectors % 8 == 0, "the swizzle permutes eight vectors of a row");
  return row * kRowVectors + (vector ^ (row & 7));
}

// The order of the four 8 × 8 matrices that ldmatrix loads from 16 rows × 2 vectors.
enum class MatrixOrder { kRowsFirst, kVectorsFirst };

// The vector whose address the calling lane passes to ldmatrix for the 16 rows × 2 vectors at (row, vector). Lanes 8i
// to 8i + 7 address the rows of matrix i.
template <int kRowVectors>
__device__ int fragment_index(MatrixOrder order, int row, int vector) {
  const int lane = int(threadIdx.x % kWarp);
  if (order == MatrixOrder::kRowsFirst) return swizzled_index<kRowVectors>(row + lane % 16, vector + lane / 16);
  return swizzled_index<kRowVectors>(row + lane / 16 * 8 + lane % 8, vector + lane / 8 % 2);
}

// The swizzled index `rows` rows and `vectors` vectors after `index`. `rows` is a multiple of 8, which leaves the
// swizzle unchanged; `vectors` has no bit in common with the vector of `index`, so that XOR adds them.
template <int kRowVectors>
__device__ int advance_index(int index, int rows, int vectors) {
  return (index ^ vectors) + rows * kRowVectors;
}

// The layout of an operand in shared memory. K-major: a row of the stage is a row of A or a column of B. MN-major: a
// row of the stage is an index of K, that is a column of A or a row of B.
enum class Layout { kKMajor, kMNMajor };

template <int kBlockM, int kBlockN, int kWarpTileM, int kWarpTileN>
struct TileShape {
  static constexpr int kM = kBlockM, kN = kBlockN;
  static constexpr int kWarpM = kWarpTileM, kWarpN = kWarpTileN;
  static constexpr int kWarpsM = kM / kWarpM, kWarpsN = kN / kWarpN;
  static constexpr int kThreads = kWarpsM * kWarpsN * kWarp;
  static constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;  // of m16n8 accumulators, in a warp tile
  static constexpr int kRowsPerLoad = kThreads / kSliceVectors;  // rows of a K slice that the block loads at once
  static constexpr int kVectorsOfA = kM * kSliceVectors, kVectorsOfB = kN * kSliceVectors;  // of a stage

  static_assert(kWarpsM * kWarpM == kM && kWarpsN * kWarpN == kN, "the warp tiles must fill the block tile");
  static_assert(kFragmentsM * 16 == kWarpM && kFragmentsN * 8 == kWarpN, "fragments must fill the warp tile");
  static_assert(kFragmentsN % 2 == 0, "one ldmatrix loads the fragments of B for two column fragments");
  static_assert(kThreads >= kTilePixels && kThreads <= 256, "each pixel of a block tile has a thread of its own");
  static_assert(kRowsPerLoad % 8 == 0, "the vectors of a thread must have one swizzle in all rows that it loads");
  static_assert(kM % kRowsPerLoad == 0 && kN % kRowsPerLoad == 0, "the threads must load equally many vectors");
  static_assert(kFragmentsM * kFragmentsN * 4 <= 128, "the accumulators of a lane must leave half of its registers");
};

// A permutation of the columns of B: row r of a stage holds column permuted_column(r). The accumulators that a lane has
// of four column fragments then belong to a run of kRunColumns consecutive columns, and those of lanes 4r to 4r + 3 to
// four consecutive runs. Bits of `row` are only moved, so that permuted_column(a + b) is the sum of both where a and b
// have no bit in common.
constexpr int kRunColumns = 8;
__device__ constexpr int permuted_column(int row) {
  constexpr int kRows = 4 * kRunColumns;
  return row / kRows * kRows + row % 8 / 2 * kRunColumns + row % kRows / 8 * 2 + row % 2;
}

// The accumulators of the calling warp's tile. A lane has four of each fragment of 16 rows × 8 columns: columns 2c and
// 2c + 1 of rows r and r + 8, where r = lane / 4 and c = lane % 4.
template <typename T, typename Shape, Layout kLayout = Layout::kKMajor>
class WarpTile {
 public:
  using FragmentsOfA = uint32_t[Shape::kFragmentsM][4];  // of one mma step

  __device__ static int lane() { return int(threadIdx.x % kWarp); }
  __device__ static int first_row() { return int(threadIdx.x / kWarp / Shape::kWarpsN) * Shape::kWarpM; }
  __device__ static int first_column() { return int(threadIdx.x / kWarp % Shape::kWarpsN) * Shape::kWarpN; }

  // Loads the fragments of A for one mma step of a stage.
  __device__ static void LoadA(const uint4* a, int step, FragmentsOfA& fragments) {
    const int row = first_row();
    for (int i = 0; i < Shape::kFragmentsM; ++i) {
      if constexpr (kLayout == Layout::kKMajor) {
        const int index = fragment_index<kSliceVectors>(MatrixOrder::kRowsFirst, row, 0);
        load_matrix_fragments(fragments[i], &a[advance_index<kSliceVectors>(index, i * 16, step * 2)]);
      } else {
        const int index = fragment_index<kRowVectorsOfA>(MatrixOrder::kVectorsFirst, 0, row / 8);
        load_matrix_fragments_transposed(fragments[i], &a[advance_index<kRowVectorsOfA>(index, step * 16, i * 2)]);
      }
    }
  }

  // Adds one mma step to `count` column fragments, an even number, from `first` on.
  __device__ void MultiplyColumns(const uint4* b, int step, const FragmentsOfA& a, int first, int count) {
#pragma unroll
    for (int j = first; j < first + count; j += 2) {
      uint32_t pair[4];
      if constexpr (kLayout == Layout::kKMajor) {
        const int index = fragment_index<kSliceVectors>(MatrixOrder::kVectorsFirst, first_column(), 0);
        load_matrix_fragments(pair, &b[advance_index<kSliceVectors>(index, j * 8, step * 2)]);
      } else {
        const int index = fragment_index<kRowVectorsOfB>(MatrixOrder::kRowsFirst, 0, first_column() / 8);
        load_matrix_fragments_transposed(pair, &b[advance_index<kRowVectorsOfB>(index, step * 16, j)]);
      }
      for (int i = 0; i < Shape::kFragmentsM; ++i) {
        mma<T>(accumulators[i][j], a[i], {pair[0], pair[1]});
        mma<T>(accumulators[i][j + 1], a[i], {pair[2], pair[3]});
      }
    }
  }

  // Adds the product of a stage of A and one of B. The lanes may arrive diverged.
  __device__ void MultiplyStage(const uint4* a, const uint4* b) {
    __syncwarp();
#pragma unroll
    for (int step = 0; step < kSliceSteps; ++step) {
      FragmentsOfA fragments;
      LoadA(a, step, fragments);
      MultiplyColumns(b, step, fragments, 0, Shape::kFragmentsN);
    }
  }

  // Returns an opaque 0 that is computed from accumulators of the column fragments [first, first + count). `zero` is a
  // 0 that the compiler does not know. Code that depends on the result is scheduled after the mma of these fragments.
  __device__ int ZeroAfterProducts(int zero, int first, int count) const {
    int bits = 0;
    for (const auto& fragments : accumulators) {
      for (int j = first; j < first + count; ++j) bits |= __float_as_int(fragments[j][0]);
    }
    return bits & zero;
  }

  // Calls f(row, column, first, second) for each pair of neighbouring columns, row by row. `column` is the tile's first
  // column. Passing it keeps the compiler from hoisting all column indices out of the loop over blocks.
  template <typename F>
  __device__ void ForEachPair(int32_t column, const F& f) const {
    column += first_column() + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < Shape::kFragmentsM * 2; ++i) {
      const int row = first_row() + i * 8 + lane() / 4;
#pragma unroll
      for (int j = 0; j < Shape::kFragmentsN; ++j) {
        const float (&fragment)[4] = accumulators[i / 2][j];
        f(row, column + j * 8, fragment[i % 2 * 2], fragment[i % 2 * 2 + 1]);
      }
    }
  }

  // Calls f(column, rows) for each run of columns of the lane, if permuted_column permutes the columns of B. rows(g)
  // calls g(row, values) for each row, with the kRunColumns accumulators of the run.
  template <typename F>
  __device__ void ForEachRun(int32_t column, const F& f) const {
    static_assert(Shape::kFragmentsN % 4 == 0, "a run has accumulators of four fragments");
    column += first_column() + lane() % 4 * kRunColumns;
#pragma unroll
    for (int j = 0; j < Shape::kFragmentsN; j += 4) {
      f(column + j * 8, [&](const auto& g) {
#pragma unroll
        for (int i = 0; i < Shape::kFragmentsM * 2; ++i) {
          float values[kRunColumns];
          for (int k = 0; k < kRunColumns; ++k) values[k] = accumulators[i / 2][j + k / 2][i % 2 * 2 + k % 2];
          g(first_row() + i * 8 + lane() / 4, values);
        }
      });
    }
  }

  float accumulators[Shape::kFragmentsM][Shape::kFragmentsN][4] = {};

 private:
  // The vectors per row of MN-major operands, whose elements have 16 bits: ldmatrix cannot transpose others.
  static constexpr int kRowVectorsOfA = Shape::kM / 8, kRowVectorsOfB = Shape::kN / 8;
  static_assert(kLayout == Layout::kKMajor || sizeof(T) == 2);
};

}  // namespace dcn
