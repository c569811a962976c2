#include "aggregation/cpu_corners.h"

#include <algorithm>

#include "attributes.h"

DCN_BEGIN_TARGET
namespace {

// Enough taps to amortize the loops over them, and few enough to stay in the L1 cache.
constexpr int64_t kTaps = 192;

// Loops over taps run over a multiple of kTapPadding, because iterations beyond the last whole vector are slow. What
// they compute for the taps that do not exist is not used.
constexpr int64_t kTapPadding = 16;
int64_t PaddedTaps(int64_t taps) { return (taps + kTapPadding - 1) / kTapPadding * kTapPadding; }

// Calls locate(tap, location), whose result is an AxisLocation.
template <typename A, typename LocateTap>
DCN_INLINE void LocateTapsOnAxis(int64_t taps, TapAxis<A>& axis, const LocateTap& locate) {
  const A* const location = axis.location.data();
  int32_t *const first = axis.pixel[0].data(), *const second = axis.pixel[1].data();
  A* const fraction = axis.fraction.data();
  DCN_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < taps; ++i) {
    const AxisLocation<A> located = locate(i, location[i]);
    first[i] = located.pixel[0];
    second[i] = located.pixel[1];
    fraction[i] = located.fraction;
  }
}

}  // namespace

template <typename A>
TapCorners<A>::TapCorners(const AggregationSizes& sizes, const Block& block, const BlockArray& array)
    : sizes_(sizes),
      block_pixels_(block.pixels),
      max_heads_(std::clamp<int64_t>(kTaps / std::max(sizes.taps, 1), 1, std::max<int64_t>(block.heads, 1))) {
  const bool is_window = sizes.sampling == SamplingMethod::kWindow;
  for (int64_t head = 0; head < max_heads_; ++head) {
    for (int32_t l = 0; l < sizes.num_levels; ++l) {
      const Level& level = sizes.levels[l];
      for (int32_t tap = 0; tap < level.taps; ++tap) {
        head_offset_.push_back(head * array.head_stride);
        first_pixel_.push_back(level.first_pixel - block.first_pixel);
        row_stride_.push_back(level.width * array.pixel_stride);
        const int32_t cell = is_window ? CellOfTap(sizes.window, sizes.remove_center, tap) : 0;
        for (int i = 0; i < 2; ++i) {
          const int32_t size = i == 0 ? level.height : level.width, rows = std::max(sizes.window.kernel[0], 1);
          axes_[i].size.push_back(size);
          axes_[i].distance.push_back(CenterDistance(sizes.window, i, i == 0 ? cell % rows : cell / rows));
          axes_[i].derivative.push_back(is_window ? A(sizes.offset_scale) : A(size));
        }
      }
    }
  }
  const int64_t taps = PaddedTaps(int64_t(head_offset_.size()));
  for (auto* of_tap : {&head_offset_, &first_pixel_, &row_stride_}) of_tap->resize(taps);
  for (TapAxis<A>& axis : axes_) {
    for (auto* of_tap : {&axis.size, &axis.distance, &axis.pixel[0], &axis.pixel[1]}) of_tap->resize(taps);
    axis.location.resize(taps);
    axis.fraction.resize(taps);
  }
  tap_weight_.resize(taps);
  for (auto& address : address_) address.resize(taps);
  for (auto& weight : weight_) weight.resize(taps);
}

template <typename A>
void TapCorners<A>::Locate(const BlockArray& array, const int32_t* origin, int64_t query, int64_t head, int64_t heads,
                           const A* locations, const A* weights) {
  const int64_t count = heads * sizes_.taps;
  A *const location_y = axes_[0].location.data(), *const location_x = axes_[1].location.data();
  DCN_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) {
    location_x[i] = locations[2 * i];
    location_y[i] = locations[2 * i + 1];
  }
  std::copy_n(weights, count, tap_weight_.begin());
  const int64_t rows_and_columns[] = {query / sizes_.columns, query % sizes_.columns};
  for (int i = 0; i < 2; ++i)
    LocateAxis(PaddedTaps(count), axes_[i], WindowCenter(sizes_.window, i, origin[i] + rows_and_columns[i]));
  AddressCorners(PaddedTaps(count), array, array.first + head * array.head_stride);
  WeighCorners(PaddedTaps(count));
}

