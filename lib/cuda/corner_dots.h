// The dot products of accumulators with the pixels of x at the corners of samples, for the fused cotangents of offset
// and mask.
#pragma once

#include <cstdint>

#include "gather.h"
#include "gemm.h"
#include "lane_sums.h"
#include "launch.h"
#include "matrix.h"
#include "vector.h"

namespace dcn {

// A lane has two rows of corners in flight, but only one in the narrow tile, where it has half of the registers.
template <typename Tile>
constexpr int kRowsInFlight = Tile::kN == 128 ? 2 : 1;
template <typename T>
constexpr int kOctets = 8 / kChunkSize<T>;  // of a warp tile

// The accumulators of a pair of neighbouring rows of 64 columns, after the lanes of the two rows have exchanged half of
// them: lane % 8 is the chunk, of each eight chunks, that a lane has of both rows. So eight lanes read 128 consecutive
// bytes of a pixel.
struct RowPair {
  float value[2][8];

  template <typename T, typename Tile>
  __device__ RowPair(const WarpTile<T, Tile>& tile, int pair) {
    static_assert(Tile::kWarpN == 64, "two rows of a warp tile must have 16 channels for each of eight lanes");
    const bool is_odd = tile.lane() / 4 % 2;
    constexpr int kRun = kChunkSize<T>;
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      const auto& fragments = tile.accumulators[pair / 2];
      const int fragment = v / kRun * kRun + v % kRun / 2, element = pair % 2 * 2 + v % 2;
      const float first = fragments[fragment][element], last = fragments[fragment + kRun / 2][element];
      const float received = __shfl_xor_sync(kWholeWarp, is_odd ? first : last, 4);
      value[0][v] = is_odd ? received : first;
      value[1][v] = is_odd ? last : received;
    }
  }
};

// Adds the dot products of two rows with their samples' corners, for the lane's chunk of octet `octet` of the warp
// tile, with the corners of kRows rows in flight. `corners_of_row` returns the addresses of the corners. If they are
// not read, `words` take their place.
template <typename T, int kRows, typename F>
__device__ void AddDots(const RowPair& rows, int octet, const F& corners_of_row, Words (&words)[kRows][4],
                        float (&dot)[8]) {
#pragma unroll
  for (int first = 0; first < 2; first += kRows) {
    for (int row = first; row < first + kRows; ++row) {
      const CornerAddresses corners = corners_of_row(row);
      for (int corner = 0; corner < 4; ++corner) {
        load_global_if(corners.is_read, words[row - first][corner], corners.address[corner]);
      }
    }
    for (int row = first; row < first + kRows; ++row) {
      for (int corner = 0; corner < 4; ++corner) {
        for (int v = 0; v < kChunkSize<T>; v += kWordSize<T>) {
          float value[kWordSize<T>];
          WordToFloats<T>(words[row - first][corner].word[v / kWordSize<T>], value);
          for (int i = 0; i < kWordSize<T>; ++i) {
            dot[row * 4 + corner] += rows.value[row][octet * kChunkSize<T> + v + i] * value[i];
          }
        }
      }
    }
  }
}

// Computes the dot products of the accumulators with the corner pixels over `count` channels from x on, and stores them
// in `dots`, or adds them if `accumulate`. `corners` and `dots` are those of the rows of the block tile. The dot
// products of a sample that reads no corners are undefined.
template <typename T, typename Tile>
__device__ void StoreDots(const WarpTile<T, Tile>& tile, const T* x, int32_t count, const CornerSteps& steps,
                          const CornerPixels* corners, Vector<float, 4>* dots, bool accumulate) {
  const int first_channel = tile.first_column() + tile.lane() % 8 * kChunkSize<T>;
  Words words[kRowsInFlight<Tile>][4] = {};  // zeros for channels past `count`
#pragma unroll
  for (int pair = 0; pair < Tile::kFragmentsM * 2; ++pair) {
    const RowPair rows(tile, pair);
    const int first_row = tile.first_row() + pair * 8;
    float dot[8] = {};
#pragma unroll
    for (int octet = 0; octet < kOctets<T>; ++octet) {
      const int channel = first_channel + octet * 8 * kChunkSize<T>;
      const auto corners_of_row = [&](int row) {
        CornerAddresses addresses(corners[first_row + tile.lane() / 8 * 2 + row], x + channel, steps);
        addresses.is_read = addresses.is_read && channel < count;
        return addresses;
      };
      if constexpr (kOctets<T> > 1) {  // the words of another octet are no zeros
        for (auto& of_row : words) {
          for (Words& of_corner : of_row) of_corner = {};
        }
      }
      AddDots<T>(rows, octet, corners_of_row, words, dot);
    }
    float& stored = dots[first_row + tile.lane() / 4].value[tile.lane() % 4];
    const float sum = SumOverLanes(dot);
    stored = accumulate ? stored + sum : sum;
  }
}

}  // namespace dcn
