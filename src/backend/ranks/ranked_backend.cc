#include "backend/ranks/ranked_backend.h"

#include <algorithm>
#include <cstring>

#include "backend/host_scores.h"
#include "base/error.h"

namespace sx {
namespace {

const RankedKv* ranked(const KvStore* kv) { return dynamic_cast<const RankedKv*>(kv); }
KvStore* store_of(KvStore* kv) {
  const RankedKv* shared = ranked(kv);
  return shared ? shared->own.get() : kv;
}
const KvStore* store_of(const KvStore* kv) { return store_of(const_cast<KvStore*>(kv)); }
int own_layer(const KvStore* kv, int layer) {
  const RankedKv* shared = ranked(kv);
  return shared ? layer - shared->layers.first : layer;
}

struct MoveHeader {
  int from, to, from_slot, to_slot, dims, layer, head;
  RopeStyle style;
};
struct ScoreHeader {
  int kv, heads, kv_heads, head_dim, layer, slot;
  float scale;
  ScoreKind kind;
};
struct CellsHeader {
  int kv;
  KvCellsArgs cells;
  uint64_t part;
};

}  // namespace

RankedBackend::RankedBackend(std::unique_ptr<Backend> own, std::shared_ptr<Ranks> ranks)
    : ForwardingBackend(std::move(own)), ranks_(std::move(ranks)), host_memory_(right_->host_memory()) {}

RankedBackend::~RankedBackend() {
  try {
    if (link_) right_->wait();  // as long as watch_ is there
  } catch (const std::exception&) {}
  if (!ranks_->leads()) return;
  try {
    ranks_->begin(RankCommand::kClose);
    ranks_->announce();
  } catch (const std::exception&) {}  // a rank is lost, and with it the job
}

std::string RankedBackend::name() const {
  std::string name = right_->name();
  return name.insert(name.rfind(')'), ", " + ranks_->describe() + way_);
}

DeviceTraits RankedBackend::traits() const {
  DeviceTraits traits = right_->traits();
  traits.mean_scores = false;  // the mean is taken over the scores of all ranks
  return traits;
}

std::unique_ptr<KvStore> RankedBackend::make_kv(const KvGeometry& geometry) {
  if (!geometry.spread) return right_->make_kv(geometry);
  if (ranks_->leads()) {
    ranks_->begin(RankCommand::kMakeKv).put(geometry);
    ranks_->announce();
  }
  const RankShare layers = ranks_->layers(geometry.layers), heads = ranks_->kv_heads(geometry.kv_heads);
  KvGeometry own = geometry;
  own.layers = layers.size(), own.kv_heads = heads.size(), own.spread = false, own.part = true;
  const bool any = !layers.empty() && !heads.empty();
  return std::make_unique<RankedKv>(made_++, geometry, layers, heads, any ? right_->make_kv(own) : nullptr);
}

bool RankedBackend::grow_tree(const TreeGrowthArgs& args, StepInputs& step, const StepKey& key, FunctionRef body) {
  return !ranked(static_cast<const KvStore*>(key.kv)) && right_->grow_tree(args, step, key, body);
}

void RankedBackend::rope_store(const RopeStoreArgs& args) {
  RopeStoreArgs own = args;
  own.kv = store_of(args.kv), own.layer = own_layer(args.kv, args.layer);
  right_->rope_store(own);
}

void RankedBackend::attend(const AttendArgs& args) {
  if (const RankedKv* kv = ranked(args.kv);
      kv && (args.shape.kv_heads != kv->heads.size() || !kv->layers.has(args.layer)))
    return attend_remote(args, *kv);
  AttendArgs own = args;
  own.kv = store_of(args.kv), own.layer = own_layer(args.kv, args.layer);
  right_->attend(own);
}

void RankedBackend::kv_move(const KvMoveArgs& args) {
  const RankedKv *from = ranked(args.from), *to = ranked(args.to);
  SX_ASSERT((from == nullptr) == (to == nullptr));  // a store of one rank and one of all have no cells in common
  if (!from) return right_->kv_move(args);
  if (ranks_->leads()) {
    const size_t frequencies = args.frequencies ? size_t(args.dims / 2) : 0;
    ranks_->begin(RankCommand::kMove)
        .put(MoveHeader{from->id, to->id, args.from_slot, args.to_slot, args.dims, args.layer, args.head, args.style})
        .put_all(args.moves)
        .put_all(std::span(args.frequencies, frequencies));
    ranks_->announce();
  }
  move_own(args);
}

void RankedBackend::move_own(const KvMoveArgs& args) {
  const auto& kv = static_cast<const RankedKv&>(*args.from);
  if (!kv.own || (args.layer >= 0 && !kv.layers.has(args.layer)) || (args.head >= 0 && !kv.heads.has(args.head)))
    return;
  KvMoveArgs own = args;
  own.from = kv.own.get(), own.to = store_of(args.to);
  if (args.layer >= 0) own.layer -= kv.layers.first;
  if (args.head >= 0) own.head -= kv.heads.first;
  right_->kv_move(own);
}

void RankedBackend::follow_move(const Stores& stores) {
  MessageBuffer& message = ranks_->command();
  const auto header = message.get<MoveHeader>();
  std::vector<KvMove> moves;
  std::vector<double> frequencies;
  message.get_all(moves);
  message.get_all(frequencies);
  move_own({.from = stores.at(size_t(header.from)).get(),
            .to = stores.at(size_t(header.to)).get(),
            .from_slot = header.from_slot,
            .to_slot = header.to_slot,
            .moves = moves,
            .frequencies = frequencies.empty() ? nullptr : frequencies.data(),
            .dims = header.dims,
            .style = header.style,
            .layer = header.layer,
            .head = header.head});
}

void RankedBackend::kv_score(const KvScoreArgs& args) {
  const RankedKv* kv = ranked(args.kv);
  if (!kv) return right_->kv_score(args);
  SX_ASSERT(ranks_->leads());
  const auto one = [&](const KvScoreArgs& layer) { score_layer(layer, *kv); };
  args.mean || !args.layers.empty() ? score_layers(args, one) : one(args);
}

// Rank 0: one layer, not averaged.
void RankedBackend::score_layer(const KvScoreArgs& args, const RankedKv& kv) {
  const size_t width = size_t(args.heads) * size_t(args.head_dim);
  std::vector<float> query(width);
  right_->download(query.data(), args.q, width);
  ranks_->begin(RankCommand::kScore)
      .put(ScoreHeader{kv.id, args.heads, args.kv_heads, args.head_dim, args.layer, args.slot, args.scale, args.kind})
      .put_all(args.borders)
      .put_all(std::span<const float>(query));
  ranks_->announce();
  score_own(args, kv, args.out);
}

// Scores of this rank's part, and their way to rank 0, whose `out` has room for all.
void RankedBackend::score_own(const KvScoreArgs& args, const RankedKv& kv, float* out) {
  const size_t chunks = args.borders.size() - 1;
  const int group = args.heads / args.kv_heads;
  KvScoreArgs own = args;
  own.out = out + size_t(kv.heads.first * group) * chunks;
  own.q = args.q + size_t(kv.heads.first * group) * size_t(args.head_dim);
  own.heads = kv.heads.size() * group, own.kv_heads = kv.heads.size();
  own.kv = kv.own.get(), own.layer = args.layer - kv.layers.first;
  const bool mine = kv.own && kv.layers.has(args.layer);
  if (mine) right_->kv_score(own);
  std::vector<std::span<std::byte>> parts;
  for (int r = 0; r < ranks_->size(); ++r) {
    const RankShare heads = ranks_->kv_heads(args.kv_heads, r);
    const bool has = ranks_->layers(kv.geometry().layers, r).has(args.layer);
    parts.push_back(std::as_writable_bytes(
        std::span(out + size_t(heads.first * group) * chunks, has ? size_t(heads.size() * group) * chunks : 0)));
  }
  ranks_->comm().gather(0, parts);
}

void RankedBackend::follow_score(const Stores& stores) {
  MessageBuffer& message = ranks_->command();
  const auto header = message.get<ScoreHeader>();
  std::vector<int32_t> borders;
  std::vector<float> query;
  message.get_all(borders);
  message.get_all(query);
  const auto& kv = static_cast<const RankedKv&>(*stores.at(size_t(header.kv)));
  std::vector<float> out(size_t(header.heads) * (borders.size() - 1));
  if (query.size() > query_size_) query_ = right_->allocate(query_size_ = query.size(), "queries to score");
  right_->upload(query_, query.data(), query.size());
  score_own({.out = out.data(),
             .q = query_,
             .heads = header.heads,
             .kv_heads = header.kv_heads,
             .head_dim = header.head_dim,
             .scale = header.scale,
             .kv = &kv,
             .layer = header.layer,
             .slot = header.slot,
             .borders = borders,
             .kind = header.kind},
            kv, out.data());
}

// Of all layers and heads, as a store of one rank has them.
size_t RankedBackend::kv_cell_bytes(const KvStore& kv) const {
  const RankedKv* shared = ranked(&kv);
  if (!shared) return right_->kv_cell_bytes(kv);
  const KvGeometry &own = shared->own->geometry(), &whole = shared->geometry();
  return right_->kv_cell_bytes(*shared->own) / size_t(own.layers * own.kv_heads) *
         size_t(whole.layers * whole.kv_heads);
}

void RankedBackend::kv_read(const KvStore& kv, const KvCellsArgs& cells, std::byte* out) {
  const RankedKv* shared = ranked(&kv);
  if (!shared) return right_->kv_read(kv, cells, out);
  const size_t part = kv_cell_bytes(kv) / size_t(kv.geometry().layers * kv.geometry().kv_heads);
  ranks_->begin(RankCommand::kRead).put(CellsHeader{shared->id, cells, part});
  ranks_->announce();
  exchange_cells(*shared, cells, part, out, false);
}

void RankedBackend::kv_write(KvStore& kv, const KvCellsArgs& cells, const std::byte* from) {
  const RankedKv* shared = ranked(&kv);
  if (!shared) return right_->kv_write(kv, cells, from);
  const size_t part = kv_cell_bytes(kv) / size_t(kv.geometry().layers * kv.geometry().kv_heads);
  ranks_->begin(RankCommand::kWrite).put(CellsHeader{shared->id, cells, part});
  ranks_->announce();
  exchange_cells(*shared, cells, part, const_cast<std::byte*>(from), true);
}

// The cells of all ranks, in `whole` on rank 0: [count][layer][KV head] of `part` bytes each. Read from the stores, or
// written to them.
void RankedBackend::exchange_cells(const RankedKv& kv, const KvCellsArgs& cells, size_t part, std::byte* whole,
                                   bool write) {
  const KvGeometry& g = kv.geometry();
  const size_t cell = size_t(g.layers * g.kv_heads) * part;
  std::vector<std::byte> bytes;
  for (int r = 0; r < ranks_->size(); ++r) {
    if (r != ranks_->rank() && !ranks_->leads()) continue;
    const RankShare layers = ranks_->layers(g.layers, r), heads = ranks_->kv_heads(g.kv_heads, r);
    const size_t piece = size_t(heads.size()) * part;
    bytes.resize(size_t(cells.count) * size_t(layers.size()) * piece);
    if (bytes.empty()) continue;
    const auto between = [&](bool to_whole) {  // the rank's bytes and their places among all
      for (size_t c = 0, at = 0; c < size_t(cells.count); ++c)
        for (int l = layers.first; l < layers.end; ++l, at += piece) {
          std::byte* place = whole + c * cell + size_t(l * g.kv_heads + heads.first) * part;
          to_whole ? std::memcpy(place, bytes.data() + at, piece) : std::memcpy(bytes.data() + at, place, piece);
        }
    };
    const bool mine = r == ranks_->rank();
    if (write) {
      if (ranks_->leads()) between(false);
      if (!ranks_->leads()) ranks_->comm().receive(0, bytes);
      if (mine) right_->kv_write(*kv.own, cells, bytes.data());
      else ranks_->comm().send(r, bytes);
    } else {
      if (mine) right_->kv_read(*kv.own, cells, bytes.data());
      else ranks_->comm().receive(r, bytes);
      if (ranks_->leads()) between(true);
      else ranks_->comm().send(0, bytes);
    }
  }
}

void RankedBackend::kv_release(KvStore& kv, const KvReleaseArgs& args) {
  const RankedKv* shared = ranked(&kv);
  if (!shared) return right_->kv_release(kv, args);
  ranks_->begin(RankCommand::kRelease).put(shared->id).put(args);
  ranks_->announce();
  release_own(*shared, args);
}

void RankedBackend::release_own(const RankedKv& kv, const KvReleaseArgs& args) {
  const int first = std::max(args.first_layer, kv.layers.first),
            end = std::min(args.first_layer + args.layers, kv.layers.end);
  if (!kv.own || first >= end) return;
  KvReleaseArgs own = args;
  own.first_layer = first - kv.layers.first, own.layers = end - first;
  right_->kv_release(*kv.own, own);
}

void RankedBackend::follow(RankCommand command, Stores& stores) {
  MessageBuffer& message = ranks_->command();
  switch (command) {
    case RankCommand::kMakeKv: stores.push_back(make_kv(message.get<KvGeometry>())); break;
    case RankCommand::kMove: follow_move(stores); break;
    case RankCommand::kScore: follow_score(stores); break;
    case RankCommand::kAttend: follow_attend(stores); break;
    case RankCommand::kRelease: {
      const auto& kv = static_cast<const RankedKv&>(*stores.at(size_t(message.get<int>())));
      release_own(kv, message.get<KvReleaseArgs>());
      break;
    }
    case RankCommand::kRead:
    case RankCommand::kWrite: {
      const auto header = message.get<CellsHeader>();
      const auto& kv = static_cast<const RankedKv&>(*stores.at(size_t(header.kv)));
      exchange_cells(kv, header.cells, size_t(header.part), nullptr, command == RankCommand::kWrite);
      break;
    }
    default: fail("a rank was told to do something it does not know ({})", int(command));
  }
}

}  // namespace sx
