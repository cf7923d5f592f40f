// The CPU backend: a thread pool, the kernels of one instruction set, and their scratch memory.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/attention/attention.h"
#include "backend/cpu/sampling/choose.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kv/score.h"
#include "backend/cpu/linear/experts.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/sampling/top_k.h"
#include "base/memory.h"
#include "base/thread_pool.h"

namespace sx::cpu {

class CpuBackend : public Backend {
 public:
  CpuBackend(int threads, Isa isa);

  std::string name() const override;
  DType default_kv_type() const override;
  std::unique_ptr<Matrix> make_matrix(std::span<const Tensor> parts) override;
  std::unique_ptr<Matrix> make_experts(std::span<const Tensor> parts) override;
  std::unique_ptr<KvStore> make_kv(const KvGeometry& geometry) override;
  Tensor place_table(const Tensor& table) override { return table; }
  float* allocate(size_t count, const char* purpose) override;
  void reserve(const StepLimits& limits) override;

  void upload(float* to, const float* from, size_t count) override;
  void download(float* to, const float* from, size_t count) override { upload(to, from, count); }
  void run(const StepInputs&, const StepKey&, FunctionRef body) override { body(); }
  void copy_rows(const CopyRowsArgs& args) override;
  void embed(const EmbedArgs& args) override;
  void norm(const NormArgs& args) override;
  void linear(const LinearArgs& args) override;
  void rope_table(const RopeTableArgs& args) override;
  void rope_store(const RopeStoreArgs& args) override;
  void attend(const AttendArgs& args) override;
  void glu(const GluArgs& args) override;
  void experts(const ExpertsArgs& args) override;
  void soft_cap(const SoftCapArgs& args) override;
  void kv_move(const KvMoveArgs& args) override;
  void kv_score(const KvScoreArgs& args) override;
  size_t kv_cell_bytes(const KvStore& kv) const override;
  void kv_read(const KvStore& kv, const KvCellsArgs& cells, std::byte* out) override;
  void kv_write(KvStore& kv, const KvCellsArgs& cells, const std::byte* from) override;
  void kv_release(KvStore& kv, const KvReleaseArgs& args) override;
  // A round with a piece of a prompt takes several times as long as one without: small pieces, though not so small that
  // reading them costs much more.
  DeviceTraits traits() const override { return {.mixed_chunk = 32, .releases_cells = true}; }
  void choose(const ChooseArgs& args) override;
  void probabilities(const ProbabilitiesArgs& args) override;
  void top_k(const TopKArgs& args) override;

 private:
  ThreadPool pool_;
  Isa isa_;
  LinearScratch linear_scratch_;
  ExpertsScratch experts_scratch_;
  AttentionScratch attention_scratch_;
  ScoreScratch score_scratch_;
  RowScratches row_scratch_;
  std::vector<Pages> memory_;
};

}  // namespace sx::cpu
