// Makes a backend whose memory the host cannot reach usable by tests that hand ops plain host memory: allocate() gives
// host memory, and every op copies what it reads to the other backend, runs there (ops on rows of sequences in a step
// of their own) and brings the results back. Matrices, stores and tables are the other backend's.
#pragma once
#include <memory>
#include <vector>

#include "support/forwarding_backend.h"

namespace sx::testing {

class HostFacingBackend : public ForwardingBackend {
 public:
  explicit HostFacingBackend(std::unique_ptr<Backend> right) : ForwardingBackend(std::move(right)) {}

  float* allocate(size_t count, const char* purpose) override;
  int row_capacity(int rows) const override { return rows; }
  int output_capacity(int outputs) const override { return outputs; }
  void reserve(const StepLimits& limits) override;
  void upload(float* to, const float* from, size_t count) override;
  void download(float* to, const float* from, size_t count) override;
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
  void kv_score(const KvScoreArgs& args) override;
  void kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice) override;
  void choose(const ChooseArgs& args) override;
  void probabilities(const ProbabilitiesArgs& args) override;
  void top_k(const TopKArgs& args) override;

 private:
  struct Scratch {
    float* memory = nullptr;
    size_t count = 0;
  };
  // Scratch number `which` of an op, with room for rows of padding behind these; null stays null.
  float* room(size_t which, int rows, size_t stride);
  float* put(size_t which, const float* host, int rows, size_t stride);
  float* put(size_t which, const float* host, size_t count) { return put(which, host, 1, count); }
  void get(float* host, const float* far, int rows, size_t stride);
  void need_rows(int rows);
  // A step of these rows, of ops on `kv` if any. Null tokens or positions are zeros; without sequences the rows are
  // short chains.
  void step(int rows, const Token* tokens, const int32_t* positions, std::span<const SeqRows> seqs, const KvStore* kv,
            FunctionRef body);

  std::vector<std::unique_ptr<float[]>> memory_;
  std::vector<Scratch> scratch_;
  StepLimits limits_{.width = 64, .heads = 1, .kv_heads = 1, .head_dim = 32, .context = 64, .vocab = 64};
  uint64_t steps_ = 0;  // every step has a key of its own
};

}  // namespace sx::testing