// `center` is that of the query's window.
template <typename A>
void TapCorners<A>::LocateAxis(int64_t taps, TapAxis<A>& axis, int64_t center) {
  const int32_t *const size = axis.size.data(), *const distance = axis.distance.data();
  if (sizes_.sampling == SamplingMethod::kBilinear) {
    LocateTapsOnAxis(taps, axis, [&](int64_t i, A location) DCN_INLINED {
      return LocateOnAxis(NormalizedPosition(location, size[i]), size[i], false);
    });
  } else if (sizes_.sampling == SamplingMethod::kDiscrete) {
    LocateTapsOnAxis(taps, axis, [&](int64_t i, A location) DCN_INLINED { return LocateDiscrete(location, size[i]); });
  } else {
    const A scale = A(sizes_.offset_scale);
    LocateTapsOnAxis(taps, axis, [&](int64_t i, A location) DCN_INLINED {
      return LocateOnAxis(WindowPosition(center, distance[i], location, scale), size[i], false);
    });
  }
}

// `first` is the address of the first located head.
template <typename A>
void TapCorners<A>::AddressCorners(int64_t taps, const BlockArray& array, uintptr_t first) {
  const uint64_t pixels = uint64_t(block_pixels_);
  const uintptr_t unread = array.unread;
  const int64_t pixel_stride = array.pixel_stride;
  const int32_t *const top = axes_[0].pixel[0].data(), *const bottom = axes_[0].pixel[1].data();
  const int32_t *const left = axes_[1].pixel[0].data(), *const right = axes_[1].pixel[1].data();
  const int32_t* const width = axes_[1].size.data();
  const int64_t *const row_stride = row_stride_.data(), *const first_pixel = first_pixel_.data();
  const int64_t* const head_offset = head_offset_.data();
  uintptr_t* const address[] = {address_[0].data(), address_[1].data(), address_[2].data(), address_[3].data()};
  DCN_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < taps; ++i) {
    // The factors have 32 bits, because a product of 64-bit ones takes several instructions.
    const int64_t pixel = int64_t{top[i]} * width[i] + left[i] + first_pixel[i], next = pixel + width[i];
    const uintptr_t upper = first + head_offset[i] + pixel * pixel_stride, lower = upper + row_stride[i];
    // A corner outside the block is recognized by its pixel.
    const auto corner = [&](int32_t row, int32_t column, int64_t index, uintptr_t read) DCN_INLINED {
      const bool is_read = ((row | column) >= 0) & (uint64_t(index) < pixels);
      return is_read ? read : unread;
    };
    address[0][i] = corner(top[i], left[i], pixel, upper);
    address[1][i] = corner(top[i], right[i], pixel + 1, upper + pixel_stride);
    address[2][i] = corner(bottom[i], left[i], next, lower);
    address[3][i] = corner(bottom[i], right[i], next + 1, lower + pixel_stride);
  }
}

template <typename A>
void TapCorners<A>::WeighCorners(int64_t taps) {
  const A *const y = axes_[0].fraction.data(), *const x = axes_[1].fraction.data();
  const A* const tap_weight = tap_weight_.data();
  A* const weight[] = {weight_[0].data(), weight_[1].data(), weight_[2].data(), weight_[3].data()};
  DCN_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < taps; ++i) {
    const A left = (1 - x[i]) * tap_weight[i], right = x[i] * tap_weight[i];
    weight[0][i] = (1 - y[i]) * left;
    weight[1][i] = (1 - y[i]) * right;
    weight[2][i] = y[i] * left;
    weight[3][i] = y[i] * right;
  }
}

template class TapCorners<float>;
template class TapCorners<double>;

DCN_END_TARGET
