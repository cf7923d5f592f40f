// A backend that hands every call on to another: what a derived one changes or listens to, it overrides.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "backend/backend.h"

namespace sx {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> right) : right_(std::move(right)) {}

  std::string name() const override { return right_->name(); }
  std::vector<Use> memory() const override { return right_->memory(); }
  DType default_kv_type() const override { return right_->default_kv_type(); }
  std::unique_ptr<Matrix> make_matrix(std::span<const Tensor> parts) override { return right_->make_matrix(parts); }
  std::unique_ptr<Matrix> make_experts(std::span<const Tensor> parts) override { return right_->make_experts(parts); }
  std::unique_ptr<KvStore> make_kv(const KvGeometry& geometry) override { return right_->make_kv(geometry); }
  float* allocate(size_t count, const char* purpose) override { return right_->allocate(count, purpose); }
  void reserve(const StepLimits& limits) override { right_->reserve(limits); }
  Tensor place_table(const Tensor& table) override { return right_->place_table(table); }
  bool host_memory() const override { return right_->host_memory(); }
  std::unique_ptr<Matrix> make_part(std::span<const Tensor> parts, std::span<const RowsOf> of) override {
    return right_->make_part(parts, of);
  }
  int row_capacity(int rows) const override { return right_->row_capacity(rows); }
  int output_capacity(int outputs) const override { return right_->output_capacity(outputs); }
  int max_depth() const override { return right_->max_depth(); }
  void upload(float* to, const float* from, size_t count) override { right_->upload(to, from, count); }
  void download(float* to, const float* from, size_t count) override { right_->download(to, from, count); }
  void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override { right_->run(inputs, key, body); }
  int level_rows() const override { return 0; }  // what the other one did by itself would pass by here unseen
  void record_steps(bool wanted) override { right_->record_steps(wanted); }
  int launched_rows(int rows) const override { return right_->launched_rows(rows); }
  DeviceLink* link() override { return right_->link(); }
  void wait() override { right_->wait(); }
  DeviceTraits traits() const override { return right_->traits(); }
  void copy_rows(const CopyRowsArgs& a) override { right_->copy_rows(a); }
  void embed(const EmbedArgs& a) override { right_->embed(a); }
  void norm(const NormArgs& a) override { right_->norm(a); }
  void linear(const LinearArgs& a) override { right_->linear(a); }
  void rope_table(const RopeTableArgs& a) override { right_->rope_table(a); }
  void rope_store(const RopeStoreArgs& a) override { right_->rope_store(a); }
  void attend(const AttendArgs& a) override { right_->attend(a); }
  void glu(const GluArgs& a) override { right_->glu(a); }
  void experts(const ExpertsArgs& a) override { right_->experts(a); }
  void soft_cap(const SoftCapArgs& a) override { right_->soft_cap(a); }
  void gather(const GatherArgs& a) override { right_->gather(a); }
  void kv_move(const KvMoveArgs& a) override { right_->kv_move(a); }
  void kv_score(const KvScoreArgs& a) override { right_->kv_score(a); }
  std::unique_ptr<KvChoice> make_choice(int most_cells) override { return right_->make_choice(most_cells); }
  void kv_retrieve(const KvRetrieveArgs& a, KvChoice& choice) override { right_->kv_retrieve(a, choice); }
  size_t kv_cell_bytes(const KvStore& kv) const override { return right_->kv_cell_bytes(kv); }
  void kv_read(const KvStore& kv, const KvCellsArgs& a, std::byte* out) override { right_->kv_read(kv, a, out); }
  void kv_write(KvStore& kv, const KvCellsArgs& a, const std::byte* from) override { right_->kv_write(kv, a, from); }
  void kv_release(KvStore& kv, const KvReleaseArgs& a) override { right_->kv_release(kv, a); }
  void choose(const ChooseArgs& a) override { right_->choose(a); }
  void probabilities(const ProbabilitiesArgs& a) override { right_->probabilities(a); }
  void top_k(const TopKArgs& a) override { right_->top_k(a); }

 protected:
  std::unique_ptr<Backend> right_;
};

}  // namespace sx
