// A drafter on rank 0 attends to cells of the target that other ranks have: they are sent the queries, and give what
// their KV heads or layers make of them. A head's result has the bits of one process, because no head is divided.
#include <algorithm>
#include <cstring>

#include "backend/ranks/ranked_backend.h"
#include "base/error.h"

namespace sx {
namespace {

struct AttendHeader {
  int kv, rows, layer, window;
  AttentionShape shape;
  float scale, soft_cap;
};
struct SeqPart {
  int32_t first_row, rows, slot, history, words, uncommitted;
  bool tree;
};

}  // namespace

void RankedBackend::attend_remote(const AttendArgs& args, const RankedKv& kv) {
  SX_ASSERT(ranks_->leads() && !args.sinks && !args.seqs.empty());
  const auto rows = size_t(args.seqs.back().first_row + args.seqs.back().rows), stride = size_t(args.q_stride),
             width = size_t(args.shape.q_width());
  std::vector<float> query(rows * stride), all(rows * width);
  right_->download(query.data(), args.q, query.size());
  for (size_t r = 1; stride > width && r < rows; ++r)
    std::copy_n(query.data() + r * stride, width, query.data() + r * width);
  MessageBuffer& message = ranks_->begin(RankCommand::kAttend);
  message.put(AttendHeader{.kv = kv.id,
                           .rows = int(rows),
                           .layer = args.layer,
                           .window = args.window,
                           .shape = args.shape,
                           .scale = args.scale,
                           .soft_cap = args.soft_cap});
  message.put_all(std::span<const float>(query).first(rows * width)).put(uint64_t(args.seqs.size()));
  for (const SeqRows& s : args.seqs) {
    message.put(SeqPart{s.first_row, s.rows, s.slot, s.history, s.words, s.uncommitted, s.ancestors != nullptr});
    if (s.ancestors) message.put_all(std::span(s.ancestors, size_t(s.rows) * size_t(s.words)));
  }
  ranks_->announce();
  attend_own(args, kv, all);
  right_->upload(args.out, all.data(), all.size());
}

// This rank's heads, and their way to rank 0, whose `all` has room for [rows, heads * head_dim].
void RankedBackend::attend_own(const AttendArgs& args, const RankedKv& kv, std::span<float> all) {
  const size_t width = size_t(args.shape.q_width()), rows = all.size() / width;
  const int column = args.shape.heads / args.shape.kv_heads * args.shape.head_dim;  // columns of a KV head
  const RankShare own{kv.heads.first * column, kv.heads.end * column};
  std::vector<float> packed(all.size());  // [rank][row][its columns]
  std::vector<std::span<std::byte>> parts;
  std::vector<RankShare> shares;
  size_t at = 0, mine = 0;
  for (int r = 0; r < ranks_->size(); ++r) {
    const RankShare heads = ranks_->kv_heads(args.shape.kv_heads, r);
    const bool has = ranks_->layers(kv.geometry().layers, r).has(args.layer);
    shares.push_back(has ? RankShare{heads.first * column, heads.end * column} : RankShare{});
    if (r == ranks_->rank()) mine = at;
    const size_t count = rows * size_t(shares.back().size());
    parts.push_back(std::as_writable_bytes(std::span(packed).subspan(at, count)));
    at += count;
  }
  if (const size_t count = rows * size_t(own.size()); kv.own && kv.layers.has(args.layer) && count > 0) {
    if (count > attended_size_) attended_ = right_->allocate(attended_size_ = count, "attention for a drafter");
    AttendArgs part = args;
    part.out = attended_, part.q = args.q + own.first;
    part.shape.heads = own.size() / args.shape.head_dim, part.shape.kv_heads = kv.heads.size();
    part.kv = kv.own.get(), part.layer = args.layer - kv.layers.first;
    right_->attend(part);
    right_->download(packed.data() + mine, attended_, count);
  }
  ranks_->comm().gather(0, parts);
  if (!ranks_->leads()) return;
  for (size_t r = 0, from = 0; r < shares.size(); ++r)
    for (size_t row = 0; row < rows; ++row, from += size_t(shares[r].size()))
      std::copy_n(packed.data() + from, size_t(shares[r].size()), all.data() + row * width + size_t(shares[r].first));
}

void RankedBackend::follow_attend(const Stores& stores) {
  MessageBuffer& message = ranks_->command();
  const auto header = message.get<AttendHeader>();
  std::vector<float> query;
  message.get_all(query);
  std::vector<SeqRows> seqs(size_t(message.get<uint64_t>()));
  std::vector<std::vector<uint64_t>> ancestors(seqs.size());
  for (size_t i = 0; i < seqs.size(); ++i) {
    const auto s = message.get<SeqPart>();
    if (s.tree) message.get_all(ancestors[i]);
    seqs[i] = {.first_row = s.first_row,
               .rows = s.rows,
               .slot = s.slot,
               .history = s.history,
               .ancestors = s.tree ? ancestors[i].data() : nullptr,
               .words = s.words,
               .uncommitted = s.uncommitted};
  }
  if (query.size() > query_size_) query_ = right_->allocate(query_size_ = query.size(), "queries of a drafter");
  right_->upload(query_, query.data(), query.size());
  std::vector<float> all(query.size());
  attend_own({.out = nullptr,
              .q = query_,
              .q_stride = header.shape.q_width(),
              .shape = header.shape,
              .scale = header.scale,
              .window = header.window,
              .soft_cap = header.soft_cap,
              .kv = stores.at(size_t(header.kv)).get(),
              .layer = header.layer,
              .seqs = seqs},
             static_cast<const RankedKv&>(*stores.at(size_t(header.kv))), all);
}

}  // namespace sx
