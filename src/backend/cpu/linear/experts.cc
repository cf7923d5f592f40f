#include "backend/cpu/linear/experts.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/linear/expert_rows.h"
#include "base/error.h"

namespace sx::cpu {
namespace {

constexpr int kExpertPieces = 6;     // of a pass over weights per thread
constexpr size_t kLeast = 64 << 10;  // bytes of weights of a piece
constexpr int kSmall = 1 << 13;      // elements below which a hand-over to other threads costs more than it saves

size_t pages_of(size_t n) { return (n + 4095) / 4096 * 4096; }

}  // namespace

std::unique_ptr<PackedMatrix> pack_experts(std::span<const Tensor> parts, Isa isa, ThreadPool& pool) {
  SX_ASSERT(!parts.empty() && parts[0].rank == 3);
  const int64_t experts = parts[0].shape[0];
  std::vector<Tensor> stacked;
  for (int64_t e = 0; e < experts; ++e)
    for (const Tensor& part : parts) {
      SX_ASSERT(part.rank == 3 && part.shape[0] == experts);
      Tensor one{.type = part.type, .rank = 2, .shape = {part.shape[1], part.shape[2]}, .data = nullptr};
      one.data = part.data + static_cast<size_t>(e) * one.bytes();
      stacked.push_back(one);
    }
  auto matrix = pack_matrix(stacked, isa, pool);
  matrix->experts_ = static_cast<int>(experts);
  matrix->out_ /= matrix->experts_;
  return matrix;
}

void ExpertsScratch::reserve(const StepLimits& limits, int threads) {
  if (limits.experts == 0) return;
  SX_ASSERT(limits.experts <= kMostExperts && limits.experts_used <= kMostUsedExperts);
  SX_ASSERT(limits.experts_used <= limits.experts);
  if (limits.rows <= rows_ && limits.experts <= experts_ && limits.experts_used <= used_ && limits.width <= width_ &&
      limits.expert_ffn <= ffn_ && threads <= threads_)
    return;
  rows_ = std::max(rows_, limits.rows);
  experts_ = std::max(experts_, limits.experts);
  used_ = std::max(used_, limits.experts_used);
  width_ = std::max(width_, limits.width);
  ffn_ = std::max(ffn_, limits.expert_ffn);
  threads_ = std::max(threads_, threads);
  const size_t entries = static_cast<size_t>(rows_) * static_cast<size_t>(used_), width = static_cast<size_t>(width_);
  choice_.resize(entries);
  place_.resize(entries);
  row_of_.resize(entries);
  weight_.resize(entries);
  first_.resize(static_cast<size_t>(experts_) + 1);
  tile_.resize(static_cast<size_t>(experts_));
  active_.reserve(static_cast<size_t>(experts_));
  const int in = std::max(width_, ffn_);
  const size_t active = std::min(entries, static_cast<size_t>(experts_));
  jobs_.reserve(4 * active + static_cast<size_t>(threads_ * kExpertPieces));  // at most four parts each
  const size_t tiles = entries / static_cast<size_t>(kernels_->act_rows) + active + 1;
  x_ = Pages(entries * width * sizeof(float), "rows of experts");
  gate_up_ = Pages(entries * 2 * static_cast<size_t>(ffn_) * sizeof(float), "rows of experts");
  inner_ = Pages(entries * static_cast<size_t>(ffn_) * sizeof(float), "rows of experts");
  y_ = Pages(entries * width * sizeof(float), "rows of experts");
  act_ = Pages(tiles * kernels_->act_bytes(in), "quantised activations of experts");
  worker_stride_ = pages_of(linear_worker_bytes(*kernels_, in));
  workers_ = Pages(worker_stride_ * static_cast<size_t>(threads_), "panels of experts");
}

// One call: route, sort, gate_up, gated unit, down, sum. Each is one job of the pool.
class ExpertsCall {
 public:
  ExpertsCall(const ExpertsArgs& args, ThreadPool& pool, ExpertsScratch& scratch)
      : a_(args),
        pool_(pool),
        s_(scratch),
        kernels_(*scratch.kernels_),
        entries_(args.rows * args.used),
        width_(args.gate_up->in()),
        ffn_(args.down->in()),
        own_ffn_(args.gate_up->out() / 2),
        own_width_(args.down->out()),
        first_inner_(args.part ? args.part->first_inner : 0),
        first_out_(args.part ? args.part->first_out : 0) {
    SX_ASSERT(args.rows <= s_.rows_ && args.used <= s_.used_ && args.gate_up->experts() <= s_.experts_);
    SX_ASSERT(width_ <= s_.width_ && ffn_ <= s_.ffn_ && ffn_ == (args.part ? args.part->ffn : own_ffn_));
    SX_ASSERT(first_inner_ + own_ffn_ <= ffn_ && first_out_ + own_width_ <= width_);
    SX_ASSERT(args.part || own_width_ == width_);
    SX_ASSERT(pool.workers() <= s_.threads_ && args.down->experts() == args.gate_up->experts());
  }

