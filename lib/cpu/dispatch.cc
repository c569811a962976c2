// The operators' functions, of which each instruction set has its own: calls those of this processor's.
#include "aggregation/aggregation.h"
#include "deform_conv/deform_conv.h"
#include "instruction_sets.h"
#include "roi_pool/roi_pool.h"
#include "sampling/sampling.h"

namespace dcn {
namespace {

// clang-format off
#define DCN_OPERATORS(OPERATOR)                                                                 \
  OPERATOR(Aggregate) OPERATOR(ValueCotangent) OPERATOR(TapCotangents)                          \
  OPERATOR(SampleColumns) OPERATOR(SampleTangents) OPERATOR(OffsetCotangent) OPERATOR(XCotangent) \
  OPERATOR(Pool) OPERATOR(PoolXCotangent) OPERATOR(PoolOffsetCotangent)                     \
  OPERATOR(MaxPool) OPERATOR(MaxPoolArgmax) OPERATOR(MaxPoolXCotangent)                     \
  OPERATOR(Sample) OPERATOR(SamplingXCotangent) OPERATOR(SamplingLocationsCotangent)
// clang-format on

struct Operators {
#define DCN_MEMBER(name) decltype(dcn::name)* name;
  DCN_OPERATORS(DCN_MEMBER)
};

}  // namespace

#define DCN_DECLARE(name) decltype(dcn::name) name;
#define DCN_ADDRESS(name) name,
#define DCN_DEFINE_OPERATORS(set)                                       \
  namespace set {                                                       \
  DCN_OPERATORS(DCN_DECLARE)                                            \
  static constexpr Operators kOperators = {DCN_OPERATORS(DCN_ADDRESS)}; \
  }
DCN_OPERATOR_SETS(DCN_DEFINE_OPERATORS)

static const Operators& Best() {
#define DCN_OPERATORS_FOR(set) &DCN_TABLE_##set(DCN_OPERATORS_OF)::kOperators,
  static constexpr const Operators* kTable[] = {DCN_INSTRUCTION_SETS(DCN_OPERATORS_FOR)};
  return *kTable[int(BestInstructionSet())];
}

int64_t MinWorkspaceSize(DType, const AggregationSizes&) { return 0; }
int64_t MinWorkspaceSize(DType, const SamplingSizes&) { return 0; }

const char* Aggregate(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps, const void* value,
                      void* out) {
  return Best().Aggregate(device, dtype, sizes, taps, value, out);
}

const char* ValueCotangent(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps,
                           const void* d_out, bool is_wide, void* d_value, int32_t* workspace, int64_t workspace_size) {
  return Best().ValueCotangent(device, dtype, sizes, taps, d_out, is_wide, d_value, workspace, workspace_size);
}

const char* TapCotangents(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps,
                          const void* value, const void* d_out, void* d_locations, void* d_weights) {
  return Best().TapCotangents(device, dtype, sizes, taps, value, d_out, d_locations, d_weights);
}

const char* SampleColumns(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                          void* columns) {
  return Best().SampleColumns(device, dtype, sizes, positions, x, columns);
}

const char* SampleTangents(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                           const Tangents& tangents, const void* x, bool columns_requested, void* columns) {
  return Best().SampleTangents(device, dtype, sizes, positions, tangents, x, columns_requested, columns);
}

const char* OffsetCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                            const void* d_columns, void* d_offset, void* d_mask, void* columns) {
  return Best().OffsetCotangent(device, dtype, sizes, positions, x, d_columns, d_offset, d_mask, columns);
}

const char* XCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                       const void* d_columns, void* d_x) {
  return Best().XCotangent(device, dtype, sizes, positions, d_columns, d_x);
}

const char* Pool(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x, void* pooled) {
  return Best().Pool(device, dtype, sizes, rois, x, pooled);
}

const char* PoolXCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* d_pooled,
                           void* d_x) {
  return Best().PoolXCotangent(device, dtype, sizes, rois, d_pooled, d_x);
}

const char* PoolOffsetCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                                const void* d_pooled, void* d_offset) {
  return Best().PoolOffsetCotangent(device, dtype, sizes, rois, x, d_pooled, d_offset);
}

const char* MaxPool(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                    void* pooled) {
  return Best().MaxPool(device, dtype, sizes, rois, x, pooled);
}

const char* MaxPoolArgmax(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                          int32_t* argmax) {
  return Best().MaxPoolArgmax(device, dtype, sizes, rois, x, argmax);
}

const char* MaxPoolXCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois,
                              const void* d_pooled, const int32_t* argmax, void* d_x) {
  return Best().MaxPoolXCotangent(device, dtype, sizes, rois, d_pooled, argmax, d_x);
}

const char* Sample(Device& device, DType dtype, const SamplingSizes& sizes, const void* x, const void* locations,
                   void* out) {
  return Best().Sample(device, dtype, sizes, x, locations, out);
}

const char* SamplingXCotangent(Device& device, DType dtype, const SamplingSizes& sizes, const void* locations,
                               const void* d_out, bool is_wide, void* d_x, int32_t* workspace, int64_t workspace_size) {
  return Best().SamplingXCotangent(device, dtype, sizes, locations, d_out, is_wide, d_x, workspace, workspace_size);
}

const char* SamplingLocationsCotangent(Device& device, DType dtype, const SamplingSizes& sizes, const void* x,
                                       const void* locations, const void* d_out, void* d_locations) {
  return Best().SamplingLocationsCotangent(device, dtype, sizes, x, locations, d_out, d_locations);
}

}  // namespace dcn
