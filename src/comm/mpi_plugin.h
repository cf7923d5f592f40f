// What the program asks of MPI. The functions are in a small library of their own, which is loaded when a job of
// several ranks starts: a program that runs alone needs no MPI library and does not start one.
#pragma once
#include <cstddef>

namespace sx {

inline constexpr int kMpiPluginVersion = 1;
inline constexpr const char* kMpiPluginEntry = "specextend_mpi_plugin";

// Functions return null, or what went wrong. They are called by one thread at a time.
struct MpiPlugin {
  int version;
  const char* library;  // "Open MPI v4.1.4"
  const char* (*start)(int* rank, int* size);
  const char* (*begin_send)(const void* bytes, size_t count, int to);
  const char* (*begin_receive)(void* bytes, size_t count, int from);
  // Sets `done` when everything that was begun is.
  const char* (*poll)(int* done);
  void (*finish)();
};
using MpiPluginEntry = const MpiPlugin* (*)();

}  // namespace sx
