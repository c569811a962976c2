// The XLA FFI handler of the assignment: it decodes and checks its operands and calls the backend's function. Every
// backend module compiles this file with its own Device.
#include "ffi/handlers.h"
#include "assignment/assignment.h"
#include "device.h"
#include "dispatch.h"
#include "ffi/checks.h"
#include "ffi/handler_wrapper.h"

namespace dcn {
namespace {

const char* AssignImpl(Device& device, ffi::AnyBuffer costs, ffi::Result<ffi::AnyBuffer> column_of,
                       ffi::Result<ffi::AnyBuffer> row_of, ffi::Result<ffi::AnyBuffer> workspace) {
  CheckRank("costs", costs, 3);
  const auto shape = costs.dimensions();
  const AssignmentSizes sizes = {shape[0], shape[1], shape[2]};
  const ffi::DataType type = costs.element_type();
  CheckType("costs", costs, AccumulatorType(type));
  CheckFitsInt32("the number of columns", sizes.columns);
  Require(sizes.rows <= sizes.columns, "costs has shape ", shape, ", must have no more rows than columns");
  CheckType("column_of", *column_of, ffi::S32);
  CheckShape("column_of", *column_of, {sizes.problems, sizes.rows});
  CheckType("row_of", *row_of, ffi::S32);
  CheckShape("row_of", *row_of, {sizes.problems, sizes.columns});
  CheckType("workspace", *workspace, ffi::S32);
  CheckShape("workspace", *workspace, {sizes.problems, sizes.workspace(), 2});
  const AssignmentArrays arrays = {costs.untyped_data(), static_cast<int32_t*>(column_of->untyped_data()),
                                   static_cast<int32_t*>(row_of->untyped_data()), workspace->untyped_data()};
  return DCN_BEST(Assign)(device, DecodeDType(type), sizes, arrays);
}

}  // namespace

std::vector<Handler> AssignmentHandlers() { return {DCN_HANDLER("dcn_assign", AssignImpl)}; }

}  // namespace dcn
