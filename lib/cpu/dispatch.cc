// Defines the operators' functions. Each calls the function of the same name of this processor's operator set.
#include <cstddef>
#include <tuple>

#include "aggregation/aggregation.h"
#include "deform_conv/deform_conv.h"
#include "instruction_sets.h"
#include "roi_pool/roi_pool.h"
#include "sampling/sampling.h"

namespace dcn {

// OPERATOR(function, number of its parameters)
// clang-format off
#define DCN_OPERATORS(OPERATOR)                                                                                  \
  OPERATOR(Aggregate, 6) OPERATOR(ValueCotangent, 9) OPERATOR(TapCotangents, 8)                                  \
  OPERATOR(SampleColumns, 6) OPERATOR(SampleTangents, 8) OPERATOR(OffsetCotangent, 9) OPERATOR(XCotangent, 6)    \
  OPERATOR(Pool, 6) OPERATOR(PoolXCotangent, 6) OPERATOR(PoolOffsetCotangent, 7)                                 \
  OPERATOR(MaxPool, 6) OPERATOR(MaxPoolArgmax, 6) OPERATOR(MaxPoolXCotangent, 7)                                 \
  OPERATOR(Sample, 6) OPERATOR(SamplingXCotangent, 9) OPERATOR(SamplingLocationsCotangent, 7)
// clang-format on

struct Operators {
#define DCN_MEMBER(name, ...) decltype(dcn::name)* name;
  DCN_OPERATORS(DCN_MEMBER)
};

#define DCN_DECLARE(name, ...) decltype(dcn::name) name;
#define DCN_ADDRESS(name, ...) name,
#define DCN_DEFINE_OPERATORS(set, ...)                                  \
  namespace set {                                                       \
  DCN_OPERATORS(DCN_DECLARE)                                            \
  static constexpr Operators kOperators = {DCN_OPERATORS(DCN_ADDRESS)}; \
  }
DCN_OPERATOR_SETS(DCN_DEFINE_OPERATORS)

static const Operators& Best() {
#define DCN_OPERATORS_OF(set, ...) &set::kOperators,
  static constexpr const Operators* kOperators[] = {DCN_OPERATOR_SETS(DCN_OPERATORS_OF)};
  return *kOperators[int(OperatorSetOf(BestInstructionSet()))];
}

// Defines each function, with the parameters of its declaration. It calls that of the best operator set.
template <typename... Types>
std::tuple<Types...> ParametersOf(const char* (*)(Types...));
#define DCN_PARAMETER(name, i) std::tuple_element_t<i, decltype(ParametersOf(dcn::name))> p##i
#define DCN_PARAMETERS_6(name)                                                                    \
  DCN_PARAMETER(name, 0), DCN_PARAMETER(name, 1), DCN_PARAMETER(name, 2), DCN_PARAMETER(name, 3), \
      DCN_PARAMETER(name, 4), DCN_PARAMETER(name, 5)
#define DCN_PARAMETERS_7(name) DCN_PARAMETERS_6(name), DCN_PARAMETER(name, 6)
#define DCN_PARAMETERS_8(name) DCN_PARAMETERS_7(name), DCN_PARAMETER(name, 7)
#define DCN_PARAMETERS_9(name) DCN_PARAMETERS_8(name), DCN_PARAMETER(name, 8)
#define DCN_ARGUMENTS_6 p0, p1, p2, p3, p4, p5
#define DCN_ARGUMENTS_7 DCN_ARGUMENTS_6, p6
#define DCN_ARGUMENTS_8 DCN_ARGUMENTS_7, p7
#define DCN_ARGUMENTS_9 DCN_ARGUMENTS_8, p8
#define DCN_FORWARD(name, count) \
  const char* name(DCN_PARAMETERS_##count(name)) { return Best().name(DCN_ARGUMENTS_##count); }
DCN_OPERATORS(DCN_FORWARD)

int64_t MinWorkspaceSize(DType, const AggregationSizes&) { return 0; }
int64_t MinWorkspaceSize(DType, const SamplingSizes&) { return 0; }

}  // namespace dcn
