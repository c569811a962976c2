// Deformable aggregation: the operator of multi-scale deformable attention, DCNv3 and DCNv4. Each backend implements
// these functions for its own Device. They return nullptr, or an error message.
//
//   out[b, q, m, :] = sum over taps t of weights[b, q, m, t] · sample(value[b, level of t, m, :], position of t)
//
// b is a batch, q a query, m a head. bilinear.h defines a sample; geometry.h defines positions and levels.
// The weight multiplies the sample also where the sample reads nothing: a weight that is NaN gives NaN.
#pragma once

#include <cstdint>

#include "aggregation/geometry.h"
#include "dtype.h"
#include "host_device.h"
#include "scatter/tables.h"

namespace dcn {

struct Device;

struct AggregationSizes {
  int64_t batches, heads, channels;  // channels of a head
  int64_t pixels;                    // of all levels
  int64_t rows, columns;             // of the queries that a call covers; one column for a list of queries
  int32_t taps;                      // of all levels, per query and head
  int32_t num_levels;
  Level levels[kMaxLevels];
  SamplingMethod sampling;
  // In SamplingMethod::kWindow, which has one level:
  bool remove_center;  // the tap in the middle of the window is left out
  Window window;       // not circular
  double offset_scale;

  DCN_HOST_DEVICE int64_t queries() const { return rows * columns; }
};

// A, the accumulator type, is float, or double for a DType of float64.
struct Taps {
  const void* locations;  // A[batches, rows, columns, heads, taps, 2]: x before y
  const void* weights;    // A[batches, rows, columns, heads, taps]
  const int32_t* origin;  // [2]: the row and column of the first query, among all queries, in SamplingMethod::kWindow
};

// In the functions below, DType is the type T of value and out, and of the cotangent of out.

// value: T[batches, pixels, heads, channels]; out: T[batches, rows, columns, heads, channels].
const char* Aggregate(Device&, DType, const AggregationSizes&, const Taps&, const void* value, void* out);

// d_value: the cotangent of value, of type A if it is wide, else T. A Device that sorts (kSorts) sorts the samples of
// as many heads at a time, over all batches, as there are tables. They have room for as many rows as samples and cells.
const char* ValueCotangent(Device&, DType, const AggregationSizes&, const Taps&, const void* d_out, bool is_wide,
                           void* d_value, const CsrTables&);

// The cotangents of locations and weights, of type A and in their shapes. Each may be null.
const char* TapCotangents(Device&, DType, const AggregationSizes&, const Taps&, const void* value, const void* d_out,
                          void* d_locations, void* d_weights);

}  // namespace dcn
