#include "aggregation_positions.h"

#include <algorithm>

#include "attributes.h"

DCN_BEGIN_TARGET
namespace {

// Enough taps to amortize the loops over them, and few enough to stay in the L1 cache.
constexpr int64_t kTaps = 192;
// Loops over taps run over whole blocks, because iterations beyond the last whole vector are slow. What they compute
// for the taps that do not exist is not used.
constexpr int64_t kBlock = 16;

// In the loops below, only what is written is declared __restrict: it does not overlap what is read.

// Calls locate(axis, tap, location), whose result is an AxisLocation.
template <typename A, typename LocateTap>
DCN_INLINE void LocateOnAxes(int64_t blocks, const A* locations, int32_t* __restrict top, int32_t* __restrict bottom,
                             A* __restrict y, int32_t* __restrict left, int32_t* __restrict right, A* __restrict x,
                             const LocateTap& locate) {
  for (int64_t i = 0; i < blocks * kBlock; ++i) {
    const A location_x = locations[2 * i], location_y = locations[2 * i + 1];
    const AxisLocation<A> vertical = locate(0, i, location_y), horizontal = locate(1, i, location_x);
    top[i] = vertical.pixel[0];
    bottom[i] = vertical.pixel[1];
    y[i] = vertical.fraction;
    left[i] = horizontal.pixel[0];
    right[i] = horizontal.pixel[1];
    x[i] = horizontal.fraction;
  }
}

// `query`: the row and the column of the query.
template <typename A>
void LocateTaps(const AggregationSizes& sizes, const int64_t (&query)[2], int64_t blocks,
                const int32_t* const (&size)[2], const int32_t* const (&distance)[2], const A* locations, int32_t* top,
                int32_t* bottom, A* y, int32_t* left, int32_t* right, A* x) {
  const auto run = [&](const auto& locate)
                       DCN_INLINED { LocateOnAxes(blocks, locations, top, bottom, y, left, right, x, locate); };
  const int32_t* const sizes_of_taps[] = {size[0], size[1]};
  const int32_t* const distances[] = {distance[0], distance[1]};
  if (sizes.sampling == SamplingMethod::kBilinear) {
    run([&](int axis, int64_t i, A location) DCN_INLINED {
      const int32_t length = sizes_of_taps[axis][i];
      return LocateOnAxis(NormalizedPosition(location, length), length, false);
    });
  } else if (sizes.sampling == SamplingMethod::kDiscrete) {
    run([&](int axis, int64_t i, A location) DCN_INLINED { return LocateDiscrete(location, sizes_of_taps[axis][i]); });
  } else {
    const A scale = A(sizes.window.offset_scale);
    const int64_t center[] = {sizes.window.center(0, query[0]), sizes.window.center(1, query[1])};
    run([&](int axis, int64_t i, A location) DCN_INLINED {
      const A position = WindowPosition(center[axis], distances[axis][i], location, scale);
      return LocateOnAxis(position, sizes_of_taps[axis][i], false);
    });
  }
}

// `pixels` is the number of the block's pixels, by which corners outside the block are recognized. `row_stride` is in
// bytes.
void AddressCorners(const BlockArray& block_array, uint64_t pixels, int64_t blocks, const int32_t* top,
                    const int32_t* bottom, const int32_t* left, const int32_t* right, const int32_t* width,
                    const int64_t* row_stride, const int64_t* first_pixel, const int64_t* head_offset,
                    uintptr_t* __restrict top_left, uintptr_t* __restrict top_right, uintptr_t* __restrict bottom_left,
                    uintptr_t* __restrict bottom_right) {
  const BlockArray array = block_array;
  for (int64_t i = 0; i < blocks * kBlock; ++i) {
    // Of 32-bit factors, because a product of 64-bit ones takes several instructions.
    const int64_t pixel = int64_t{top[i]} * width[i] + left[i] + first_pixel[i], next = pixel + width[i];
    const uintptr_t first = array.first + head_offset[i] + pixel * array.pixel_stride, second = first + row_stride[i];
    const auto corner = [&](int32_t row, int32_t column, int64_t index, uintptr_t address) DCN_INLINED {
      const bool is_read = ((row | column) >= 0) & (uint64_t(index) < pixels);
      return is_read ? address : array.unread;
    };
    top_left[i] = corner(top[i], left[i], pixel, first);
    top_right[i] = corner(top[i], right[i], pixel + 1, first + array.pixel_stride);
    bottom_left[i] = corner(bottom[i], left[i], next, second);
    bottom_right[i] = corner(bottom[i], right[i], next + 1, second + array.pixel_stride);
  }
}

template <typename A>
void WeighCorners(int64_t blocks, const A* y, const A* x, const A* tap_weight, A* __restrict top_left,
                  A* __restrict top_right, A* __restrict bottom_left, A* __restrict bottom_right) {
  for (int64_t i = 0; i < blocks * kBlock; ++i) {
    const A left = (1 - x[i]) * tap_weight[i], right = x[i] * tap_weight[i];
    top_left[i] = (1 - y[i]) * left;
    top_right[i] = (1 - y[i]) * right;
    bottom_left[i] = y[i] * left;
    bottom_right[i] = y[i] * right;
  }
}

}  // namespace

