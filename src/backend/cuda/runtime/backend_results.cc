// The ops of the CUDA backend that move cells or bring scores to the host: kv_move, kv_read, kv_write, kv_score,
// kv_retrieve.
#include <specextend/no_memory.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cuda/runtime/backend.h"
#include "backend/cuda/kv/kv.h"
#include "backend/host_choice.h"
#include "backend/host_scores.h"
#include "base/error.h"

namespace sx::cuda {
namespace {

KvView view_of(const KvStore* kv) { return static_cast<const CudaKv*>(kv)->view(); }

constexpr uint32_t kUnwritten = 0xffffffffu;  // a NaN that no arithmetic gives

}  // namespace

void CudaBackend::hold(const KvStore& kv, int slot, int first, int end) {
  auto& store = const_cast<CudaKv&>(static_cast<const CudaKv&>(kv));  // memory comes and goes, cells stay the same
  if (!dry() && !store.hold(slot, first, end))
    throw NoMemory(fmt::format(
        "device memory: there is no room for {} tokens of a text beside those of others; use fewer texts at a time "
        "(--parallel), a shorter context (-c) or a smaller KV type (--kv-type q8_0)",
        end));
}

void CudaBackend::hold(const KvStore& kv, std::span<const SeqRows> seqs) {
  for (const SeqRows& s : seqs) {
    const int first = s.history + s.uncommitted;
    hold(kv, s.slot, first, first + s.rows);
  }
}

void CudaBackend::kv_move(const KvMoveArgs& a) {
  bind();
  if (dry()) return;
  SX_ASSERT(!in_step());
  if (a.moves.empty()) return;
  int read = 0, first = a.to->geometry().capacity, end = 0;
  for (const KvMove& m : a.moves) {
    read = std::max(read, m.src + 1);
    first = std::min(first, m.dst), end = std::max(end, m.dst + 1);
  }
  hold(*a.from, a.from_slot, read, read);
  hold(*a.to, a.to_slot, first, end);
  cuda::kv_move({view_of(a.from), view_of(a.to), a.from_slot, a.to_slot, a.moves, frequencies(a.frequencies, a.dims),
                 a.dims, a.style, a.layer, a.head},
                stream_);
}

size_t CudaBackend::kv_cell_bytes(const KvStore& kv) const { return packed_cell_bytes(view_of(&kv)); }

// Parts of a few MB go through pinned memory, which the kernel reads and writes itself. body(part, its bytes in all
// cells' bytes)
template <class Body>
void CudaBackend::each_part(const KvStore& kv, const KvCellsArgs& a, Body body) {
  const KvGeometry& g = kv.geometry();
  SX_ASSERT(!in_step() && a.slot >= 0 && a.slot < g.slots && a.first >= 0 && a.count >= 0 &&
            a.count <= g.capacity - a.first);
  if (dry() || a.count == 0) return;
  constexpr size_t kPart = size_t(16) << 20;
  const size_t each = kv_cell_bytes(kv);
  const int most = int(std::clamp<size_t>(kPart / each, 1, size_t(a.count)));
  auto* packed = static_cast<std::byte*>(pinned(size_t(most) * each));
  for (int done = 0; done < a.count; done += most) {
    const int count = std::min(most, a.count - done);
    body(CellsCall{view_of(&kv), a.slot, a.first + done, count, packed}, size_t(done) * each, size_t(count) * each);
  }
}

void CudaBackend::kv_read(const KvStore& kv, const KvCellsArgs& a, std::byte* out) {
  bind();
  hold(kv, a.slot, a.first + a.count, a.first + a.count);
  each_part(kv, a, [&](const CellsCall& part, size_t at, size_t bytes) {
    copy_cells(part, false, stream_);
    wait();
    std::memcpy(out + at, part.packed, bytes);
  });
}

void CudaBackend::kv_write(KvStore& kv, const KvCellsArgs& a, const std::byte* from) {
  bind();
  hold(kv, a.slot, a.first, a.first + a.count);
  each_part(kv, a, [&](const CellsCall& part, size_t at, size_t bytes) {
    std::memcpy(part.packed, from + at, bytes);
    copy_cells(part, true, stream_);
    wait();  // before the memory is filled again
  });
}

void CudaBackend::kv_score(const KvScoreArgs& a) {
  bind();
  const size_t chunks = a.borders.size() - 1, layers = std::max<size_t>(1, a.layers.size());
  const size_t rows = layers * size_t(a.heads), count = a.mean ? chunks : rows * chunks;
  if (dry()) return std::fill_n(a.out, count, 0.0f), void();
  SX_ASSERT(!in_step());
  if (chunks == 0) return;
  hold(*a.kv, a.slot, a.borders.back(), a.borders.back());
  if (layers > size_t(kMostScoreLayers)) return score_layers(a, [this](const KvScoreArgs& one) { kv_score(one); });
  auto* borders = static_cast<int32_t*>(scratch(borders_, a.borders.size_bytes(), "borders of chunks"));
  // The kernel itself writes the few mean scores to mapped host memory.
  void* back = pinned(count * sizeof(float));
  auto* scores = static_cast<float*>(a.mean ? back : scratch(scores_, count * sizeof(float), "scores of chunks"));
  void* sums = scratch(score_, score_scratch_bytes(a.heads, a.borders.back() + 1, int(layers)), "scores");
  ScoreCall call = score_call(a);
  call.borders = borders;
  (a.mean ? call.mean : call.out) = scores;
  send_borders(a, call);
  if (a.mean) std::fill_n(static_cast<uint32_t*>(back), count, kUnwritten);
  cuda::kv_score(call, sums, stream_);
  if (a.mean) {
    await_written(back, count);
  } else {
    check(cudaMemcpyAsync(back, scores, count * sizeof(float), cudaMemcpyDeviceToHost, stream_), "scores");
    wait();
  }
  std::memcpy(a.out, back, count * sizeof(float));
}

ScoreCall CudaBackend::score_call(const KvScoreArgs& a) {
  ScoreCall call{nullptr,
                 a.q,
                 a.heads,
                 a.kv_heads,
                 a.head_dim,
                 a.scale,
                 view_of(a.kv),
                 a.layer,
                 a.slot,
                 nullptr,
                 int(a.borders.size()) - 1,
                 a.borders.front(),
                 a.borders.back(),
                 a.kind};
  call.layers = std::max(1, int(a.layers.size()));
  if (!a.layers.empty()) call.layer = a.layers[0];
  for (size_t i = 1; i < a.layers.size(); ++i) call.others[i - 1] = a.layers[i];
  return call;
}

// The last choice and the one before lie on the device, in two lists that alternate, unless they were made on the host.
class CudaBackend::Choice final : public HostChoice {
 public:
  Choice(CudaBackend& backend, int most_cells) : HostChoice(most_cells), backend_(backend) {
    for (int32_t*& list : lists_)
      list = static_cast<int32_t*>(backend.arena_.take(size_t(most_cells) * sizeof(int32_t), "chosen cells"));
  }
  std::span<const int32_t> cells() override {
    if (unread_) {
      backend_.bind();
      const size_t bytes = size_t(listed_) * sizeof(int32_t);
      void* back = backend_.pinned(bytes);
      check(cudaMemcpyAsync(back, lists_[turn_], bytes, cudaMemcpyDeviceToHost, backend_.stream_), "chosen cells");
      backend_.wait();
      chosen.resize(size_t(listed_));
      std::memcpy(chosen.data(), back, bytes);
      unread_ = false;
    }
    return chosen;
  }
  // Hands both lists to the call that fills the next one, with so many choices.
  void turn(RetrieveCall& call, int choices = 1) {
    call.before = lists_[turn_], call.listed = listed_;
    if (!on_device_ || choices > 1) call.held = 0;
    turn_ ^= 1, listed_ = call.count * choices;
    call.chosen = lists_[turn_];
    on_device_ = unread_ = true;
  }
  void to_host() { cells(), on_device_ = false; }

