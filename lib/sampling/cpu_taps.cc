#include "sampling/cpu_taps.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attributes.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// Calls body with `value`, one of the first kCount of its type, as a constant, so that loops in it have no branches.
template <int kCount, typename Enum, typename Body>
DCN_INLINE void WithConstant(Enum value, const Body& body) {
  if constexpr (kCount > 0) {
    if (int(value) == kCount - 1) {
      body(std::integral_constant<Enum, Enum(kCount - 1)>());
    } else {
      WithConstant<kCount - 1>(value, body);
    }
  }
}

template <int N>
using Integers = Vector<int32_t, N>;

// A comparison of vectors, as wide as pixels.
template <int N, typename Comparison>
DCN_INLINE Integers<N> Mask(const Comparison& comparison) {
  return __builtin_convertvector(comparison, Integers<N>);
}

template <int N>
DCN_INLINE bool Any(const Integers<N>& mask) {
  const auto bytes = __builtin_convertvector(mask, Vector<int8_t, N>);
  uint64_t words[(N + 7) / 8] = {}, any = 0;
  std::memcpy(words, &bytes, N);
  for (const uint64_t word : words) any |= word;
  return any != 0;
}

// FoldPixel, without its last step, of a pixel at most one period outside.
template <int N>
DCN_INLINE Integers<N> FoldOnce(const Integers<N>& index, int32_t size, Outside outside) {
  const Integers<N> is_below = index < 0, is_above = index >= size;
  if (outside < Outside::kWrap) return index;
  if (outside == Outside::kWrap) return index + (is_below & size) - (is_above & size);
  const int32_t edge = outside == Outside::kReflect;
  return is_below ? -edge - index : is_above ? 2 * size - 2 + edge - index : index;
}

// The pixels of neighbouring points on one axis.
template <int N, int kAxisTaps>
struct VectorAxis {
  Integers<N> pixel[kAxisTaps], is_read[kAxisTaps];
};

// Locates the points p, p + 1, … of a block on an axis: at the nearest pixel, halves away from zero, or between two.
// The results are those of LocateTaps, FoldPixel and TapWeight. needs_fallback: the lanes of points whose taps are
// wrong, because they are NaN or farther outside than FoldOnce reaches.
template <int kAxisTaps, int N, typename A>
DCN_INLINE VectorAxis<N, kAxisTaps> LocateVector(BlockAxis<A>& axis, int p, int32_t size, int32_t pixel_stride,
                                                 const SamplingRules& rules, Integers<N>& needs_fallback) {
  using V = Vector<A, N>;
  const V position = Load<N>(axis.position + p), limit = V{} + A(rules.repeats() ? kFar : size + kMaxAxisTaps);
  const V below = position < limit ? position : limit, bounded = below > -limit ? below : -limit;
  needs_fallback |= Mask<N>(position != position);
  const Integers<N> whole = __builtin_convertvector(bounded, Integers<N>);
  const V rest = bounded - __builtin_convertvector(whole, V);
  const Integers<N> first =
      kAxisTaps == 2 ? whole + Mask<N>(rest < A(0)) : whole - Mask<N>(rest >= A(0.5)) + Mask<N>(rest <= A(-0.5));
  const V fraction = bounded - __builtin_convertvector(first, V), one = V{} + A(1);
  Store<N>(fraction, axis.fraction + p);
  Store<N>(kAxisTaps == 2 ? one - fraction : one, axis.weight[0] + p);
  if constexpr (kAxisTaps == 2) Store<N>(fraction, axis.weight[1] + p);
  const V slope = Load<N>(axis.slope + p);
  Store<N>((bounded < limit) & (bounded > -limit) ? slope : V{}, axis.slope + p);
  VectorAxis<N, kAxisTaps> taps;
  for (int tap = 0; tap < kAxisTaps; ++tap) {
    const Integers<N> index = FoldOnce<N>(first + tap, size, rules.outside), last = Integers<N>{} + (size - 1);
    const Integers<N> raised = index > 0 ? index : 0, inside = raised < last ? raised : last;
    taps.is_read[tap] = rules.outside == Outside::kClip ? Integers<N>{} - 1 : index == inside;
    if (rules.outside >= Outside::kWrap) needs_fallback |= index != inside;
    taps.pixel[tap] = inside * pixel_stride;
  }
  return taps;
}

}  // namespace

template <typename A>
SampleTaps<A>::SampleTaps(const SamplingSizes& sizes) : sizes_(sizes), taps_(sizes.taps()) {
  for (int32_t tap = 0; tap < taps_; ++tap) {
    int32_t rest = tap;
    for (int axis = sizes.dims; axis-- > 0; rest /= sizes.rules.taps()) {
      tap_of_axis_[tap][axis] = int8_t(rest % sizes.rules.taps());
    }
  }
  pixel_.resize(taps_ * kBlockPoints);
  loaded_.resize(taps_ * kBlockPoints);
  weight_.resize(taps_ * kBlockPoints);
}

