// A backend whose memory the host cannot reach, as a GPU's: addresses from allocate() lie in pages without access, and
// every op finds the real memory behind them. It holds its callers to the contract of backend.h and throws sx::Error
// where they break it: buffers are backend memory and large enough, also for rows of padding (which come back as NaN);
// in a step the ops get the arrays of the step; steps with equal keys run the same ops on the same memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "support/forwarding_backend.h"

namespace sx::testing {

class FarBackend : public ForwardingBackend {
 public:
  explicit FarBackend(std::unique_ptr<Backend> right);  // one whose memory is the host's
  ~FarBackend() override;

  std::string name() const override { return "far " + right_->name(); }
  Tensor place_table(const Tensor& table) override;
  float* allocate(size_t count, const char* purpose) override;
  int row_capacity(int rows) const override { return (rows + 15) / 16 * 16; }
  int output_capacity(int outputs) const override { return row_capacity(outputs); }
  int max_depth() const override { return 63; }
  bool host_memory() const override { return false; }
  DeviceTraits traits() const override {
    return {.separate_prefill = true,
            .prefill_chunk = 2048,
            .mixed_chunk = right_->traits().mixed_chunk,  // so that rounds are those of the backend behind it
            .records_steps = true,
            .batch_choose = true,
            .mean_scores = true};
  }
  void upload(float* to, const float* from, size_t count) override;
  void download(float* to, const float* from, size_t count) override;
  void wait() override;
  // What lies behind so many floats that another device sends or receives.
  float* reach(float* far, size_t count) const { return floats(far, 1, count, count, "a message"); }
  void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override;
  void record_steps(bool wanted) override { records_ = wanted; }
  int launched_rows(int rows) const override { return int(padded(rows)); }

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
  void kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice) override;
  void kv_read(const KvStore& kv, const KvCellsArgs& args, std::byte* out) override;
  void kv_write(KvStore& kv, const KvCellsArgs& args, const std::byte* from) override;
  void choose(const ChooseArgs& args) override;
  void probabilities(const ProbabilitiesArgs& args) override;
  void top_k(const TopKArgs& args) override;

 private:
  struct Piece {
    size_t begin, end;
  };  // bytes of the mapping
  using Shape = std::tuple<const void*, const void*, const void*, uint64_t, size_t, size_t, size_t, bool>;

  std::byte* take(size_t bytes, const char* purpose);  // a far address
  // What lies behind `count` elements from a far address on; `what` names them in the error.
  std::byte* near(const void* far, size_t bytes, const char* what) const;
  float* floats(const float* far, size_t rows, size_t stride, size_t width, const char* what) const;
  float* vector(const float* far, size_t width, const char* what) const {
    return far ? floats(far, 1, width, width, what) : nullptr;
  }
  void expect_host(const void* p, const char* what) const;
  void expect_no_step(const char* op) const;
  // Rows of buffers that an op of so many rows may touch.
  size_t padded(int rows) const { return size_t(inputs_ ? row_capacity(rows) : rows); }
  void spoil(float* out, int rows, size_t stride, size_t width) const;
  void expect_rows(const char* op, int rows, bool outputs_only = false) const;
  void expect_seqs(const char* op, std::span<const SeqRows> seqs) const;
  void note(const char* op, std::initializer_list<const void*> memory, std::initializer_list<int64_t> numbers);

  std::byte *far_ = nullptr, *real_ = nullptr;  // mappings of the same size
  size_t used_ = 0;
  std::vector<Piece> pieces_;           // ascending
  const StepInputs* inputs_ = nullptr;  // of the step that runs
  uint64_t trace_ = 0;                  // of its ops
  bool records_ = true;
  std::map<Shape, uint64_t> recorded_;
};

}  // namespace sx::testing