template <typename A>
TapCorners<A>::TapCorners(const AggregationSizes& sizes, const Block& block, const BlockArray& array)
    : sizes_(sizes),
      block_pixels_(block.pixels),
      max_heads_(std::clamp<int64_t>(kTaps / std::max(sizes.taps, 1), 1, std::max<int64_t>(block.heads, 1))) {
  const bool window = sizes.sampling == SamplingMethod::kWindow;
  for (int64_t head = 0; head < max_heads_; ++head) {
    for (int32_t l = 0; l < sizes.num_levels; ++l) {
      const Level& level = sizes.levels[l];
      for (int32_t tap = 0; tap < level.taps; ++tap) {
        head_offset_.push_back(head * array.head_stride);
        first_pixel_.push_back(level.first_pixel - block.first_pixel);
        row_stride_.push_back(level.width * array.pixel_stride);
        for (int axis = 0; axis < 2; ++axis) {
          const int32_t size = axis == 0 ? level.height : level.width;
          size_[axis].push_back(size);
          distance_[axis].push_back(window ? int32_t(sizes.window.distance(axis, tap)) : 0);
          derivative_[axis].push_back(window ? A(sizes.window.offset_scale) : A(size));
        }
      }
    }
  }
  const size_t taps = (head_offset_.size() + kBlock - 1) / kBlock * kBlock;
  for (auto* array : {&head_offset_, &first_pixel_, &row_stride_}) array->resize(taps);
  for (int axis = 0; axis < 2; ++axis) {
    for (auto& neighbour : pixel_[axis]) neighbour.resize(taps);
    fraction_[axis].resize(taps);
    size_[axis].resize(taps);
    distance_[axis].resize(taps);
  }
  for (auto& address : address_) address.resize(taps);
  locations_.resize(2 * taps);
  tap_weight_.resize(taps);
  for (auto& weight : weight_) weight.resize(taps);
}

template <typename A>
void TapCorners<A>::Locate(const BlockArray& block_array, const int32_t* origin, int64_t query, int64_t head,
                           int64_t heads, const A* locations, const A* weights) {
  const int64_t count = heads * sizes_.taps, blocks = (count + kBlock - 1) / kBlock;
  std::copy_n(locations, 2 * count, locations_.begin());
  std::copy_n(weights, count, tap_weight_.begin());
  int32_t *const top = pixel_[0][0].data(), *const bottom = pixel_[0][1].data();
  int32_t *const left = pixel_[1][0].data(), *const right = pixel_[1][1].data();
  A *const y = fraction_[0].data(), *const x = fraction_[1].data();
  LocateTaps(sizes_, {origin[0] + query / sizes_.columns, origin[1] + query % sizes_.columns}, blocks,
             {size_[0].data(), size_[1].data()}, {distance_[0].data(), distance_[1].data()}, locations_.data(), top,
             bottom, y, left, right, x);
  BlockArray array = block_array;
  array.first += head * array.head_stride;
  AddressCorners(array, block_pixels_, blocks, top, bottom, left, right, size_[1].data(), row_stride_.data(),
                 first_pixel_.data(), head_offset_.data(), address_[0].data(), address_[1].data(), address_[2].data(),
                 address_[3].data());
  WeighCorners(blocks, y, x, tap_weight_.data(), weight_[0].data(), weight_[1].data(), weight_[2].data(),
               weight_[3].data());
}

template class TapCorners<float>;
template class TapCorners<double>;

DCN_END_TARGET
