// Sorts tables whose rows are given: `sorts OPERANDS RESULTS`. The operands are int32: tables, rows, entries, whether
// row_start is global, whether the values are pairs, and the row of each entry. The results are row_start and the
// values, which are the ids; a pair is an id and its complement.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "cuda/counting_sort.h"

namespace dcn {
namespace {

using Id = Vector<int32_t, 1>;
using Pair = Vector<int32_t, 2>;

template <typename Value, int kItemEntries>
struct GivenRows {
  static constexpr int kEntries = kItemEntries;
  struct Entry {
    int32_t row, id;
  };

  const int32_t* row;

  __device__ void FindRows(int32_t item, int32_t* rows) const {
    for (int i = 0; i < kEntries; ++i) rows[i] = row[item * kEntries + i];
  }
  __device__ Entry operator()(int32_t id) const { return {row[id], id}; }
  __device__ Value value(const Entry& entry) const {
    if constexpr (std::is_same_v<Value, Pair>) {
      return {entry.id, ~entry.id};
    } else {
      return {entry.id};
    }
  }
};

template <typename Value, int kItemEntries>
struct GivenTables {
  using Table = GivenRows<Value, kItemEntries>;

  const int32_t* row;
  int32_t entries;

  __device__ Table operator[](int64_t table) const { return {row + table * entries}; }
};

void Check(const char* failure) {
  if (!failure) return;
  std::printf("%s\n", failure);
  std::exit(1);
}

class Array {
 public:
  explicit Array(size_t size) : bytes_(size * sizeof(int32_t)) { Check(Failure(cudaMalloc(&data_, bytes_))); }
  explicit Array(const std::vector<int32_t>& values) : Array(values.size()) {
    Check(Failure(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice)));
  }
  Array(const Array&) = delete;
  ~Array() { cudaFree(data_); }

  int32_t* data() const { return static_cast<int32_t*>(data_); }
  std::vector<int32_t> Values() const {
    std::vector<int32_t> values(bytes_ / sizeof(int32_t));
    Check(Failure(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost)));
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

struct Options {
  int32_t tables, rows, entries, is_row_start_global, has_pairs;
};

template <typename Value, int kItemEntries>
void Sort(const Options& options, std::FILE* operands, std::FILE* results) {
  const auto [tables, rows, entries, is_row_start_global, has_pairs] = options;
  std::vector<int32_t> row(size_t(tables) * entries);
  for (int32_t& value : row) {
    if (std::fread(&value, sizeof value, 1, operands) != 1) Check("too few rows");
  }
  const Array given(row), workspace(row.size()), row_start(size_t(tables) * (size_t(rows) + 1));
  // The values of entries without a row are not written.
  const Array values(std::vector<int32_t>(row.size() * sizeof(Value) / sizeof(int32_t), -1));
  const CsrTables<Value> csr = {tables,           rows,
                                entries,          is_row_start_global != 0,
                                row_start.data(), reinterpret_cast<Value*>(values.data()),
                                workspace.data()};
  Check(SortByRow(Device(nullptr), GivenTables<Value, kItemEntries>{given.data(), entries}, csr));
  Check(Failure(cudaDeviceSynchronize()));
  for (const Array* array : {&row_start, &values}) {
    for (const int32_t value : array->Values()) std::fwrite(&value, sizeof value, 1, results);
  }
}

void Run(std::FILE* operands, std::FILE* results) {
  Options options;
  if (std::fread(&options, sizeof options, 1, operands) != 1) Check("no options");
  if (options.has_pairs) {
    Sort<Pair, 4>(options, operands, results);
  } else {
    Sort<Id, 2>(options, operands, results);
  }
}

}  // namespace
}  // namespace dcn

int main(int, char** arguments) {
  std::FILE *operands = std::fopen(arguments[1], "rb"), *results = std::fopen(arguments[2], "wb");
  dcn::Run(operands, results);
  std::fclose(results);
  std::fclose(operands);
}
