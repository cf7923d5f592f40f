#include "backend/ranks/ranks.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace sx {

const char* split_name(RankSplit split) { return split == RankSplit::kLayers ? "layers" : "columns"; }

RankSplit split_from_name(const std::string& name) {
  if (name == "layers") return RankSplit::kLayers;
  if (name == "columns") return RankSplit::kColumns;
  fail("split '{}' is not known: use layers or columns", name);
}

RankShare RankCut::of(int rank, int ranks) const {
  const int64_t units = (total + unit - 1) / unit;
  const auto begin = [&](int64_t r) { return int(std::min<int64_t>(total, (units * r + ranks - 1) / ranks * unit)); };
  return {begin(rank) * scale, begin(rank + 1) * scale};
}

RankCut column_cut(int columns, int ranks) {
  constexpr int kUnit = 16, kAligned = 4;
  return {.total = columns, .unit = columns >= kUnit * ranks ? kUnit : columns >= kAligned * ranks ? kAligned : 1};
}

std::string Ranks::describe() const {
  return fmt::format("{} rank{} by {}", size(), size() == 1 ? "" : "s", split_name(split_));
}

RankShare Ranks::layers(int total, int rank) const {
  return by_layers() ? RankCut{.total = total}.of(rank, size()) : RankShare{0, total};
}

RankShare Ranks::kv_heads(int total, int rank) const {
  return by_columns() ? RankCut{.total = total}.of(rank, size()) : RankShare{0, total};
}

std::span<const int> Ranks::listeners() {
  if (listeners_.empty()) {
    if (by_layers() && !last()) listeners_.push_back(rank() + 1);
    if (by_columns() && leads())
      for (int r = 1; r < size(); ++r) listeners_.push_back(r);
  }
  return listeners_;
}

MessageBuffer& Ranks::begin(RankCommand command) {
  SX_ASSERT(leads());
  message_.clear();
  return message_.put(command);
}

void Ranks::announce() { send_message(*comm_, listeners(), message_.bytes()); }

void Ranks::announce(std::span<const Outgoing> behind, std::span<const Incoming> in) {
  send_message(*comm_, listeners(), message_.bytes(), behind, in);
}

RankCommand Ranks::next_command() {
  SX_ASSERT(!leads());
  receive_message(*comm_, by_layers() ? rank() - 1 : 0, message_, true);
  const auto command = message_.get<RankCommand>();
  if (command != RankCommand::kForward) pass_on();
  return command;
}

void Ranks::pass_on() {
  if (by_layers() && !leads()) send_message(*comm_, listeners(), message_.bytes());
}

void Ranks::agree(const std::string& error) {
  MessageBuffer said;
  if (!leads()) {
    said.put_text(error);
    const int first = 0;
    send_message(*comm_, std::span(&first, 1), said.bytes());
    return;
  }
  std::string all = error;
  for (int r = 1; r < size(); ++r) {
    receive_message(*comm_, r, said, false);
    const std::string one = said.get_text();
    if (!one.empty() && all.empty()) all = fmt::format("{}: {}", comm_->describe(r), one);
  }
  if (!all.empty()) throw Error(all);
}

void Ranks::gather(float* rows, int count, int stride, const RankCut& cut, bool to_first) {
  const RankShare own = share(cut);
  if (size() == 1) return;
  if (count == 1) {  // the parts of one row lie where they belong
    parts_.clear();
    for (int r = 0; r < size(); ++r) {
      const RankShare part = share(cut, r);
      parts_.push_back(std::as_writable_bytes(std::span(rows + part.first, size_t(part.size()))));
    }
    return to_first ? comm_->gather(0, parts_) : comm_->all_gather(parts_);
  }
  const size_t width = size_t(cut.width()), n = size_t(count), columns = size_t(own.size());
  packed_.resize(std::max(packed_.size(), n * width));
  float* const mine = packed_.data() + n * size_t(own.first);
  for (size_t i = 0; i < n; ++i)
    std::memcpy(mine + i * columns, rows + i * size_t(stride) + own.first, columns * sizeof(float));
  parts_.clear();
  for (int r = 0; r < size(); ++r) {
    const RankShare part = share(cut, r);
    parts_.push_back(
        std::as_writable_bytes(std::span(packed_.data() + n * size_t(part.first), n * size_t(part.size()))));
  }
  if (to_first) comm_->gather(0, parts_);
  else comm_->all_gather(parts_);
  if (to_first && !leads()) return;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const RankShare part = share(cut, r);
    const float* from = packed_.data() + n * size_t(part.first);
    for (size_t i = 0; i < n; ++i)
      std::memcpy(rows + i * size_t(stride) + part.first, from + i * size_t(part.size()),
                  size_t(part.size()) * sizeof(float));
  }
}

void Ranks::gather(const float* mine, float* rows, int count, int stride, const RankCut& cut) {
  const RankShare own = share(cut);
  for (int i = 0; i < count; ++i)
    std::memcpy(rows + size_t(i) * size_t(stride) + own.first, mine + size_t(i) * size_t(own.size()),
                size_t(own.size()) * sizeof(float));
  gather(rows, count, stride, cut);
}

}  // namespace sx
