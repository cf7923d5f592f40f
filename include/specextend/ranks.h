// Several processes that run one model together, as ranks of an MPI job (docs/scaling.md). Rank 0 uses the library as
// any program does, with EngineOptions::split; the others hold their parts of the model and follow it:
//
//   const sx::RankPlace place = sx::join_ranks("columns");
//   if (place.rank > 0) return sx::follow_ranks(), 0;
//   auto engine = sx::Engine::open({.model = "model.gguf", .split = "columns"});
//   ...
//   engine.reset();
//   sx::leave_ranks();
#pragma once
#include <specextend/error.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace sx {

struct RankPlace {
  int rank = 0, size = 1;
  std::string transport;  // "Open MPI v4.1.4"
};

// Joins the job that mpirun started; once in the life of a process. split: "layers" or "columns", the same on all
// ranks. on_lost: called by a thread of its own two seconds after a rank died, stopped or was cut off; all calls of the
// engine fail by then, and the program should end. Throws sx::Error: no MPI, other ranks are of another version.
RankPlace join_ranks(const std::string& split, std::function<void(const std::string& why)> on_lost = {});
// Ranks other than 0: does what rank 0 asks for until it leaves. Throws sx::Error when a rank is lost. threads: of this
// rank, 0: one per core. device: as in EngineOptions; of a list a rank takes the entry of its number on its machine,
// and "cuda" is the GPU of that number.
void follow_ranks(int threads = 0, const std::string& device = "auto");
// Whether mpirun (or another launcher) has started this process as one of several.
bool started_by_mpi();
// Why a rank is lost, once one is: it died, was stopped or cut off, and the job ends soon; empty: all are there. May be
// called by any thread.
std::string lost_rank();
// Rank 0: the others end. Every rank: MPI ends.
void leave_ranks() noexcept;

// What a rank would hold of a model, and send to others while one token is decoded.
struct RankPart {
  int rank = 0;
  int first_layer = 0, layers = 0, first_kv_head = 0, kv_heads = 0;
  size_t weight_bytes = 0;  // without the embedding table
  size_t table_bytes = 0;   // of the embedding table, which stays in the file: only rows of tokens are read
  size_t kv_bytes_per_token = 0;
  size_t messages = 0, sent_bytes = 0;
};
struct RankPlan {
  int layers = 0, kv_heads = 0;
  std::vector<RankPart> parts;
};
// model: a file or folder; of a folder config.json is enough, with weights of `weight_type` then (empty: bf16).
// kv_type: as in EngineOptions, empty: bf16. Nothing is loaded. Throws sx::Error.
RankPlan plan_ranks(const std::string& model, int ranks, const std::string& split, const std::string& kv_type = {},
                    const std::string& weight_type = {});

}  // namespace sx
