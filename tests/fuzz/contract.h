// What stands in for memory where sizes are of any size: addresses, and how many bytes are behind each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace fuzz {

class Contract {
 public:
  // Of the buffer numbered `number` of a call, of so many bytes, or less than none.
  char* Address(size_t number, bool in_place, int64_t bytes) {
    if (number == 1) bytes_.clear();
    char* address = reinterpret_cast<char*>((in_place ? kInPlace : number) << 52);
    bytes_[address] = bytes;
    return address;
  }

  // Whether there are so many numbers of a size behind an address, at least.
  bool Holds(const void* address, double numbers, double size) const {
    const auto found = bytes_.find(address);
    return found != bytes_.end() && double(found->second) >= numbers * size;
  }

 private:
  static constexpr size_t kInPlace = 99;
  std::map<const void*, int64_t> bytes_;
};

extern Contract* contract;  // null where there is memory

}  // namespace fuzz