 private:
  CudaBackend& backend_;
  int32_t* lists_[2];
  int turn_ = 0, listed_ = 0;
  bool on_device_ = false, unread_ = false;
};

std::unique_ptr<KvChoice> CudaBackend::make_choice(int most_cells) {
  bind();
  return std::make_unique<Choice>(*this, most_cells);
}

void CudaBackend::kv_retrieve(const KvRetrieveArgs& a, KvChoice& kept) {
  bind();
  auto& choice = static_cast<Choice&>(kept);
  const EvenPlan& plan = a.plan;
  const int lists = a.each_head ? int(a.score.layers.size()) * a.score.kv_heads : 1;
  if (dry()) return choice.chosen.assign(size_t(plan.count) * size_t(lists), 0);
  SX_ASSERT(!in_step());
  const size_t chunks = a.score.borders.size() - 1;
  const bool many_layers = a.score.layers.size() > size_t(kMostScoreLayers) && !a.each_head;
  if (many_layers || chunks > size_t(kMostRetrieveChunks)) {
    choice.to_host();
    return retrieve_on_host(*this, a, choice);
  }
  hold(*a.from, a.slot, a.score.borders.back(), a.score.borders.back());
  hold(*a.score.kv, a.score.slot, a.score.borders.back(), a.score.borders.back());
  hold(*a.to, a.slot, 0, plan.count);
  auto* means = static_cast<float*>(scratch(means_, (kMostRetrieveChunks + 1) * sizeof(float), "scores of chunks"));
  RetrieveCall call{means,
                    plan.chunk,
                    a.score.borders.back(),
                    plan.first,
                    plan.last,
                    plan.take,
                    a.per_cell,
                    reinterpret_cast<unsigned*>(means + kMostRetrieveChunks),
                    nullptr,
                    plan.count,
                    nullptr,
                    0,
                    a.held,
                    a.since,
                    a.compact,
                    a.shift,
                    a.shift_before,
                    a.top,
                    {}};
  const KvView to = view_of(a.to);
  call.where = {view_of(a.from), to,     a.slot, a.slot, 0, 0, to.kv_heads, frequencies(a.frequencies, a.dims),
                a.dims,          a.style};
  choice.turn(call, lists);
  if (a.each_head) return retrieve_heads(a, call);
  ScoreCall score = score_call(a.score);
  score.mean = means, score.chunk = plan.chunk;
  if (scores_in_pieces(score)) {
    score_pieces(score, scratch(score_, pieces_scratch_bytes(score.heads, score.end, score.layers), "scores"), stream_,
                 &call);
  } else {
    score.borders = static_cast<int32_t*>(scratch(borders_, a.score.borders.size_bytes(), "borders of chunks"));
    send_borders(a.score, score);
    cuda::kv_score(score, scratch(score_, score_scratch_bytes(score.heads, score.end + 1, score.layers), "scores"),
                   stream_);
    cuda::choose_chunks(call, stream_);
  }
  cuda::gather(call, stream_);
}

// A few layers after another are scored and choose; then the cells of all are gathered. The host waits for nothing.
void CudaBackend::retrieve_heads(const KvRetrieveArgs& a, RetrieveCall& call) {
  const int chunks = int(a.score.borders.size()) - 1, layers = int(a.score.layers.size());
  const size_t rows = size_t(kMostScoreLayers) * size_t(a.score.heads + a.score.kv_heads);
  auto* scores = static_cast<float*>(scratch(scores_, rows * size_t(chunks) * sizeof(float), "scores of chunks"));
  float* means = scores + size_t(kMostScoreLayers * a.score.heads) * size_t(chunks);
  auto* borders = static_cast<int32_t*>(scratch(borders_, a.score.borders.size_bytes(), "borders of chunks"));
  void* sums =
      scratch(score_, score_scratch_bytes(a.score.heads, a.score.borders.back() + 1, kMostScoreLayers), "scores");
  for (int first = 0; first < layers; first += kMostScoreLayers) {
    KvScoreArgs some = a.score;
    some.layers = a.score.layers.subspan(size_t(first), size_t(std::min(kMostScoreLayers, layers - first)));
    some.q = a.score.q + size_t(first) * size_t(a.score.heads) * size_t(a.score.head_dim);
    ScoreCall score = score_call(some);
    score.out = scores, score.borders = borders;
    send_borders(some, score);
    cuda::kv_score(score, sums, stream_);
    choose_heads(call, {scores, means, first, score.layers, a.score.heads, a.score.kv_heads, chunks}, stream_);
  }
  gather_heads(call, layers, stream_);
}

// Polls until a kernel has written all of these words of pinned memory: the host sees them some microseconds before it
// learns that the stream is done.
void CudaBackend::await_written(const void* words, size_t count) {
  const auto* word = static_cast<const volatile uint32_t*>(words);
  const DeviceLink::Wait waits(link_.get());
  for (size_t i = 0, looks = 0; i < count;) {
    if (word[i] != kUnwritten) {
      ++i;
      continue;
    }
    if (++looks % 8192 != 0) continue;
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaSuccess) break;  // then all is there
    if (status != cudaErrorNotReady) check(status, "waiting for the device");
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  waits.check();
}

// Sends the borders that the device does not have yet; a few of them travel in the launch parameters.
void CudaBackend::send_borders(const KvScoreArgs& a, ScoreCall& call) {
  if (call.borders != sent_to_) sent_borders_.clear();
  const auto known =
      std::mismatch(a.borders.begin(), a.borders.end(), sent_borders_.begin(), sent_borders_.end()).first;
  const size_t kept = size_t(known - a.borders.begin()), fresh = a.borders.size() - kept;
  if (a.kind != ScoreKind::kBound && fresh <= size_t(kMostFresh)) {
    call.kept = int(kept);
    std::copy(known, a.borders.end(), call.fresh);
  } else if (fresh > 0) {
    std::memcpy(staging_->begin(fresh * sizeof(int32_t)), a.borders.data() + kept, fresh * sizeof(int32_t));
    staging_->send(call.borders + kept, fresh * sizeof(int32_t));
  }
  sent_to_ = call.borders;
  sent_borders_.assign(a.borders.begin(), a.borders.end());
}

}  // namespace sx::cuda
