// Memory for arrays that vector instructions access.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace dcn {

constexpr int kLineFloats = 16;  // in a cache line

// Elements start at a cache line, because loading a vector of 64 bytes takes twice as long if it straddles two lines.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <typename U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kAlignment); }

  template <typename U>
  bool operator==(const CacheLineAllocator<U>&) const {
    return true;
  }
  template <typename U>
  bool operator!=(const CacheLineAllocator<U>&) const {
    return false;
  }
};

template <typename T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

// Floats that are not initialized: pages that are never accessed take no memory.
class UninitializedFloats {
 public:
  explicit UninitializedFloats(size_t size) : data_(CacheLineAllocator<float>().allocate(size)) {}
  ~UninitializedFloats() { CacheLineAllocator<float>().deallocate(data_, 0); }
  UninitializedFloats(const UninitializedFloats&) = delete;
  UninitializedFloats& operator=(const UninitializedFloats&) = delete;

  float* data() { return data_; }

 private:
  float* data_;
};

}  // namespace dcn
