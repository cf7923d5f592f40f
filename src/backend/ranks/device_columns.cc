// Ranks by columns on devices: how the columns of rows in device memory come together.
#include <algorithm>
#include <cstdlib>

#include "backend/ranks/ranked_backend.h"
#include "base/error.h"

namespace sx {
namespace {

// Why the ranks cannot be joined by their devices' link; empty: they can.
std::string why_not(const std::vector<DeviceLink::Offer>& offers) {
  for (size_t r = 0; r < offers.size(); ++r) {
    if (!offers[r].why_not.empty()) return fmt::format("rank {}: {}", r, offers[r].why_not);
    for (size_t other = 0; other < r; ++other)
      if (offers[r].device == offers[other].device)
        return fmt::format("ranks {} and {} share a device ({})", other, r, offers[r].device);
  }
  return "";
}

}  // namespace

void RankedBackend::link_devices(Ranks& ranks, RankedBackend* backend) {
  Communicator& comm = ranks.comm();
  DeviceLink* const link = backend ? backend->right_->link() : nullptr;
  DeviceLink::Offer mine{"", "it has no link between devices"};
  if (link) mine = link->offer();
  MessageBuffer message;
  std::string why;
  if (ranks.leads()) {
    std::vector<DeviceLink::Offer> offers{mine};
    for (int r = 1; r < ranks.size(); ++r) {
      receive_message(comm, r, message, false);
      std::string device = message.get_text();
      offers.push_back({std::move(device), message.get_text()});
    }
    const char* const wanted = std::getenv("SPECEXTEND_NCCL");
    const std::string wish = wanted ? wanted : "";
    why = wish == "off" ? "SPECEXTEND_NCCL=off" : why_not(offers);
    std::vector<std::byte> id;
    if (why.empty()) id = link->new_id();
    const bool must = wish == "on" && !why.empty();
    message.clear();
    message.put_text(why).put(must).put_all(std::span<const std::byte>(id));
    for (int r = 1; r < ranks.size(); ++r) send_message(comm, std::span(&r, 1), message.bytes());
    message.resize(message.bytes().size());
  } else {
    message.put_text(mine.device).put_text(mine.why_not);
    const int first = 0;
    send_message(comm, std::span(&first, 1), message.bytes());
    receive_message(comm, first, message, false);
  }
  why = message.get_text();
  const bool must = message.get<bool>();
  std::vector<std::byte> id;
  message.get_all(id);
  if (must) fail("SPECEXTEND_NCCL=on: {}", why);
  if (!backend) return;
  backend->watch_.reset();
  if (why.empty()) {
    backend->watch_ = std::make_unique<LinkWatch>(comm, *link);
    link->join(id, ranks.rank(), ranks.size());
  }
  backend->link_ = why.empty() ? link : nullptr;
  backend->way_ = why.empty() ? " with " + link->name() : " through host memory: " + why;
  backend->record_steps(why.empty());
}

// Memory for rows on their way is taken here: recorded steps cannot take any.
void RankedBackend::reserve(const StepLimits& limits) {
  right_->reserve(limits);
  if (!wants_link()) return;
  const size_t rows = size_t(row_capacity(limits.rows)), outputs = size_t(output_capacity(limits.outputs));
  const size_t entries = rows * size_t(limits.experts_used);
  const size_t most =
      std::max({rows * size_t(limits.width), outputs * size_t(limits.vocab), entries * size_t(limits.expert_ffn)});
  if (most > packed_size_) packed_ = right_->allocate(packed_size_ = most, "columns of ranks");
}

void RankedBackend::gather(const GatherArgs& a) {
  if (!host_memory_) return gather_on_device(a);
  if (a.mine) ranks_->gather(a.mine, a.rows, a.count, a.stride, a.cut);
  else ranks_->gather(a.rows, a.count, a.stride, a.cut, a.to_first);
}

// Several rows travel packed by rank: [rank][row][its columns]. Rows of padding travel, too, so that a recorded step
// serves every count of rows that is padded to the same one. The parts of a single row lie in their place.
void RankedBackend::gather_on_device(const GatherArgs& a) {
  const RankShare own = ranks_->share(a.cut);
  const int count = a.launched ? a.count : launched_rows(a.count);
  const auto copy = [&](float* to, int to_stride, const float* from, int from_stride, int width) {
    if (width > 0)
      right_->copy_rows({.to = to,
                         .from = from,
                         .rows = a.count,
                         .width = width,
                         .to_stride = to_stride,
                         .from_stride = from_stride,
                         .launched = a.launched});
  };
  float* const place = a.rows + own.first;
  if (a.mine) copy(place, a.stride, a.mine, own.size(), own.size());
  if (ranks_->size() == 1) return;
  const bool one = count == 1, receives = !a.to_first || ranks_->leads();
  SX_ASSERT(one || size_t(count) * size_t(a.cut.width()) <= packed_size_);
  float* const packed = one ? a.rows : packed_;
  const auto part = [&](int r) { return packed + size_t(count) * size_t(ranks_->share(a.cut, r).first); };
  if (!one) copy(part(ranks_->rank()), own.size(), place, a.stride, own.size());
  if (link_) {
    out_.clear(), in_.clear();
    for (int step = 1; step < ranks_->size(); ++step) {  // everyone begins with another peer
      const int to = (ranks_->rank() + step) % ranks_->size(),
                from = (ranks_->rank() + ranks_->size() - step) % ranks_->size();
      const auto floats = [&](int r) { return size_t(count) * size_t(ranks_->share(a.cut, r).size()); };
      if (!own.empty() && (!a.to_first || to == 0)) out_.push_back({to, part(ranks_->rank()), floats(ranks_->rank())});
      if (receives && floats(from) > 0) in_.push_back({from, part(from), floats(from)});
    }
    if (!out_.empty() || !in_.empty()) link_->exchange(out_, in_);
  } else {
    exchange_by_host(packed, count, a);
  }
  if (one || !receives) return;
  for (int r = 0; r < ranks_->size(); ++r) {
    const RankShare other = ranks_->share(a.cut, r);
    if (r != ranks_->rank()) copy(a.rows + other.first, a.stride, part(r), other.size(), other.size());
  }
}

void RankedBackend::exchange_by_host(float* packed, int count, const GatherArgs& a) {
  const size_t rows = size_t(count);
  host_.resize(std::max(host_.size(), rows * size_t(a.cut.width())));
  parts_.clear();
  for (int r = 0; r < ranks_->size(); ++r) {
    const RankShare part = ranks_->share(a.cut, r);
    const size_t at = rows * size_t(part.first), floats = rows * size_t(part.size());
    if (r == ranks_->rank() && floats > 0) right_->download(host_.data() + at, packed + at, floats);
    parts_.push_back(std::as_writable_bytes(std::span(host_.data() + at, floats)));
  }
  if (a.to_first) ranks_->comm().gather(0, parts_);
  else ranks_->comm().all_gather(parts_);
  if (a.to_first && !ranks_->leads()) return;
  // Parts lie one behind the other, so that what came lies before and behind this rank's.
  const RankShare own = ranks_->share(a.cut);
  const size_t before = rows * size_t(own.first), behind = rows * size_t(own.end), all = rows * size_t(a.cut.width());
  if (before > 0) right_->upload(packed, host_.data(), before);
  if (all > behind) right_->upload(packed + behind, host_.data() + behind, all - behind);
}

}  // namespace sx
