// The CUDA backend: one stream, an arena, recorded steps (CUDA graphs), and the kernels of the sibling folders. Inside
// run() ops find the step's integers in device memory and row counts are padded; outside it each op sends what it
// needs.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/runtime/arena.h"
#include "backend/cuda/runtime/cuda_options.h"
#include "backend/cuda/runtime/device_units.h"
#include "backend/cuda/runtime/graphs.h"
#include "backend/cuda/tree/grow_tree.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/runtime/step_block.h"

namespace sx::cuda {

// Row counts that prefill GEMMs are padded to. All of them give a row the same bits (PromptLinear).
inline constexpr int kPromptSizes[] = {64, 128, 192, 256, 384, 512, 768, 1024};
inline constexpr int kPromptRows = 1024;  // the largest of them

struct ExpertsCall;
struct LogitEdit;
struct RetrieveCall;
struct ScoreCall;

class CudaBackend : public Backend {
 public:
  CudaBackend(const CudaOptions& options, std::unique_ptr<Backend> host);
  ~CudaBackend() override;

  std::string name() const override;
  DType default_kv_type() const override { return DType::kBF16; }
  std::unique_ptr<Matrix> make_matrix(std::span<const Tensor> parts) override;
  std::unique_ptr<Matrix> make_part(std::span<const Tensor> parts, std::span<const RowsOf> of) override;
  bool host_memory() const override { return false; }
  std::unique_ptr<Matrix> make_experts(std::span<const Tensor> parts) override;
  std::unique_ptr<KvStore> make_kv(const KvGeometry& geometry) override;
  Tensor place_table(const Tensor& table) override;
  float* allocate(size_t count, const char* purpose) override;
  int row_capacity(int rows) const override { return (rows + kPromptRows - 1) / kPromptRows * kPromptRows; }
  int output_capacity(int outputs) const override { return padded_rows(outputs); }
  int max_depth() const override;
  std::vector<Use> memory() const override;
  void reserve(const StepLimits& limits) override;

  void upload(float* to, const float* from, size_t count) override;
  void download(float* to, const float* from, size_t count) override;
  void wait() override;
  DeviceTraits traits() const override {
    return {.separate_prefill = true,
            .prefill_chunk = 2048,
            .mixed_chunk = 512,
            .records_steps = true,
            .batch_choose = true,
            .mean_scores = true};
  }
  void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override;
  void record_steps(bool wanted) override { records_ = wanted; }
  int launched_rows(int rows) const override { return padded(rows); }
  DeviceLink* link() override;
  int level_rows() const override { return level_rows_; }
  bool grow_tree(const TreeGrowthArgs& args, StepInputs& step, const StepKey& key, FunctionRef body) override;

  void copy_rows(const CopyRowsArgs& args) override;
  void embed(const EmbedArgs& args) override;
  void norm(const NormArgs& args) override;
  void linear(const LinearArgs& args) override;
  void rope_table(const RopeTableArgs& args) override;
  void rope_store(const RopeStoreArgs& args) override;
  void attend(const AttendArgs& args) override;
  void glu(const GluArgs& args) override;
  void soft_cap(const SoftCapArgs& args) override;
  void linear_glu(const LinearArgs& product, const GluArgs& activation) override;
  void experts(const ExpertsArgs& args) override;
  void mixture(const NormArgs& before, const LinearArgs& router, const ExpertsArgs& args) override;
  void kv_move(const KvMoveArgs& args) override;
  void kv_score(const KvScoreArgs& args) override;
  std::unique_ptr<KvChoice> make_choice(int most_cells) override;
  void kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice) override;
  size_t kv_cell_bytes(const KvStore& kv) const override;
  void kv_read(const KvStore& kv, const KvCellsArgs& cells, std::byte* out) override;
  void kv_write(KvStore& kv, const KvCellsArgs& cells, const std::byte* from) override;
  void choose(const ChooseArgs& args) override;
  void probabilities(const ProbabilitiesArgs& args) override;
  void top_k(const TopKArgs& args) override;

 private:
  // A buffer that grows; recorded steps keep the one they were recorded with.
  struct Scratch {
    void* data = nullptr;
    size_t size = 0;
  };
  // Pinned memory that kernels and copies write and the host reads.
  struct Pinned {
    void* data = nullptr;
    size_t size = 0;
  };
  struct Frequencies {
    std::vector<double> values;
    double* device;
  };
  // The 16-bit copy of the rows that the last norm, glu or attend wrote.
  struct Shadow {
    const float* of = nullptr;
    void* data = nullptr;
    int rows = 0, width = 0;
    Half half = Half::kBF16;
  };

