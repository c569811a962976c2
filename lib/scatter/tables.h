// What samples scatter, in sorted tables: an operator says which row the entry of an id has, and with what weight;
// counting_sort.h sorts the entries; and then each pixel adds up its rows in a fixed order, without atomics: those of
// the cells around it (cells.h), or its own.
#pragma once

#include <cstdint>
#include <type_traits>

namespace dcn {

// The sums have type A. An id has as many bits, so that records have no padding.
template <typename A>
using RecordId = std::conditional_t<sizeof(A) == sizeof(int32_t), int32_t, int64_t>;

// A sample with all that the pixels at its corners need to know.
template <typename A>
struct alignas(4 * sizeof(A)) SortedSample {
  RecordId<A> id;
  A weight, y, x;  // by which its corners are multiplied; the fractions of its location
};

// What a sample adds to the pixel of a tap.
template <typename A>
struct alignas(2 * sizeof(A)) SortedTap {
  RecordId<A> point;
  A weight;
};

// Tables in CSR form, or arrays for so many of them. A sort may use fewer rows than its arrays have.
struct CsrTables {
  int64_t tables;
  int64_t rows, entries;  // of each table; ids are less than `entries`
  int32_t* row_start;     // [tables, rows + 1]: the start of each row in the table; the last is the end of all
  void* values;           // records [tables, entries], sorted by row, then by id
  int32_t* workspace;     // [tables, entries]; of a sort only
};

}  // namespace dcn
