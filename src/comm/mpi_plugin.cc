// The plug-in that speaks MPI (any implementation of MPI 3; tested with Open MPI).
#include "comm/mpi_plugin.h"

#include <mpi.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sx {
namespace {

constexpr int kTag = 1;
constexpr size_t kMost = size_t(1) << 30;  // bytes of one MPI message, whose count is an int

std::vector<MPI_Request> g_requests;
std::string g_error;
char g_library[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";

const char* check(int code, const char* what) {
  if (code == MPI_SUCCESS) return nullptr;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  g_error = std::string(what) + ": " + std::string(text, size_t(length));
  return g_error.c_str();
}

const char* start(int* rank, int* size) {
  int given = 0;
  // The engine may be used by another thread than the one that starts MPI, but by one at a time.
  if (const char* error = check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread"))
    return error;
  if (given < MPI_THREAD_SERIALIZED) return "this MPI library lets only the thread that started it use it";
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (const char* error = check(MPI_Comm_rank(MPI_COMM_WORLD, rank), "MPI_Comm_rank")) return error;
  return check(MPI_Comm_size(MPI_COMM_WORLD, size), "MPI_Comm_size");
}

// begin(first byte, how many, request) for pieces that MPI can count.
template <class Begin>
const char* in_pieces(size_t count, const char* what, Begin begin) {
  size_t at = 0;
  do {
    const size_t piece = std::min(kMost, count - at);
    g_requests.emplace_back();
    if (const char* error = check(begin(at, int(piece), &g_requests.back()), what)) return error;
    at += piece;
  } while (at < count);
  return nullptr;
}

const char* begin_send(const void* bytes, size_t count, int to) {
  return in_pieces(count, "MPI_Isend", [&](size_t at, int piece, MPI_Request* request) {
    return MPI_Isend(static_cast<const char*>(bytes) + at, piece, MPI_BYTE, to, kTag, MPI_COMM_WORLD, request);
  });
}

const char* begin_receive(void* bytes, size_t count, int from) {
  return in_pieces(count, "MPI_Irecv", [&](size_t at, int piece, MPI_Request* request) {
    return MPI_Irecv(static_cast<char*>(bytes) + at, piece, MPI_BYTE, from, kTag, MPI_COMM_WORLD, request);
  });
}

const char* poll(int* done) {
  const char* error =
      check(MPI_Testall(int(g_requests.size()), g_requests.data(), done, MPI_STATUSES_IGNORE), "MPI_Testall");
  if (!error && *done) g_requests.clear();
  return error;
}

void finish() { MPI_Finalize(); }

}  // namespace
}  // namespace sx

extern "C" const sx::MpiPlugin* specextend_mpi_plugin() {
  static sx::MpiPlugin plugin{sx::kMpiPluginVersion, sx::g_library, sx::start, sx::begin_send,
                              sx::begin_receive,     sx::poll,      sx::finish};
  int length = 0;
  MPI_Get_library_version(sx::g_library, &length);
  // "Open MPI v4.1.4, package: ...": the first part names it.
  const std::string name(sx::g_library, size_t(std::max(0, length)));
  const size_t comma = std::min(name.find(','), name.find('\n'));
  if (comma != name.npos) sx::g_library[comma] = 0;
  return &plugin;
}