  // CUDA has a current device per thread; an engine may be called by other threads than the one that opened it.
  void bind() const;
  void* scratch(Scratch& scratch, size_t bytes, const char* purpose);
  void* pinned(size_t bytes);
  const double* frequencies(const double* values, int dims);
  bool dry() const { return arena_.counts_only(); }
  bool in_step() const { return step_ != nullptr; }
  // The number of rows to launch: padded inside a recorded step.
  int padded(int rows) const;
  // Memory for cells that an op reads or, from `first` on, writes; first == end: it only reads. Throws sx::NoMemory
  // when there is none.
  void hold(const KvStore& kv, int slot, int first, int end);
  void hold(const KvStore& kv, std::span<const SeqRows> seqs);
  // Where the integers of an op are: the step's, or sent now.
  StepView place(const StepInputs& inputs);
  void* shadow(const float* of, int rows, int width);  // where a producer leaves its 16-bit copy
  void written(const float* rows) {
    if (rows == unwritten_) unwritten_ = nullptr;
  }
  float* wanted(float* out, const Matrix* only_for);  // where it leaves the rows themselves: null if the copy is enough
  void* half_of(const float* x, int rows, const CudaMatrix& matrix);
  ExpertsCall experts_call(const ExpertsArgs& args) const;
  void run_experts(ExpertsCall& call);
  void linear_of_prompt(const LinearArgs& args, const CudaMatrix& matrix);
  void attend_to_prompt(const AttendArgs& args);
  enum class Way { kPick, kFiltered, kHost };  // to choose from a row
  static Way way_of(const ChooseRow& row);
  static bool is_edited(const ChooseRow& row);
  static bool add_edits(const ChooseRow& row, int vocab, int at, std::vector<LogitEdit>& edits);
  template <class Body>
  void each_part(const KvStore& kv, const KvCellsArgs& cells, Body body);
  void reserve_copies(int vocab);
  void choose_any(const ChooseArgs& args);  // of rows as they are
  void choose_from_copies(const ChooseArgs& args, std::span<const size_t> rows);
  void pick_rows(const ChooseArgs& args);
  void filter_rows(const ChooseArgs& args, size_t first, size_t end);
  void choose_on_host(const ChooseArgs& args, size_t row);
  const float* row_on_host(const float* logits, int vocab);
  class Choice;
  ScoreCall score_call(const KvScoreArgs& args);  // without memory of ours
  void send_borders(const KvScoreArgs& args, ScoreCall& call);
  void retrieve_heads(const KvRetrieveArgs& args, RetrieveCall& call);
  void reserve_tree_growth();
  void send_plan(const TreeGrowthArgs& args);
  void grow_from(const TreeGrowthArgs& args, const GrowCall& grow, int rows);
  cudaGraphExec_t record_tree_growth(const TreeGrowthArgs& args, StepInputs& step, FunctionRef body);
  cudaGraphExec_t record_loop(const TreeGrowthArgs& args, FunctionRef body);
  void await_written(const void* words, size_t count);

  const int device_;
  std::string device_name_;
  std::unique_ptr<Backend> host_;
  Arena arena_;
  std::shared_ptr<UnitPool> units_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Staging> staging_;
  StepBlock block_;
  StepShape shape_;                   // of the step
  const StepInputs* step_ = nullptr;  // being run
  const void* step_kv_ = nullptr;     // whose cells it writes
  bool padding_ = false;              // its counts are padded
  bool records_ = true;               // false: steps wait for other ranks, and their bodies are called each time
  std::unique_ptr<DeviceLink> link_;
  Graphs graphs_{96};  // one of a model of 32 layers takes about a megabyte
  // Trees grown by the device. Loops can only be told apart from steps by what they are for, so they have a place of
  // their own.
  int level_rows_ = 0;        // 0: graphs cannot loop here
  bool plain_loops_ = false;  // the driver rejected programmatic launches inside them
  Graphs loops_{24};
  TreeGrowthPlan* plan_ = nullptr;
  TreeGrowthState* growth_ = nullptr;
  Candidate* likeliest_ = nullptr;     // [kLevelRows, kLevelBranch]
  TreeGrowthResult* grown_ = nullptr;  // the host's memory
  TreeGrowthStep level_step_{};
  std::unique_ptr<PromptLinear> prompt_linear_;
  Scratch half_, activated_, linear_, experts_, attend_, score_, scores_, means_, borders_, picks_, pick_, top_k_,
      masks_, copied_, edits_;
  Pinned pinned_;
  std::vector<Frequencies> frequencies_;
  Shadow shadow_;
  Half last_half_ = Half::kBF16;
  NormArgs deferred_{};                // a norm that its only reader does; x is null where there is none
  const float* unwritten_ = nullptr;   // rows of which only the copy is there
  std::vector<int32_t> sent_borders_;  // what sent_to_ holds
  const int32_t* sent_to_ = nullptr;
  std::vector<float> host_row_;
  std::vector<Candidate> candidates_;
};

std::unique_ptr<Backend> make_backend(const CudaOptions& options, std::unique_ptr<Backend> host);
std::string why_unavailable();  // empty: there is a device
int device_count();

}  // namespace sx::cuda
