// Large pages for large results.
#pragma once

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace dcn {

// Asks Linux to back an array that has not been written yet with pages of 2 MiB. Call it before the threads of
// a kernel start to fill a result. The array may be null.
//
// glibc requests every allocation of 32 MiB or more from the system, so each call writes to new pages. With pages of 4
// KiB, the page faults take several times as long as filling the array with zeros. Smaller allocations reuse memory,
// and are left alone, because the request would outlive them.
template <typename T>
void PreferLargePages([[maybe_unused]] T* array, [[maybe_unused]] int64_t count) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kLargestReused = uintptr_t{32} << 20, kLargePage = uintptr_t{2} << 20;
  const uintptr_t address = reinterpret_cast<uintptr_t>(array), bytes = uintptr_t(count) * sizeof(T);
  if (!array || bytes < kLargestReused) return;
  const uintptr_t begin = (address + kLargePage - 1) / kLargePage * kLargePage;
  const uintptr_t end = (address + bytes) / kLargePage * kLargePage;
  // It is only advice. It fails where the kernel has no large pages, and then nothing changes.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace dcn