  void run() {
    each(a_.rows, a_.gate_up->experts() * a_.used, [&](int r) {
      const size_t at = size_t(r) * size_t(a_.used);
      route_row(a_, a_.logits + size_t(r) * size_t(a_.gate_up->experts()), &s_.choice_[at], &s_.weight_[at]);
    });
    sort_by_expert();
    const auto& gate_up = static_cast<const PackedMatrix&>(*a_.gate_up);
    const auto& down = static_cast<const PackedMatrix&>(*a_.down);
    float *x = s_.x_.as<float>(), *gates = s_.gate_up_.as<float>(), *inner = s_.inner_.as<float>();
    float* y = s_.y_.as<float>();
    // A single row is the input of all its experts, and stays where it is.
    const bool one = a_.rows == 1;
    if (one) {
      if (gate_up.act_blocks()) kernels_.quantise(a_.x, width_, 1, 0, 1, gate_up.act_blocks(), s_.act_.data());
    } else {
      each_tile(width_,
                [&](int expert, int first, int count) { gather(expert, first, count, x, gate_up.act_blocks()); });
    }
    multiply(gate_up, one ? a_.x : x, width_, a_.gate_up_bias, gates, one);
    each_tile(ffn_ * 4, [&](int expert, int first, int count) {
      const int from = s_.first_[size_t(expert)];
      for (int i = first; i < first + count; ++i)
        expert_glu(a_, gates + size_t(from + i) * size_t(2 * own_ffn_), own_ffn_,
                   inner + size_t(from + i) * size_t(ffn_) + first_inner_);
      if (!a_.part && down.act_blocks()) quantise(expert, first, inner, ffn_, down.act_blocks());
    });
    if (a_.part) {
      a_.part->gather(nullptr, inner, entries_, false);
      if (down.act_blocks())
        each_tile(ffn_, [&](int expert, int first, int) { quantise(expert, first, inner, ffn_, down.act_blocks()); });
    }
    multiply(down, inner, ffn_, a_.down_bias, y, false);
    each(a_.rows, width_ * a_.used, [&](int r) {
      const size_t at = size_t(r) * size_t(a_.used);
      combine_row(a_, y, &s_.place_[at], &s_.weight_[at], own_width_, a_.out + size_t(r) * size_t(width_) + first_out_);
    });
  }

 private:
  template <class Body>
  void each(int items, int elements, Body body) {
    if (int64_t(items) * elements >= kSmall) return pool_.each(items, body);
    for (int i = 0; i < items; ++i) body(i);
  }

  int rows_of(int expert) const { return s_.first_[size_t(expert) + 1] - s_.first_[size_t(expert)]; }

  void sort_by_expert() {
    const int experts = a_.gate_up->experts();
    std::fill_n(s_.first_.begin(), experts + 1, 0);
    for (int i = 0; i < entries_; ++i) ++s_.first_[size_t(s_.choice_[size_t(i)]) + 1];
    s_.active_.clear();
    int tile = 0;
    for (int e = 0; e < experts; ++e) {
      const int count = s_.first_[size_t(e) + 1];
      s_.first_[size_t(e) + 1] += s_.first_[size_t(e)];
      s_.tile_[size_t(e)] = tile;
      if (count == 0) continue;
      s_.active_.push_back(e);
      tile += (count + kernels_.act_rows - 1) / kernels_.act_rows;
    }
    tiles_ = tile;
    // Rows ascend within an expert: first_[e] counts up to where e + 1 begins, and is set back.
    for (int i = 0; i < entries_; ++i) {
      int32_t& next = s_.first_[size_t(s_.choice_[size_t(i)])];
      s_.place_[size_t(i)] = next;
      s_.row_of_[size_t(next++)] = i / a_.used;
    }
    for (int e = experts; e > 0; --e) s_.first_[size_t(e)] = s_.first_[size_t(e) - 1];
    s_.first_[0] = 0;
  }

