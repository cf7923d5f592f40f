// A backend that is one rank's part of a backend over all ranks. Matrices and rows are the rank's own; what is shared
// is the KV store of a model that is spread over ranks: a RankedKv knows the whole geometry, and holds this rank's
// layers or KV heads of it. Ops on such a store done by rank 0 are announced, and every rank does its part.
//
// Ops of a pass (rope_store, attend) are not announced: every rank runs the pass.
#pragma once
#include <memory>
#include <vector>

#include "backend/forwarding_backend.h"
#include "backend/ranks/ranks.h"

namespace sx {

class RankedKv final : public KvStore {
 public:
  RankedKv(int number, const KvGeometry& whole, RankShare own_layers, RankShare own_heads,
           std::unique_ptr<KvStore> store)
      : KvStore(whole), id(number), layers(own_layers), heads(own_heads), own(std::move(store)) {}
  size_t bytes() const override { return own ? own->bytes() : 0; }

  const int id;
  const RankShare layers, heads;       // of this rank
  const std::unique_ptr<KvStore> own;  // null: the rank has no layer or no head
};

class RankedBackend final : public ForwardingBackend {
 public:
  RankedBackend(std::unique_ptr<Backend> own, std::shared_ptr<Ranks> ranks);
  ~RankedBackend() override;  // rank 0: the others close what they have opened

  Ranks* ranks() override { return ranks_.get(); }
  std::string name() const override;
  std::unique_ptr<KvStore> make_kv(const KvGeometry& geometry) override;
  DeviceTraits traits() const override;
  void rope_store(const RopeStoreArgs& args) override;
  void attend(const AttendArgs& args) override;
  void kv_move(const KvMoveArgs& args) override;
  void kv_score(const KvScoreArgs& args) override;
  std::unique_ptr<KvChoice> make_choice(int most_cells) override { return Backend::make_choice(most_cells); }
  void kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice) override { Backend::kv_retrieve(args, choice); }
  size_t kv_cell_bytes(const KvStore& kv) const override;
  void kv_read(const KvStore& kv, const KvCellsArgs& cells, std::byte* out) override;
  void kv_write(KvStore& kv, const KvCellsArgs& cells, const std::byte* from) override;
  void kv_release(KvStore& kv, const KvReleaseArgs& args) override;

  // The others: does what rank 0 has announced. stores: those that were made, by their number.
  using Stores = std::vector<std::unique_ptr<KvStore>>;
  void follow(RankCommand command, Stores& stores);

 private:
  void score_layer(const KvScoreArgs& args, const RankedKv& kv);
  void follow_move(const Stores& stores);
  void follow_score(const Stores& stores);
  void move_own(const KvMoveArgs& args);
  void score_own(const KvScoreArgs& args, const RankedKv& kv, float* out);
  void release_own(const RankedKv& kv, const KvReleaseArgs& args);
  void exchange_cells(const RankedKv& kv, const KvCellsArgs& cells, size_t part, std::byte* whole, bool write);

  std::shared_ptr<Ranks> ranks_;
  int made_ = 0;            // stores
  float* query_ = nullptr;  // the others: what rank 0 asks with
  size_t query_size_ = 0;
};

}  // namespace sx
