#include "model/convert/plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/thread_pool.h"
#include "model/convert/nearest.h"
#include "formats/validate.h"
#include "model/expert_weights.h"
#include "tensor/blocks.h"
#include "tensor/quantise_search.h"

namespace sx {
namespace {

constexpr size_t kBatchBytes = size_t{8} << 20;  // of output, made by all threads and then written
constexpr float kLargestF16 = 65504;

// Working memory of one thread.
struct Scratch {
  std::vector<float> source, row;
};

// Makes rows of one tensor. Const while threads share it, but for the flag.
class RowMaker {
 public:
  RowMaker(const TensorPlan& plan, bool nearest)
      : plan_(plan),
        quantise_(nearest ? quantise_nearest : quantise_search),
        row_bytes_(dtype_bytes(plan.out.type, plan.out.columns())) {
    const Tensor* tensor = plan.source ? &plan.source->tensor : nullptr;
    raw_ = tensor && tensor->type == plan.out.type && plan.columns.empty() && plan.scale == 1 && plan.offset == 0;
    if (tensor && plan.columns.empty()) SX_ASSERT(tensor->columns() == plan.out.columns());
    if (tensor && !plan.columns.empty()) SX_ASSERT(static_cast<size_t>(tensor->columns()) == plan.columns.size());
  }

  size_t row_bytes() const { return row_bytes_; }
  int64_t rows() const { return plan_.out.elements() / plan_.out.columns(); }
  bool zeros(int64_t row) const { return plan_.source ? source_row(row) < 0 : plan_.values.empty(); }

  void make(int64_t row, Scratch& scratch, std::byte* to) {
    if (zeros(row)) {
      std::memset(to, 0, row_bytes_);
    } else if (raw_) {
      std::memcpy(to, plan_.source->tensor.row(source_row(row)), row_bytes_);
    } else {
      fill(row, scratch);
      check(scratch.row);
      quantise_(plan_.out.type, scratch.row.data(), plan_.out.columns(), to);
    }
  }

  // Throws for what make() met, naming the tensor.
  void report() const {
    if (bad_ == kGood) return;
    const std::string what = plan_.source ? fmt::format("{}: tensor '{}'", plan_.source->file, plan_.source->original)
                                          : fmt::format("tensor '{}'", plan_.out.name);
    if (bad_ == kNotFinite) fail("{} holds a value that is not a finite number", what);
    fail("{} holds a value too large for {}", what, dtype_name(plan_.out.type));
  }

 private:
  enum Bad { kGood, kNotFinite, kTooLarge };

  int64_t source_row(int64_t row) const { return plan_.rows.empty() ? row : plan_.rows[static_cast<size_t>(row)]; }

  void fill(int64_t row, Scratch& scratch) const {
    const auto columns = static_cast<size_t>(plan_.out.columns());
    scratch.row.assign(columns, 0.0f);
    if (!plan_.source) {
      std::copy_n(plan_.values.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(row) * columns), columns,
                  scratch.row.begin());
      return;
    }
    const Tensor& tensor = plan_.source->tensor;
    const auto from = static_cast<size_t>(tensor.columns());
    scratch.source.resize(from);
    dequantise(tensor.type, tensor.row(source_row(row)), tensor.columns(), scratch.source.data());
    for (size_t i = 0; i < from; ++i) {
      const size_t at = plan_.columns.empty() ? i : static_cast<size_t>(plan_.columns[i]);
      scratch.row[at] = scratch.source[i] * plan_.scale;
      if (plan_.offset != 0) scratch.row[at] += plan_.offset;
    }
  }

  void check(const std::vector<float>& row) {
    const bool narrow = plan_.out.type != DType::kF32 && plan_.out.type != DType::kBF16;
    for (const float value : row) {
      if (!std::isfinite(value)) bad_ = kNotFinite;
      else if (narrow && std::fabs(value) > kLargestF16) bad_ = kTooLarge;
    }
  }

  const TensorPlan& plan_;
  void (*quantise_)(DType type, const float* values, int64_t count, void* out);
  size_t row_bytes_;
  bool raw_ = false;
  std::atomic<Bad> bad_{kGood};
};

class Writer {
 public:
  Writer(TensorOutput& out, const WriteOptions& options, int64_t total)
      : out_(out),
        progress_(options.progress),
        nearest_(options.nearest),
        total_(total),
        pool_(options.threads),
        scratch_(static_cast<size_t>(pool_.size())) {}

  void write(const TensorPlan& plan) {
    RowMaker maker(plan, nearest_);
    const int64_t rows = maker.rows();
    const auto batch = std::max<int64_t>(1, static_cast<int64_t>(kBatchBytes / maker.row_bytes()));
    for (int64_t first = 0; first < rows;) {
      const int64_t count = std::min(batch, rows - first);
      int64_t empty = 0;
      while (empty < rows - first && maker.zeros(first + empty)) ++empty;
      if (empty > 0) {
        out_.write_zeros(static_cast<uint64_t>(empty) * maker.row_bytes());
        advance(plan, empty);
        first += empty;
        continue;
      }
      make(maker, first, count);
      maker.report();
      out_.write(buffer_);
      advance(plan, count);
      first += count;
    }
  }

 private:
  void make(RowMaker& maker, int64_t first, int64_t count) {
    buffer_.resize(static_cast<size_t>(count) * maker.row_bytes());
    const int64_t threads = pool_.size();
    pool_.run([&](int thread) {
      for (int64_t i = count * thread / threads; i < count * (thread + 1) / threads; ++i) {
        maker.make(first + i, scratch_[static_cast<size_t>(thread)],
                   buffer_.data() + static_cast<size_t>(i) * maker.row_bytes());
      }
    });
  }

