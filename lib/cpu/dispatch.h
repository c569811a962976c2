// Chooses among the operators' functions, which are compiled for each operator set. Handlers call
// DCN_BEST(function)(arguments) on every backend.
#pragma once

#include "aggregation/aggregation.h"
#include "assignment/assignment.h"
#include "deform_conv/deform_conv.h"
#include "roi_pool/roi_pool.h"
#include "sampling/sampling.h"

namespace dcn {

// clang-format off
#define DCN_OPERATORS(OPERATOR)                                                                  \
  OPERATOR(Aggregate) OPERATOR(ValueCotangent) OPERATOR(TapCotangents)                           \
  OPERATOR(SampleColumns) OPERATOR(SampleTangents) OPERATOR(OffsetCotangent) OPERATOR(XCotangent)\
  OPERATOR(Pool) OPERATOR(PoolXCotangent) OPERATOR(PoolOffsetCotangent)                          \
  OPERATOR(MaxPool) OPERATOR(MaxPoolArgmax) OPERATOR(MaxPoolXCotangent)                          \
  OPERATOR(Sample) OPERATOR(SamplingXCotangent) OPERATOR(SamplingLocationsCotangent)              \
  OPERATOR(Assign)
// clang-format on

struct Operators {
#define DCN_MEMBER(function) decltype(dcn::function)* function;
  DCN_OPERATORS(DCN_MEMBER)
};

// The functions of this processor's operator set.
const Operators& Best();

#define DCN_BEST(function) Best().function

}  // namespace dcn
