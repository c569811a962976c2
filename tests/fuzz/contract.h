// Stands in for memory, so that buffers can have any size: it hands out addresses and records the size of each buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>

namespace fuzz {

class Contract {
 public:
  // The address of the `number`-th buffer of a call, counted from 1. `bytes` is negative if its shape is impossible.
  // Buffers of the same place, counted from 1, have the same address.
  char* Address(size_t number, int place, int64_t bytes) {
    if (number == 1) bytes_.clear();
    char* address = reinterpret_cast<char*>((place ? kInPlace + size_t(place) : number) << 52);
    bytes_[address] = bytes;
    return address;
  }

  // Whether the buffer that an address lies in has at least `count` elements of `size` bytes from there on.
  bool Holds(const void* address, double count, double size) const {
    const auto after = bytes_.upper_bound(address);
    if (after == bytes_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return double(bytes) - double(static_cast<const char*>(address) - begin) >= count * size;
  }

 private:
  static constexpr size_t kInPlace = 99;
  std::map<const char*, int64_t, std::less<>> bytes_;
};

extern Contract* contract;  // null if buffers are in real memory

}  // namespace fuzz
