// The functions of include/specextend/ranks.h, and the backend of an engine whose model is spread over ranks.
#include "specextend/ranks.h"

#include <cstring>
#include <fstream>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "comm/mpi.h"
#include "engine/rank_devices.h"
#include "engine/rank_follower.h"
#include "engine/ranks_backend.h"

namespace sx {
namespace {

std::shared_ptr<Ranks> g_ranks;  // of this process

// A number for the program's file: ranks must run the same program.
std::string program_fingerprint() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  uint64_t hash = 1, size = 0;
  std::vector<char> piece(1 << 20);
  while (file.read(piece.data(), std::streamsize(piece.size())) || file.gcount() > 0) {
    const auto got = size_t(file.gcount());
    for (size_t i = got; i % sizeof(uint64_t) != 0; ++i) piece[i] = 0;
    for (size_t i = 0; i < got; i += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, piece.data() + i, sizeof word);
      hash = (hash ^ word) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    size += got;
  }
  return fmt::format("{} bytes {:016x}", size, hash);
}

}  // namespace

RankPlace join_ranks(const std::string& split, std::function<void(const std::string&)> on_lost) {
  const RankSplit kind = split_from_name(split);
  if (g_ranks) fail("join_ranks: this process has joined already");
  const std::string hello = fmt::format("SpecExtend {} ({}), --split {}, {}", SPECEXTEND_VERSION, program_fingerprint(),
                                        split, make_cpu_backend({1, std::nullopt})->name());
  g_ranks = std::make_shared<Ranks>(join_mpi(hello, std::move(on_lost)), kind);
  return {g_ranks->rank(), g_ranks->size(), g_ranks->comm().kind()};
}

bool started_by_mpi() { return started_as_rank(); }

void follow_ranks(int threads, const std::string& device) {
  if (!g_ranks || g_ranks->leads()) fail("follow_ranks: rank 0 leads");
  try {
    const auto devices = device_list(device);
    RankFollower(g_ranks, [&] { return make_rank_backend(devices, rank_on_machine(), threads); }).run();
  } catch (const std::exception& e) {
    g_ranks->comm().abort(fmt::format("{}: {}", g_ranks->comm().describe(g_ranks->rank()), e.what()));
    throw;
  }
}

std::string lost_rank() { return g_ranks ? g_ranks->comm().lost() : std::string(); }

void leave_ranks() noexcept {
  try {
    if (g_ranks && g_ranks->leads()) dismiss(*g_ranks);
  } catch (const std::exception&) {}  // a rank is lost, and with it the job
  g_ranks.reset();
}

std::unique_ptr<Backend> make_ranks_backend(const EngineOptions& options) {
  const RankSplit split = split_from_name(options.split);
  const auto devices = device_list(options.device);
  if (devices.size() > 1 && !started_as_rank()) return make_devices_backend(devices, split, options.threads);
  if (!g_ranks) join_ranks(options.split);
  if (!g_ranks->leads()) fail("engines are opened by rank 0; this is rank {}", g_ranks->rank());
  if (g_ranks->split() != split)
    fail("split '{}': the ranks have joined for '{}'", options.split, split_name(g_ranks->split()));
  return std::make_unique<RankedBackend>(make_rank_backend(devices, rank_on_machine(), options.threads), g_ranks);
}

}  // namespace sx
