// A counting operator new, for programs that watch for allocations. Include it in exactly one file of a program.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // g++ sees only one half of the pair when it inlines

namespace {
std::atomic<long> g_allocations{0};
}

void* operator new(size_t size, const std::nothrow_t&) noexcept {  // std::stable_sort, for one
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size ? size : 1);
}
void* operator new(size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
