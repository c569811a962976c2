// What one call of the fused convolution computes, and how its output is divided into tiles: by shapes only, so that
// results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fused_convolution.h"

namespace dcn {

struct FusedCall {
  Sizes sizes;
  Product product;
  Positions positions;

  int64_t group_channels() const { return sizes.channels / product.groups; }
};

// A rectangle of output pixels.
struct OutputTile {
  int64_t image, row, column, rows, columns;

  int64_t pixels() const { return rows * columns; }
};

// Divides each image of the output into tiles of at most `pixels` pixels, which are as alike as possible.
class Tiling {
 public:
  Tiling(const Sizes& sizes, int64_t pixels) : images_(sizes.images), height_(sizes.rows), width_(sizes.columns) {
    columns_ = Part(width_, std::min(kColumns, pixels));
    rows_ = Part(height_, std::max<int64_t>(1, pixels / columns_));
    across_ = (width_ + columns_ - 1) / columns_;
    down_ = (height_ + rows_ - 1) / rows_;
  }

  int64_t count() const { return images_ * image_tiles(); }
  int64_t image_tiles() const { return down_ * across_; }
  int64_t max_pixels() const { return rows_ * columns_; }

  OutputTile operator[](int64_t tile) const {
    const int64_t row = tile / across_ % down_ * rows_, column = tile % across_ * columns_;
    return {tile / image_tiles(), row, column, std::min(rows_, height_ - row), std::min(columns_, width_ - column)};
  }

 private:
  static constexpr int64_t kColumns = 21;  // neighbouring samples share pixels, so tiles are not single rows

  static int64_t Part(int64_t size, int64_t limit) {
    const int64_t parts = std::max<int64_t>(1, (size + limit - 1) / limit);
    return std::max<int64_t>(1, (size + parts - 1) / parts);
  }

  int64_t images_, height_, width_, rows_, columns_, down_, across_;
};

}  // namespace dcn
