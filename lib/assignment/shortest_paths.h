// The algorithm of Jonker and Volgenant (Computing 38, 1987): rows are assigned one after the other, each along a
// shortest augmenting path. Dijkstra's algorithm finds it in reduced costs, which the prices of rows and columns (the
// dual variables) keep from being negative. The team of threads that solves a problem shares out its columns.
//
// A Team has rank(); size(); Sync(), a barrier; and ReduceMin(candidate), the least candidate of all threads, which is
// a barrier, too.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "assignment/assignment.h"

namespace dcn {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMaxExponent = 1000;  // of a finite power of two
constexpr int kSpanExponent = 8;    // of scaled costs; with 0, the scale of the largest numbers would be subnormal

struct Candidate {
  double distance;
  int64_t order;  // among equal distances; that of a column, plus the number of columns if it has a row
};

DCN_HOST_DEVICE Candidate Lesser(const Candidate& a, const Candidate& b) {
  return a.distance < b.distance || (a.distance == b.distance && a.order <= b.order) ? a : b;
}

// The costs of a problem, shifted and scaled by a power of two to [0, 256]. A forbidden pair costs more than all others
// of an assignment together, so one is chosen only if every assignment needs one.
template <typename T>
struct PairCosts {
  const T* costs;
  int64_t columns;
  double scale, least, forbidden;

  DCN_HOST_DEVICE bool is_permitted(int64_t i) const { return costs[i] - costs[i] == T(0); }
  DCN_HOST_DEVICE double operator()(int64_t row, int64_t column) const {
    const int64_t i = row * columns + column;
    return is_permitted(i) ? double(costs[i]) * scale - least : forbidden;
  }

  template <typename Team>
  DCN_HOST_DEVICE PairCosts(Team& team, int64_t rows, int64_t columns, const T* costs)
      : costs(costs), columns(columns), forbidden(std::ldexp(double(rows) + 2, kSpanExponent)) {
    double low = kInfinity, negative_high = kInfinity;
    for (int64_t i = team.rank(); i < rows * columns; i += team.size()) {
      if (!is_permitted(i)) continue;
      low = low < double(costs[i]) ? low : double(costs[i]);
      negative_high = negative_high < -double(costs[i]) ? negative_high : -double(costs[i]);
    }
    low = team.ReduceMin({low, 0}).distance;
    const double high = -team.ReduceMin({negative_high, 0}).distance;
    const double half_span = high / 2 - low / 2;  // the span itself may overflow
    scale = 0;
    if (half_span > 0) {
      int exponent;
      std::frexp(half_span, &exponent);
      const int wanted = kSpanExponent - exponent;
      scale = std::ldexp(0.5, wanted < kMaxExponent ? wanted : kMaxExponent);
    }
    least = low * scale;
  }

  template <typename Team>
  DCN_HOST_DEVICE bool HasPermittedPair(Team& team, int64_t row) const {
    bool found = false;
    for (int64_t j = team.rank(); j < columns && !found; j += team.size()) found = is_permitted(row * columns + j);
    return team.ReduceMin({found ? 0.0 : 1.0, 0}).distance == 0;
  }
};

template <typename T, typename Team>
DCN_HOST_DEVICE void SolveAssignment(Team& team, const AssignmentSizes& sizes, const AssignmentArrays& arrays,
                                     int64_t problem) {
  const int64_t rows = sizes.rows, columns = sizes.columns;
  const T* const costs = static_cast<const T*>(arrays.costs) + problem * rows * columns;
  int32_t* const column_of = arrays.column_of + problem * rows;
  int32_t* const row_of = arrays.row_of + problem * columns;
  double* const column_price = static_cast<double*>(arrays.workspace) + problem * sizes.workspace();
  double* const row_price = column_price + columns;
  double* const distance = row_price + rows;
  // The row before a column on its shortest path; its complement once the path is known to be the shortest.
  int64_t* const row_before = reinterpret_cast<int64_t*>(distance + columns);

  for (int64_t i = team.rank(); i < rows; i += team.size()) column_of[i] = -1, row_price[i] = 0;
  for (int64_t j = team.rank(); j < columns; j += team.size()) row_of[j] = -1, column_price[j] = 0;
  const PairCosts<T> cost(team, rows, columns, costs);
  for (int64_t first = 0; first < rows; ++first) {
    if (!cost.HasPermittedPair(team, first)) continue;
    for (int64_t j = team.rank(); j < columns; j += team.size()) distance[j] = kInfinity, row_before[j] = 0;
    double path_length = 0;
    int64_t last = first, end;
    while (true) {
      Candidate nearest = {kInfinity, 2 * columns};
      const double start = path_length - row_price[last];
      for (int64_t j = team.rank(); j < columns; j += team.size()) {
        if (row_before[j] < 0) continue;
        const double length = start + cost(last, j) - column_price[j];
        if (length < distance[j]) distance[j] = length, row_before[j] = last;
        nearest = Lesser(nearest, {distance[j], row_of[j] < 0 ? j : j + columns});
      }
      nearest = team.ReduceMin(nearest);
      path_length = nearest.distance;
      end = nearest.order < columns ? nearest.order : nearest.order - columns;
      // The modulus of 64 bits would be a function call on a GPU. `end` fits in 32 bits, as the handler checks.
      if (int32_t(end) % team.size() == team.rank()) row_before[end] = ~row_before[end];
      if (nearest.order < columns) break;
      last = row_of[end];
    }
    for (int64_t j = team.rank(); j < columns; j += team.size()) {
      if (row_before[j] >= 0 || j == end) continue;
      column_price[j] -= path_length - distance[j];
      row_price[row_of[j]] += path_length - distance[j];
    }
    team.Sync();
    if (team.rank() == 0) {
      row_price[first] += path_length;
      for (int64_t column = end, row = -1; row != first;) {
        row = ~row_before[column];
        row_of[column] = int32_t(row);
        const int64_t freed = column_of[row];
        column_of[row] = int32_t(column);
        column = freed;
      }
    }
    team.Sync();
  }
  for (int64_t i = team.rank(); i < rows; i += team.size()) {
    if (column_of[i] < 0 || cost.is_permitted(i * columns + column_of[i])) continue;
    row_of[column_of[i]] = -1;
    column_of[i] = -1;
  }
}

}  // namespace dcn