  void advance(const TensorPlan& plan, int64_t rows) {
    done_ += rows * plan.out.columns();
    if (progress_) progress_(static_cast<double>(done_) / static_cast<double>(total_));
  }

  TensorOutput& out_;
  const Progress& progress_;
  bool nearest_;
  int64_t total_, done_ = 0;
  ThreadPool pool_;
  std::vector<Scratch> scratch_;
  std::vector<std::byte> buffer_;
};

bool is_rotated(std::string_view name) {
  for (const char* part : {".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias"}) {
    if (name.ends_with(part)) return true;
  }
  return false;
}

// Experts that lie in the file otherwise than in stacks. `type_of` is asked with the type that they have there.
void plan_experts(const ModelFile& file, TensorPlan& plan,
                  const std::function<DType(const OutputTensor&, const NamedTensor*)>& type_of) {
  const std::string& name = plan.out.name;
  const std::string prefix = name.substr(0, name.find('.', 4) + 1);
  const LayerParts& parts = file.config().layer(std::stoi(name.substr(4)));
  const auto is = [&](const char* part) { return name.compare(prefix.size(), std::string::npos, part) == 0; };
  if (name.ends_with(".bias")) {
    ExpertStacks stacks;
    read_expert_biases(file, prefix, parts, stacks);
    if (is("ffn_down_exps.bias")) plan.values = stacks.down_bias;
    const auto ffn = static_cast<size_t>(parts.ffn), half = static_cast<size_t>(is("ffn_up_exps.bias"));
    for (size_t i = 0; i < stacks.gate_up_bias.size() && plan.values.size() < static_cast<size_t>(plan.out.elements());
         ++i)
      if (i / ffn % 2 == half) plan.values.push_back(stacks.gate_up_bias[i]);
    plan.out.type = DType::kF32;
    return;
  }
  const ExpertPart part = is("ffn_gate_exps.weight") ? ExpertPart::kGate
                          : is("ffn_up_exps.weight") ? ExpertPart::kUp
                                                     : ExpertPart::kDown;
  NamedTensor like{name, name, file.path(), {}};
  like.tensor.type = expert_type(file, prefix, part);
  plan.out.type = type_of(plan.out, &like);
  plan.made = [&file, &parts, like, prefix, part](std::vector<std::byte>& memory) {
    NamedTensor made = like;
    made.tensor = expert_stack(file, prefix, parts, part, memory);
    return made;
  };
}

}  // namespace

bool stays_float(const OutputTensor& tensor) {
  return tensor.shape.size() < 2 || tensor.name.ends_with(".bias") || tensor.name.ends_with(".ffn_gate_inp.weight");
}

ModelConfig with_stacked_experts(const ModelConfig& config) {
  ModelConfig out = config;
  out.expert_form = ExpertForm::kStacked;
  return out;
}

std::vector<OutputTensor> outputs_of(const std::vector<TensorPlan>& plans) {
  std::vector<OutputTensor> out;
  for (const auto& plan : plans) out.push_back(plan.out);
  return out;
}

void write_tensors(const std::function<void(const Tensor&)>& release, const std::vector<TensorPlan>& plans,
                   TensorOutput& out, const WriteOptions& options) {
  int64_t total = 0;
  for (const auto& plan : plans) total += plan.out.elements();
  Writer writer(out, options, total);
  for (size_t i = 0; i < plans.size(); ++i) {
    out.begin(i);
    if (plans[i].made) {
      std::vector<std::byte> memory;
      const NamedTensor source = plans[i].made(memory);
      TensorPlan plan = plans[i];
      plan.source = &source;
      writer.write(plan);
      continue;
    }
    writer.write(plans[i]);
    if (plans[i].source) release(plans[i].source->tensor);
  }
}

std::vector<int64_t> rope_row_order(const ModelConfig& config, int heads, RopeStyle to) {
  if (config.rope.style == to) return {};
  const int64_t head = config.head_dim, dims = config.rope.dims, half = dims / 2;
  std::vector<int64_t> out;
  for (int64_t row = 0; row < heads * head; ++row) {
    const int64_t base = row / head * head, within = row % head;
    int64_t from = within;
    if (within < dims)
      from = to == RopeStyle::kInterleaved ? within % 2 * half + within / 2 : within % half * 2 + within / half;
    out.push_back(base + from);
  }
  return out;
}

std::vector<TensorPlan> plan_model(const ModelFile& file, const ModelConfig& config, const TensorForm& to,
                                   const std::function<DType(const OutputTensor&, const NamedTensor*)>& type_of) {
  std::vector<TensorPlan> plans;
  for (const auto& expected : expected_tensors(config)) {
    TensorPlan plan;
    plan.out.name = expected.name;
    plan.out.shape = expected.shape;
    plan.source = file.find(expected.name);
    const bool experts = expected.name.find("_exps.") != std::string::npos;
    if (experts && config.expert_form != file.config().expert_form) {
      plan.source = nullptr;
      plan_experts(file, plan, type_of);
      plans.push_back(std::move(plan));
      continue;
    }
    plan.out.type = type_of(plan.out, plan.source);
    if (expected.name.ends_with("norm.weight")) plan.offset = config.norm_offset - to.norm_offset;
    if (plan.source && is_rotated(expected.name)) {
      const bool query = expected.name.find("attn_q") != std::string::npos;
      const auto order = rope_row_order(file.config(), query ? config.heads : config.kv_heads, to.style);
      if (expected.shape.size() == 1) {  // a bias is one row: turn the map round
        plan.columns.resize(order.size());
        for (size_t i = 0; i < order.size(); ++i) plan.columns[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
      } else {
        plan.rows = order;
      }
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace sx
