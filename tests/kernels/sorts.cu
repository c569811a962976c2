// Sorts tables whose rows are given: `sorts OPERANDS RESULTS`. The operands are int32: tables, rows, entries, the words
// of a value, and the row of each entry. The results are row_start and the values, whose words are in turn the id and
// its complement.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "scatter/counting_sort.h"

namespace dcn {
namespace {

template <int kWords, int kItemEntries>
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
  __device__ Vector<int32_t, kWords> value(const Entry& entry) const {
    Vector<int32_t, kWords> value;
    for (int i = 0; i < kWords; ++i) value.value[i] = i % 2 ? ~entry.id : entry.id;
    return value;
  }
};

template <int kWords, int kItemEntries>
struct GivenTables {
  using Table = GivenRows<kWords, kItemEntries>;

  const int32_t* row;
  int32_t entries;

  __device__ Table operator[](int64_t table) const { return {row + table * entries}; }
};

void Check(const char* failure) {
  if (!failure) return;
  std::printf("%s\n", failure);
  std::exit(1);
}

// Memory of the device that is not freed, with these values if they are given.
int32_t* Allocate(size_t size, const int32_t* values = nullptr) {
  void* data = nullptr;
  Check(Failure(cudaMalloc(&data, size * sizeof(int32_t))));
  if (values) Check(Failure(cudaMemcpy(data, values, size * sizeof(int32_t), cudaMemcpyHostToDevice)));
  return static_cast<int32_t*>(data);
}

void Write(const int32_t* data, size_t size, std::FILE* file) {
  std::vector<int32_t> values(size);
  Check(Failure(cudaMemcpy(values.data(), data, size * sizeof(int32_t), cudaMemcpyDeviceToHost)));
  std::fwrite(values.data(), sizeof(int32_t), size, file);
}

struct Options {
  int32_t tables, rows, entries, words;
};

template <int kWords, int kItemEntries>
void Sort(const Options& options, std::FILE* operands, std::FILE* results) {
  using Value = Vector<int32_t, kWords>;
  const auto [tables, rows, entries, words] = options;
  std::vector<int32_t> row(size_t(tables) * entries);
  if (std::fread(row.data(), sizeof(int32_t), row.size(), operands) != row.size()) Check("too few rows");
  const int32_t* const given = Allocate(row.size(), row.data());
  const size_t num_starts = size_t(tables) * (size_t(rows) + 1), num_words = row.size() * kWords;
  int32_t* const row_start = Allocate(num_starts);
  // The values of entries without a row are not written.
  int32_t* const values = Allocate(num_words, std::vector<int32_t>(num_words, -1).data());
  const CsrTables csr = {tables, rows, entries, row_start, values, Allocate(row.size())};
  Check(SortByRow<Value>(Device(nullptr), GivenTables<kWords, kItemEntries>{given, entries}, csr));
  Check(Failure(cudaDeviceSynchronize()));
  Write(row_start, num_starts, results);
  Write(values, num_words, results);
}

void Run(std::FILE* operands, std::FILE* results) {
  Options options;
  if (std::fread(&options, sizeof options, 1, operands) != 1) Check("no options");
  switch (options.words) {
    case 1:
      return Sort<1, 2>(options, operands, results);
    case 2:
      return Sort<2, 4>(options, operands, results);
    default:
      return Sort<4, 1>(options, operands, results);
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
