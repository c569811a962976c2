#include "dispatch.h"

#include "instruction_sets.h"

namespace dcn {

#define DCN_DECLARE(function) decltype(dcn::function) function;
#define DCN_ADDRESS(function) function,
#define DCN_DEFINE_OPERATORS(set, ...)                                  \
  namespace set {                                                       \
  DCN_OPERATORS(DCN_DECLARE)                                            \
  static constexpr Operators kOperators = {DCN_OPERATORS(DCN_ADDRESS)}; \
  }
DCN_OPERATOR_SETS(DCN_DEFINE_OPERATORS)

const Operators& Best() {
#define DCN_OPERATORS_OF(set, ...) &set::kOperators,
  static constexpr const Operators* kOperators[] = {DCN_OPERATOR_SETS(DCN_OPERATORS_OF)};
  return *kOperators[int(OperatorSetOf(BestInstructionSet()))];
}

}  // namespace dcn
