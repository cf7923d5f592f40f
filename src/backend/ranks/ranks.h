// One rank's place among the ranks that run a model together: which part of it is this rank's, how the parts of
// activations come together, and the commands by which rank 0 tells the others what to do.
//
// Rank 0 runs the engine. The others follow: they wait for a command, do their part of it, and wait for the next one.
// With columns rank 0 tells all others directly. With layers a command goes down the chain of stages, and one that runs
// a step goes together with the hidden states, so that stages work on different steps at the same time.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/message.h"

namespace sx {

enum class RankSplit {
  kLayers,   // a rank holds neighbouring layers
  kColumns,  // a rank holds output columns of every matrix, and the KV heads of every layer that belong to them
};
const char* split_name(RankSplit split);
RankSplit split_from_name(const std::string& name);  // throws sx::Error

struct RankShare {
  int first = 0, end = 0;
  int size() const { return end - first; }
  bool empty() const { return end <= first; }
  bool has(int i) const { return i >= first && i < end; }
  bool operator==(const RankShare&) const = default;
};

// How `total` things are divided: in units, as evenly as these go, the earlier ranks having more. Each thing is `scale`
// columns wide.
struct RankCut {
  int total = 0, unit = 1, scale = 1;
  RankShare of(int rank, int ranks) const;
  int width() const { return total * scale; }
};
// Output columns of a matrix: in units of 16, which kernels like, where there are enough; else of 4, which keep a
// device's rows aligned.
RankCut column_cut(int columns, int ranks);

enum class RankCommand : int32_t {
  kQuit,
  kLoad,
  kLoadCopy,
  kDropCopy,
  kClose,
  kMakeKv,
  kForward,
  kMoreLogits,
  kTapQueries,
  kMove,
  kScore,
  kRelease,
  kRead,
  kWrite,
  kAttend
};

class Ranks {
 public:
  Ranks(std::shared_ptr<Communicator> comm, RankSplit split) : comm_(std::move(comm)), split_(split) {}

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  bool leads() const { return rank() == 0; }
  bool last() const { return rank() == size() - 1; }
  RankSplit split() const { return split_; }
  bool by_layers() const { return split_ == RankSplit::kLayers; }
  bool by_columns() const { return split_ == RankSplit::kColumns; }
  Communicator& comm() { return *comm_; }
  std::string describe() const;  // "2 ranks by columns"

  RankShare share(const RankCut& cut) const { return cut.of(rank(), size()); }
  RankShare share(const RankCut& cut, int rank) const { return cut.of(rank, size()); }
  // Layers and KV heads of this rank, and of any.
  RankShare layers(int total, int rank) const;
  RankShare layers(int total) const { return layers(total, rank()); }
  RankShare kv_heads(int total, int rank) const;
  RankShare kv_heads(int total) const { return kv_heads(total, rank()); }
  RankCut columns(int total) const { return column_cut(total, size()); }

  // Rank 0: a new command, and its way to the others.
  MessageBuffer& begin(RankCommand command);
  void announce();
  // The same, while other messages are sent behind it and received.
  void announce(std::span<const Outgoing> behind, std::span<const Incoming> in);
  // The others: waits for a command. A step's command is not passed on, see pass_on().
  RankCommand next_command();
  MessageBuffer& command() { return message_; }
  void pass_on();  // layers: the command to the next stage

  // Layers: a step of several sequences is run in micro-batches of at least so many rows, which fill the stages. Fewer
  // rows take a stage hardly less time, because it reads its weights for each.
  int micro_rows = 16;

  // Everyone says how it went; rank 0 throws sx::Error that names the first that failed.
  void agree(const std::string& error);

  // Rows of `cut.width()` columns, of which this rank has its own: all ranks get all of them (or only rank 0 does).
  void gather(float* rows, int count, int stride, const RankCut& cut, bool to_first = false);
  // The same where this rank's columns lie without gaps in `mine`.
  void gather(const float* mine, float* rows, int count, int stride, const RankCut& cut);

 private:
  std::span<const int> listeners();

  std::shared_ptr<Communicator> comm_;
  RankSplit split_;
  MessageBuffer message_;
  std::vector<int> listeners_;
  std::vector<float> packed_;
  std::vector<std::span<std::byte>> parts_;
};

}  // namespace sx
