// Decodes the arrays of sorted tables, and checks them against the sizes that the operators know.
#pragma once

#include <optional>
#include <vector>

#include "device.h"
#include "ffi/checks.h"
#include "scatter/tables.h"

namespace dcn {

// The numbers of a record, which are as wide as sums.
constexpr int64_t kSampleRecordSize = sizeof(SortedSample<float>) / sizeof(float);
constexpr int64_t kTapRecordSize = sizeof(SortedTap<float>) / sizeof(float);

struct TableSizes {
  int64_t rows, entries, record_size;
  ffi::DataType sums;
};

// Tables that are an array of dimensions `shape`. The workspace is that of a sort.
inline CsrTables DecodeTables(const std::vector<int64_t>& shape, const TableSizes& sizes, ffi::AnyBuffer values,
                              ffi::AnyBuffer row_start, std::optional<ffi::AnyBuffer> workspace) {
  CheckFitsInt32("the number of a table's rows", sizes.rows);
  CheckFitsInt32("the number of a table's entries", sizes.entries);
  int64_t tables = 1;
  for (const int64_t size : shape) tables = SaturatingMultiply(tables, size);
  CheckElementCount("the entries and rows of all tables", SaturatingMultiply(tables, 9 * sizes.entries + sizes.rows));
  const auto check = [&](const char* name, ffi::AnyBuffer buffer, ffi::DataType type, std::vector<int64_t> of_table) {
    of_table.insert(of_table.begin(), shape.begin(), shape.end());
    CheckType(name, buffer, type);
    CheckShape(name, buffer, of_table);
  };
  check("values", values, sizes.sums == ffi::F64 ? ffi::S64 : ffi::S32, {sizes.entries, sizes.record_size});
  check("row_start", row_start, ffi::S32, {sizes.rows + 1});
  if (workspace) check("workspace", *workspace, ffi::S32, {sizes.entries});
  int32_t* const ids = workspace ? workspace->typed_data<int32_t>() : nullptr;
  return {tables, sizes.rows, sizes.entries, row_start.typed_data<int32_t>(), values.untyped_data(), ids};
}

// The tables that a handler sorts at a time, of `all`. A backend that does not sort has no results for them.
inline CsrTables DecodeSorted(ffi::RemainingRets results, int64_t all, const TableSizes& sizes) {
  const size_t expected = Device::kSorts ? 3 : 0;
  Require(results.size() == expected, "the call has ", results.size(), " results for tables, must have ", expected);
  if (!Device::kSorts) return {};
  const auto result = [&](size_t index) { return **results.get<ffi::AnyBuffer>(index); };
  CheckRank("values", result(0), 3);
  const int64_t tables = result(0).dimensions()[0];
  Require(tables > 0 || all == 0, "values has no table, must have at least one");
  return DecodeTables({tables}, sizes, result(0), result(1), result(2));
}

}  // namespace dcn
