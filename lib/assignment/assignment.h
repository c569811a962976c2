// Linear sum assignment: pairs of rows and columns of least cost, one to one. Each backend implements the function for
// its own Device. It returns nullptr, or an error message.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "host_device.h"

namespace dcn {

struct Device;

struct AssignmentSizes {
  int64_t problems, rows, columns;  // no more rows than columns

  DCN_HOST_DEVICE int64_t workspace() const { return 3 * columns + rows; }  // 64-bit words of a problem
};

// `costs`: float or double, [problems, rows, columns]. A pair whose cost is not finite is forbidden.
struct AssignmentArrays {
  const void* costs;
  int32_t* column_of;  // [problems, rows], -1 for a row without a column
  int32_t* row_of;     // [problems, columns], -1 for a column without a row
  void* workspace;     // [problems, workspace()] words of 64 bits
};

const char* Assign(Device&, DType, const AssignmentSizes&, const AssignmentArrays&);

}  // namespace dcn
