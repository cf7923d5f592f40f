// Steps of a model that is spread over ranks: how rank 0 describes one to the others, and what travels between them
// besides the columns that a pass gathers.
#include <algorithm>

#include "base/error.h"
#include "backend/ranks/ranked_backend.h"
#include "model/model.h"
#include "model/model_state.h"

namespace sx {
namespace {

struct StepHeader {
  int32_t kv;
  int32_t window;
  bool prompt, skips_attention, skips_ffn;
};

// What a copy is loaded with.
struct CopyHeader {
  DType type;
  int32_t max_rows, max_outputs, context;
};

}  // namespace

// Of a copy the other ranks let go, too. A model that was opened ends with its backend.
Model::~Model() {
  if (number_ == 0 || !ranks_->leads()) return;
  try {
    begin(RankCommand::kDropCopy);
    ranks_->announce();
  } catch (const std::exception&) {}  // a rank is lost, and with it the job
}

std::unique_ptr<Model> Model::load_copy(const Model& original, DType type, ModelOptions options, bool sizes_only) {
  Requantiser requantise(type, sizes_only);
  options.check_weights = false;  // the original's have been looked through
  options.requantise = &requantise, options.original = &original;
  Ranks* const ranks = original.ranks_;
  if (!ranks) return load(original.file(), original.backend_, options);
  options.spread = true;
  if (ranks->leads()) {
    original.begin(RankCommand::kLoadCopy)
        .put(CopyHeader{type, options.max_rows, options.max_outputs, options.context});
    ranks->announce();
  }
  std::unique_ptr<Model> copy;
  std::string error;
  try {
    copy = load(original.file(), original.backend_, options);
    copy->number_ = original.copies_ + 1;
  } catch (const std::exception& e) { error = e.what(); }
  ++original.copies_;
  ranks->agree(error);
  return copy;
}

std::unique_ptr<Model> Model::follow_copy() const {
  const auto header = ranks_->command().get<CopyHeader>();
  ModelOptions options;
  options.max_rows = header.max_rows, options.max_outputs = header.max_outputs, options.context = header.context;
  return load_copy(*this, header.type, options, false);
}

const Matrix& Model::head() const {
  if (head_ && head_->out() == config().vocab) return *head_;
  if (!whole_head_) {
    const Tensor& tensor = file_->get(config().tied_head ? "token_embd.weight" : "output.weight");
    whole_head_ = backend_.make_matrix(std::span(&tensor, 1));
  }
  return *whole_head_;
}

void Model::announce_step(const Step& step, const KvStore& kv, const LayerPlan& plan) {
  if (!ranks_->leads()) return;
  const size_t layers = size_t(config().layers);
  MessageBuffer& message = begin(RankCommand::kForward);
  message.put(StepHeader{static_cast<const RankedKv&>(kv).id, plan.window, step.prompt, plan.skip_attention != nullptr,
                         plan.skip_ffn != nullptr});
  message.put_all(step.tokens).put_all(step.positions).put_all(step.outputs);
  if (plan.skip_attention) message.put_all(std::span(plan.skip_attention, layers));
  if (plan.skip_ffn) message.put_all(std::span(plan.skip_ffn, layers));
  message.put(uint64_t(step.seqs.size()));
  for (const SeqRows& s : step.seqs)
    message.put(SeqHeader{s.first_row, s.rows, s.slot, s.history, s.words, s.uncommitted, s.ancestors != nullptr});
  for (const SeqRows& s : step.seqs)
    if (s.ancestors) message.put_all(std::span(s.ancestors, size_t(s.rows) * size_t(s.words)));
  if (columns_) ranks_->announce();  // stages hear of it with the hidden states
}

void Model::follow_step(std::span<const std::unique_ptr<KvStore>> stores) {
  if (!followed_) followed_ = std::make_unique<Followed>();
  Followed& f = *followed_;
  MessageBuffer& message = ranks_->command();
  const auto header = message.get<StepHeader>();
  message.get_all(f.tokens);
  message.get_all(f.positions);
  message.get_all(f.outputs);
  if (header.skips_attention) message.get_all(f.skip_attention);
  if (header.skips_ffn) message.get_all(f.skip_ffn);
  f.headers.resize(size_t(message.get<uint64_t>()));
  size_t words = 0;
  for (SeqHeader& s : f.headers) {
    s = message.get<SeqHeader>();
    if (s.tree) words += size_t(s.rows) * size_t(s.words);
  }
  f.ancestors.clear();
  f.ancestors.reserve(words);
  f.seqs.clear();
  std::vector<uint64_t> bits;
  for (const SeqHeader& s : f.headers) {
    const uint64_t* ancestors = nullptr;
    if (s.tree) {
      message.get_all(bits);
      ancestors = f.ancestors.data() + f.ancestors.size();
      f.ancestors.insert(f.ancestors.end(), bits.begin(), bits.end());
    }
    f.seqs.push_back({.first_row = s.first_row,
                      .rows = s.rows,
                      .slot = s.slot,
                      .history = s.history,
                      .ancestors = ancestors,
                      .words = s.words,
                      .uncommitted = s.uncommitted});
  }
  SX_ASSERT(header.kv >= 0 && size_t(header.kv) < stores.size());
  forward({.tokens = f.tokens, .positions = f.positions, .seqs = f.seqs, .outputs = f.outputs, .prompt = header.prompt},
          *stores[size_t(header.kv)],
          {.skip_attention = header.skips_attention ? f.skip_attention.data() : nullptr,
           .skip_ffn = header.skips_ffn ? f.skip_ffn.data() : nullptr,
           .window = header.window});
}

void Model::follow(RankCommand command, std::span<const std::unique_ptr<KvStore>> stores) {
  MessageBuffer& message = ranks_->command();
  if (command == RankCommand::kForward) return follow_step(stores);
  if (command == RankCommand::kMoreLogits) {
    const int first = message.get<int>(), count = message.get<int>();
    more_logits(first, count);
    return;
  }
  SX_ASSERT(command == RankCommand::kTapQueries);
  std::vector<int> layers;
  message.get_all(layers);
  tap_queries(layers);
}

// A stage that is not the first: the hidden states of the one before it.
void Model::receive_states(const Step& step) {
  if (columns_ || ranks_->leads()) return;
  states_.resize(step.tokens.size() * size_t(config().width));
  ranks_->comm().receive(ranks_->rank() - 1, std::as_writable_bytes(std::span(states_)));
  backend_.upload(work_->x, states_.data(), states_.size());
}

// Stages: the hidden states to the next one; what rank 0 wants to know, to it. A step without outputs and taps is over
// for a stage as soon as it is handed on.
void Model::hand_on(const Step& step) {
  if (columns_) return;
  const int rows = int(step.tokens.size());
  if (!ranks_->last()) {
    ranks_->leads() ? ranks_->announce() : ranks_->pass_on();
    states_.resize(step.tokens.size() * size_t(config().width));
    backend_.download(states_.data(), work_->x, states_.size());
    ranks_->comm().send(ranks_->rank() + 1, std::as_bytes(std::span(states_)));
  }
  collect_taps(rows);
  if (!step.outputs.empty()) collect_logits(int(step.outputs.size()));
}

// Rank 0 of stages: where a step of several sequences is cut so that stages work on different parts of it at the same
// time; the ends of the parts, in sequences. Empty: it is run as a whole, because it is too small, or a drafter or a
// caller may ask for more of it than the logits of all its rows.
std::vector<size_t> Model::micro_batches(const Step& step) const {
  if (!ranks_ || columns_ || !ranks_->leads() || ranks_->size() == 1 || step.prompt || step.seqs.size() < 2 ||
      step.outputs.size() != step.tokens.size() || !options_.taps.hidden.empty() || !options_.taps.query.empty())
    return {};
  std::vector<size_t> ends;
  int rows = 0;
  for (size_t i = 0; i < step.seqs.size(); ++i) {
    if (step.seqs[i].first_row != (i == 0 ? 0 : step.seqs[i - 1].first_row + step.seqs[i - 1].rows)) return {};
    rows += step.seqs[i].rows;
    if (rows < ranks_->micro_rows) continue;
    ends.push_back(i + 1), rows = 0;
  }
  if (ends.size() < 2) return {};
  ends.back() = step.seqs.size();  // what is left joins the last part
  for (size_t i = 0; i < step.outputs.size(); ++i)
    if (step.outputs[i] != int32_t(i)) return {};
  return ends;
}

// While this stage works on part k, stage s works on part k - s. So the last stage's logits of a part come when this
// stage has finished as many parts more as there are other stages, and are received together with what is sent then:
// no rank waits for one that waits for it.
void Model::run_micro_batches(const Step& step, KvStore& kv, const LayerPlan& plan, std::span<const size_t> ends) {
  const size_t width = size_t(config().width), vocab = size_t(config().vocab), later = size_t(ranks_->size() - 1);
  std::vector<SeqRows> seqs;
  std::vector<int32_t> outputs(step.outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = int32_t(i);
  std::vector<float> logits(step.outputs.size() * vocab);
  std::vector<std::span<float>> parts;  // of the logits
  for (size_t part = 0, first = 0; part < ends.size(); first = ends[part++]) {
    const auto row = size_t(step.seqs[first].first_row);
    seqs.assign(step.seqs.begin() + ptrdiff_t(first), step.seqs.begin() + ptrdiff_t(ends[part]));
    for (SeqRows& seq : seqs) seq.first_row -= int(row);
    const auto rows = size_t(seqs.back().first_row + seqs.back().rows);
    Step own = step;
    own.tokens = step.tokens.subspan(row, rows), own.positions = step.positions.subspan(row, rows);
    own.seqs = seqs, own.outputs = std::span(outputs).first(rows);
    announce_step(own, kv, plan);
    backend_.run(own, {this, &kv, nullptr, key_of(own, plan)}, [&] { run_layers(own, kv, plan); });
    states_.resize(rows * width);
    backend_.download(states_.data(), work_->x, states_.size());
    parts.push_back(std::span(logits).subspan(row * vocab, rows * vocab));
    const Outgoing states{1, std::as_bytes(std::span(states_))};
    Incoming done{ranks_->size() - 1, {}};
    if (part >= later) done.bytes = std::as_writable_bytes(parts[part - later]);
    ranks_->announce(std::span(&states, 1), std::span(&done, part >= later ? 1 : 0));
  }
  for (size_t part = parts.size() - std::min(parts.size(), later); part < parts.size(); ++part)
    ranks_->comm().receive(ranks_->size() - 1, std::as_writable_bytes(parts[part]));
  backend_.upload(work_->logits, logits.data(), logits.size());
}

// Rows that a later stage has kept, to rank 0.
void Model::collect_taps(int rows) {
  const auto collect = [&](int layer, float* to, size_t width) {
    int owner = ranks_->size() - 1;
    for (int r = 0; r < ranks_->size(); ++r)
      if (ranks_->layers(config().layers, r).has(layer)) owner = r;
    if (owner == 0 || (ranks_->rank() != owner && !ranks_->leads())) return;
    states_.resize(size_t(rows) * width);
    if (ranks_->leads()) {
      ranks_->comm().receive(owner, std::as_writable_bytes(std::span(states_)));
      backend_.upload(to, states_.data(), states_.size());
    } else {
      backend_.download(states_.data(), to, states_.size());
      ranks_->comm().send(0, std::as_bytes(std::span(states_)));
    }
  };
  const auto &hidden = options_.taps.hidden, &query = options_.taps.query;
  for (size_t i = 0; i < hidden.size(); ++i) collect(hidden[i], work_->hidden[i], size_t(config().width));
  for (size_t i = 0; i < query.size(); ++i)
    collect(query[i], work_->query[i], size_t(config().heads) * size_t(config().head_dim));
}

// Stages: the logits from the last one to rank 0.
void Model::collect_logits(int outputs) {
  if (columns_ || ranks_->size() == 1 || !(ranks_->leads() || ranks_->last())) return;
  states_.resize(size_t(outputs) * size_t(config().vocab));
  if (ranks_->leads()) {
    ranks_->comm().receive(ranks_->size() - 1, std::as_writable_bytes(std::span(states_)));
    backend_.upload(work_->logits, states_.data(), states_.size());
  } else {
    backend_.download(states_.data(), work_->logits, states_.size());
    ranks_->comm().send(0, std::as_bytes(std::span(states_)));
  }
}

}  // namespace sx