template <typename A>
void SampleTaps<A>::Locate(const Coordinates<const A>& locations, int64_t batch, int64_t first, int count) {
  batch_ = batch;
  first_ = first;
  count_ = count;
  for (int i = 0; i < sizes_.dims; ++i) {
    const A* const coordinate = locations.array[i] + sizes_.coordinate(batch, first, i);
    const AxisScale<A> scale(sizes_.rules.units, sizes_.size[i]);
    BlockAxis<A>& axis = axes_[i];
    WithConstant<kMaxAxes + 1>(int(sizes_.coordinate_stride()), [&](auto stride) DCN_INLINED {
      for (int p = 0; p < count; ++p) axis.position[p] = scale.position(coordinate[p * stride]);
    });
    std::fill(axis.position + count, axis.position + kBlockPoints, A(0));
    std::fill_n(axis.slope, kBlockPoints, scale.scale);
    FoldAxis(axis, sizes_.size[i]);
  }
  const Interpolation interpolation = sizes_.rules.interpolation;
  if (interpolation == Interpolation::kLinear && LocateVectors<2>()) return;
  if (interpolation == Interpolation::kRounded && LocateVectors<1>()) return;
  std::fill_n(has_pairs_, kBlockPoints, false);
  int32_t pixel_stride = 1;
  for (int i = sizes_.dims; i-- > 0; pixel_stride *= sizes_.size[i]) {
    LocateAxis(axes_[i], sizes_.size[i], pixel_stride);
  }
  Combine();
}

template <typename A>
void SampleTaps<A>::FoldAxis(BlockAxis<A>& axis, int32_t size) {
  const SamplingRules rules = sizes_.rules;
  WithConstant<3>(rules.fold, [&](auto fold) DCN_INLINED {
    if (fold == Fold::kNone) return;
    DCN_INDEPENDENT_ITERATIONS
    for (int p = 0; p < kBlockPoints; ++p) {
      const AxisPosition<A> folded = FoldPosition(axis.position[p], size, rules.units, fold);
      axis.position[p] = folded.position;
      axis.slope[p] *= folded.slope;
    }
  });
}

// Locates all points of a block by vectors. Returns whether that is possible; otherwise LocateAxis does.
template <typename A>
template <int kAxisTaps>
bool SampleTaps<A>::LocateVectors() {
  if (sizes_.pixels() == 0) return false;
  return sizes_.dims == 1   ? LocateVectorsOf<1, kAxisTaps>()
         : sizes_.dims == 2 ? LocateVectorsOf<2, kAxisTaps>()
                            : LocateVectorsOf<3, kAxisTaps>();
}

template <typename A>
template <int kDims, int kAxisTaps>
bool SampleTaps<A>::LocateVectorsOf() {
  constexpr int N = kVectorBytes / sizeof(A), kTaps = kAxisTaps == 1 ? 1 : 1 << kDims;
  const SamplingRules rules = sizes_.rules;
  Integers<N> needs_fallback = {};
  for (int p = 0; p < kBlockPoints; p += N) {
    VectorAxis<N, kAxisTaps> axes[kDims];
    int32_t pixel_stride = 1;
    for (int i = kDims; i-- > 0; pixel_stride *= sizes_.size[i]) {
      axes[i] = LocateVector<kAxisTaps, N>(axes_[i], p, sizes_.size[i], pixel_stride, rules, needs_fallback);
    }
    Integers<N> has_no_pair = axes[kDims - 1].pixel[kAxisTaps - 1] != axes[kDims - 1].pixel[0] + 1;
    Store<N>(Vector<A, N>{}, unread_ + p);
    DCN_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) {
      Integers<N> pixel = {}, is_read = pixel - 1;
      Vector<A, N> weight;
      for (int i = 0; i < kDims; ++i) {
        const int axis_tap = kAxisTaps == 1 ? 0 : tap >> (kDims - 1 - i) & 1;
        const Vector<A, N> of_axis = Load<N>(axes_[i].weight[axis_tap] + p);
        pixel += axes[i].pixel[axis_tap];
        is_read &= axes[i].is_read[axis_tap];
        weight = i ? weight * of_axis : of_axis;
      }
      has_no_pair |= ~is_read;
      StoreUnconverted<N>(pixel, &loaded_[tap * kBlockPoints + p]);
      StoreUnconverted<N>(is_read ? pixel : Integers<N>{} - 1, &pixel_[tap * kBlockPoints + p]);
      Store<N>(weight, &weight_[tap * kBlockPoints + p]);
    }
    has_pairs_[p] = !Any<N>(has_no_pair);
  }
  return !Any<N>(needs_fallback);
}

