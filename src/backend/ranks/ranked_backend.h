// A backend that is one rank's part of a backend over all ranks. Matrices and rows are the rank's own; what is shared
// is the KV store of a model that is spread over ranks: a RankedKv knows the whole geometry, and holds this rank's
// layers or KV heads of it. Ops on such a store done by rank 0 are announced, and every rank does its part.
//
// Ops of a pass (rope_store, attend) are not announced: every rank runs the pass. But a drafter on rank 0 may attend to
// cells that other ranks have, outside a step: those ranks attend for it (remote_attend.cc).
#pragma once
#include <memory>
#include <vector>

#include "backend/forwarding_backend.h"
#include "backend/ranks/link_watch.h"
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
  void reserve(const StepLimits& limits) override;
  void gather(const GatherArgs& args) override;
  void linear_glu(const LinearArgs& product, const GluArgs& activation) override {
    right_->linear_glu(product, activation);
  }
  void mixture(const NormArgs& before, const LinearArgs& router, const ExpertsArgs& args) override {
    right_->mixture(before, router, args);
  }
  // Trees of drafters, which are not spread over ranks, grow as they do on one.
  int level_rows() const override { return right_->level_rows(); }
  bool grow_tree(const TreeGrowthArgs& args, StepInputs& step, const StepKey& key, FunctionRef body) override;
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

  // Ranks by columns whose memory is a device's: all ranks at the same time, before they load a model. They agree on
  // how rows travel: by the devices' own link where each has one and no two share a device, else through host memory,
  // and then steps are not recorded. backend: null on a rank that could not make one, which takes part all the same.
  // SPECEXTEND_NCCL=off: through host memory; on: an sx::Error where the link cannot be used.
  static void link_devices(Ranks& ranks, RankedBackend* backend);
  bool wants_link() const { return ranks_->by_columns() && !host_memory_; }

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

  void attend_remote(const AttendArgs& args, const RankedKv& kv);
  void attend_own(const AttendArgs& args, const RankedKv& kv, std::span<float> all);
  void follow_attend(const Stores& stores);
  void gather_on_device(const GatherArgs& args);
  void exchange_by_host(float* packed, int count, const GatherArgs& args);

  std::shared_ptr<Ranks> ranks_;
  const bool host_memory_;
  DeviceLink* link_ = nullptr;  // in use
  std::string way_;             // in which rows travel, for people
  float* packed_ = nullptr;     // rows on their way, by rank
  size_t packed_size_ = 0;
  std::vector<float> host_;
  std::vector<DeviceLink::Part> out_, in_;
  std::vector<std::span<std::byte>> parts_;
  int made_ = 0;            // stores
  float* query_ = nullptr;  // the others: what rank 0 asks with
  size_t query_size_ = 0;
  float* attended_ = nullptr;  // what this rank's heads give for a drafter
  size_t attended_size_ = 0;
  std::unique_ptr<LinkWatch> watch_;  // of link_; ends first
};

}  // namespace sx
