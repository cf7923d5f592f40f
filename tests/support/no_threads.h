// A system that has no more threads: while one of these is held, none can be made.
#pragma once
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace sx {

class NoThreads {
 public:
  // By default every new thread asks for a stack that no address space has room for.
  NoThreads() { set_stack(size_t(1) << 60); }
  ~NoThreads() { set_stack(before_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  void set_stack(size_t bytes) {
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_getattr_default_np(&attributes), 0);
    EXPECT_EQ(pthread_attr_getstacksize(&attributes, &before_), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }
  size_t before_ = 0;
};

}  // namespace sx