template <typename A>
void SampleTaps<A>::LocateAxis(BlockAxis<A>& axis, int32_t size, int32_t pixel_stride) {
  const SamplingRules rules = sizes_.rules;
  int32_t is_read[kBlockPoints];  // as wide as pixels, so that compilers vectorize the loops
  WithConstant<4>(rules.interpolation, [&](auto interpolation) DCN_INLINED {
    SamplingRules constant = rules;
    constant.interpolation = interpolation;
    DCN_INDEPENDENT_ITERATIONS
    for (int p = 0; p < kBlockPoints; ++p) {
      const AxisTaps<A> taps = LocateTaps(axis.position[p], size, constant);
      axis.first[p] = taps.first;
      axis.fraction[p] = taps.fraction;
    }
    // GCC vectorizes the loops with the conditions only by themselves.
    DCN_INDEPENDENT_ITERATIONS
    for (int p = 0; p < kBlockPoints; ++p) {
      axis.slope[p] = LocateTaps(axis.position[p], size, constant).is_near ? axis.slope[p] : A(0);
    }
    DCN_INDEPENDENT_ITERATIONS
    for (int p = 0; p < kBlockPoints; ++p) is_read[p] = LocateTaps(axis.position[p], size, constant).is_read;
    for (int tap = 0; tap < constant.taps(); ++tap) {
      DCN_INDEPENDENT_ITERATIONS
      for (int p = 0; p < kBlockPoints; ++p) axis.weight[tap][p] = TapWeight(interpolation(), tap, axis.fraction[p]);
    }
  });
  WithConstant<5>(rules.outside, [&](auto outside) DCN_INLINED {
    for (int tap = 0; tap < rules.taps(); ++tap) {
      DCN_INDEPENDENT_ITERATIONS
      for (int p = 0; p < kBlockPoints; ++p) {
        const int32_t pixel = FoldPixel(axis.first[p] + tap, size, outside);
        const uint32_t index = uint32_t(pixel) * uint32_t(pixel_stride);
        axis.pixel[tap][p] = ((is_read[p] != 0) & (pixel >= 0)) ? int32_t(index) : -1;
      }
    }
  });
}

// Combines the taps of the axes into those of the samples.
template <typename A>
void SampleTaps<A>::Combine() {
  std::fill_n(unread_, kBlockPoints, A(0));
  for (int i = 0; i < sizes_.dims; ++i) {
    for (int p = 0; p < kBlockPoints; ++p) unread_[p] += axes_[i].fraction[p] - axes_[i].fraction[p];
  }
  // A NaN coordinate has no pixel on its axis.
  for (int32_t tap = 0; tap < taps_; ++tap) {
    int32_t* const pixel = &pixel_[tap * kBlockPoints];
    A* const weight = &weight_[tap * kBlockPoints];
    const int32_t* first = axes_[0].pixel[tap_of_axis_[tap][0]];
    const A* first_weight = axes_[0].weight[tap_of_axis_[tap][0]];
    if (sizes_.dims == 1) {
      std::copy_n(first, kBlockPoints, pixel);
      std::copy_n(first_weight, kBlockPoints, weight);
    }
    for (int i = 1; i < sizes_.dims; ++i, first = pixel, first_weight = weight) {
      const int32_t* const second = axes_[i].pixel[tap_of_axis_[tap][i]];
      const A* const second_weight = axes_[i].weight[tap_of_axis_[tap][i]];
      DCN_INDEPENDENT_ITERATIONS
      for (int p = 0; p < kBlockPoints; ++p) {
        pixel[p] = (first[p] | second[p]) < 0 ? -1 : first[p] + second[p];
        weight[p] = first_weight[p] * second_weight[p];
      }
    }
    for (int p = 0; p < kBlockPoints; ++p) loaded_[tap * kBlockPoints + p] = std::max(pixel[p], 0);
  }
}

template <typename A>
void SampleTaps<A>::Differentiate(const A* dots, const Coordinates<A>& d_locations) const {
  for (int i = 0; i < sizes_.dims; ++i) {
    const BlockAxis<A>& axis = axes_[i];
    A slope[kMaxAxisTaps][kBlockPoints], sum[kBlockPoints] = {};
    WithConstant<4>(sizes_.rules.interpolation, [&](auto interpolation) DCN_INLINED {
      for (int tap = 0; tap < sizes_.rules.taps(); ++tap) {
        for (int p = 0; p < kBlockPoints; ++p) slope[tap][p] = TapSlope<A>(interpolation, tap, axis.fraction[p]);
      }
    });
    for (int32_t tap = 0; tap < taps_; ++tap) {
      A product[kBlockPoints];
      std::copy_n(slope[tap_of_axis_[tap][i]], kBlockPoints, product);
      for (int other = 0; other < sizes_.dims; ++other) {
        if (other == i) continue;
        const A* const weight = axes_[other].weight[tap_of_axis_[tap][other]];
        for (int p = 0; p < kBlockPoints; ++p) product[p] *= weight[p];
      }
      for (int p = 0; p < kBlockPoints; ++p) sum[p] += product[p] * dots[tap * kBlockPoints + p];
    }
    A* const out = d_locations.array[i] + sizes_.coordinate(batch_, first_, i);
    const int64_t stride = sizes_.coordinate_stride();
    for (int p = 0; p < count_; ++p) out[p * stride] = sum[p] * axis.slope[p] + unread_[p];
  }
}

template class SampleTaps<float>;
template class SampleTaps<double>;

DCN_END_TARGET