  // body(expert, first of its rows, how many) for each tile of quantised activations.
  template <class Body>
  void each_tile(int elements, Body body) {
    each(tiles_, elements * kernels_.act_rows, [&](int tile) {
      const auto after = std::upper_bound(s_.active_.begin(), s_.active_.end(), tile,
                                          [&](int t, int e) { return t < s_.tile_[size_t(e)]; });
      const int expert = *std::prev(after), first = (tile - s_.tile_[size_t(expert)]) * kernels_.act_rows;
      body(expert, first, std::min(kernels_.act_rows, rows_of(expert) - first));
    });
  }

  void gather(int expert, int first, int count, float* x, int act_blocks) {
    const size_t width = size_t(width_);
    const int from = s_.first_[size_t(expert)];
    for (int i = first; i < first + count; ++i)
      std::memcpy(x + size_t(from + i) * width, a_.x + size_t(s_.row_of_[size_t(from + i)]) * width,
                  width * sizeof(float));
    if (act_blocks) quantise(expert, first, x, width_, act_blocks);
  }

  // The tile that begins with the expert's row `first`.
  void quantise(int expert, int first, const float* x, int in, int act_blocks) {
    const int tile = first / kernels_.act_rows;
    kernels_.quantise(x + size_t(s_.first_[size_t(expert)]) * size_t(in), in, rows_of(expert), tile, tile + 1,
                      act_blocks, act_of(expert, in));
  }
  std::byte* act_of(int expert, int in) const {
    return s_.act_.data() + size_t(s_.tile_[size_t(expert)]) * kernels_.act_bytes(in);
  }

  // Cuts the active experts' parts into jobs of about equal work.
  void plan(const PackedMatrix& matrix) {
    const size_t parts = matrix.parts().size() / size_t(matrix.experts());
    const auto work = [&](int e, const PackedMatrix::Part& part) {
      return size_t(part.groups) * part.group_bytes * size_t(3 + rows_of(e));  // a row of few costs less than reading
    };
    size_t total = 0;
    for (const int e : s_.active_)
      for (size_t p = 0; p < parts; ++p) total += work(e, matrix.parts()[size_t(e) * parts + p]);
    const size_t piece = std::max(total / size_t(pool_.size() == 1 ? 1 : pool_.size() * kExpertPieces), kLeast * 4);
    s_.jobs_.clear();
    for (const int e : s_.active_)
      for (size_t p = 0; p < parts; ++p) {
        const PackedMatrix::Part& part = matrix.parts()[size_t(e) * parts + p];
        const int pieces = int(std::clamp<size_t>(work(e, part) / piece, 1, size_t(part.groups)));
        for (int i = 0; i < pieces; ++i)
          s_.jobs_.push_back({.expert = e,
                              .part = int(size_t(e) * parts + p),
                              .first = part.groups * i / pieces,
                              .last = part.groups * (i + 1) / pieces});
      }
  }

  // out[entry] = W x[entry] + bias, all experts. `shared`: x is one row for all of them.
  void multiply(const PackedMatrix& matrix, const float* x, int in, const float* bias, float* out, bool shared) {
    plan(matrix);
    const int stride = matrix.out();
    pool_.each(int(s_.jobs_.size()), [&](int i, int worker) {
      const ExpertsScratch::Job& job = s_.jobs_[size_t(i)];
      const PackedMatrix::Part& part = matrix.parts()[size_t(job.part)];
      const size_t from = size_t(s_.first_[size_t(job.expert)]);
      run_groups(matrix, part,
                 {.first = job.first,
                  .last = job.last,
                  .x = shared ? x : x + from * size_t(in),
                  .act = shared ? s_.act_.data() : act_of(job.expert, in),
                  .rows = rows_of(job.expert),
                  .out = out + from * size_t(stride) + (part.first - job.expert * stride),
                  .out_stride = stride,
                  .bias = bias ? bias + part.first : nullptr,
                  .accumulate = false},
                 s_.workers_.data() + s_.worker_stride_ * size_t(worker));
    });
  }

  const ExpertsArgs& a_;
  ThreadPool& pool_;
  ExpertsScratch& s_;
  const LinearKernels& kernels_;
  int entries_, width_, ffn_;
  int own_ffn_, own_width_, first_inner_, first_out_;  // where columns are divided among ranks: this rank's
  int tiles_ = 0;
};

void experts(const ExpertsArgs& args, ThreadPool& pool, ExpertsScratch& scratch) {
  ExpertsCall(args, pool, scratch).run();
}

}  // namespace sx::cpu
