// A backend owns memory and runs ops. Set-up (matrices, stores, buffers) may throw; ops may not. All ops are
// batch-invariant: see ops.h.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/tree_growth.h"
#include "backend/device_link.h"
#include "backend/ops.h"
#include "base/function_ref.h"
#include "kv/types.h"
#include "tensor/tensor.h"

namespace sx {

class Ranks;

struct KvGeometry {
  int layers = 0, kv_heads = 0, head_dim = 0;
  int slots = 1;        // sequences
  int capacity = 0;     // cells per slot (rounded up to whole blocks)
  KvTypes type{};       // each F32, F16, BF16, Q8_0, Q4_0 or Q4_1 (a device may have fewer)
  bool spread = false;  // of a model that is spread over ranks, as its cells are then
  bool part = false;    // a rank's part of such a store
};

class KvStore {
 public:
  virtual ~KvStore() = default;
  const KvGeometry& geometry() const { return geometry_; }
  virtual size_t bytes() const = 0;  // reserved; physical memory follows use

 protected:
  explicit KvStore(const KvGeometry& geometry) : geometry_(geometry) {}
  KvGeometry geometry_;
};

// Which cells kv_retrieve() chose last: where it keeps its list.
class KvChoice {
 public:
  virtual ~KvChoice() = default;
  virtual std::span<const int32_t> cells() = 0;  // waits until the device has chosen
};

class Matrix {
 public:
  virtual ~Matrix() = default;
  int in() const { return in_; }
  int out() const { return out_; }
  int experts() const { return experts_; }  // of make_experts(): so many matrices of this shape; else 1
  virtual size_t bytes() const = 0;         // read by one pass over it, of all experts

 protected:
  int in_ = 0, out_ = 0, experts_ = 1;
};

// Rows of a tensor: where they begin, and how many the whole tensor has.
struct RowsOf {
  int first = 0, whole = 0;
};

struct StepLimits {
  int rows = 0;   // in one step
  int width = 0;  // largest inner dimension of a matrix
  int heads = 0, kv_heads = 0, head_dim = 0;
  int context = 0;  // longest history
  int vocab = 0;
  int outputs = 0;  // of one step; a tree has no more rows than that
  // Mixtures: experts of a layer, those that a row uses, and the inner width of one; `width` covers the outer one.
  int experts = 0, experts_used = 0, expert_ffn = 0;
};

// How a backend wants to be used. The defaults are those of a host, where an op on many rows costs as much as many ops
// on one.
struct DeviceTraits {
  bool separate_prefill = false;  // prompts are run in passes of their own, not in the same as trees
  int prefill_chunk = 512;        // prompt tokens of a pass
  int mixed_chunk = 128;          // prompt tokens of a round that decodes, too: nobody waits long for a token
  bool records_steps =
      false;  // the first pass of a shape is slow, because it is recorded: engines run each once when they open
  bool batch_choose = false;    // choosing at all nodes of a tree costs little more than at one
  bool mean_scores = false;     // retrieval scores are averaged on the device rather than handed out by row
  bool releases_cells = false;  // kv_release() gives memory back
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu (neon-i8mm, 2 threads)"
  // Memory taken on a device of its own, by purpose.
  struct Use {
    std::string purpose;
    size_t bytes;
    bool as_used = false;  // taken as it is used; where nothing is taken, what one whole context needs
  };
  virtual std::vector<Use> memory() const { return {}; }
  virtual DType default_kv_type() const = 0;
  // The ranks among which this backend is one; null: it is alone. A model that is spread over them asks for its place.
  virtual Ranks* ranks() { return nullptr; }

  // Set-up. A matrix is made of one or more parts stacked by output rows (q, k, v), each [out_i, in], of any type.
  virtual std::unique_ptr<Matrix> make_matrix(std::span<const Tensor> parts) = 0;
  // The same for all experts of a layer at once: each part is [experts, out_i, in].
  virtual std::unique_ptr<Matrix> make_experts(std::span<const Tensor> parts) = 0;
  virtual std::unique_ptr<KvStore> make_kv(const KvGeometry& geometry) = 0;
  // The embedding table where embed() can read it: itself, or a copy.
  virtual Tensor place_table(const Tensor& table) = 0;
  // f32 memory that ops can reach; zeroed. The host reaches it with upload and download only.
  virtual float* allocate(size_t count, const char* purpose) = 0;
  // Rows that a step's buffers must have room for, with up to so many rows or outputs.
  virtual int row_capacity(int rows) const { return rows; }
  virtual int output_capacity(int outputs) const { return outputs; }
  // Levels that a tree may have below its history.
  virtual int max_depth() const { return 1 << 20; }
  // Scratch for steps of up to `rows` rows; called before the first op, and again to grow.
  virtual void reserve(const StepLimits& limits) = 0;

  // Between host memory and memory from allocate(). Downloads wait for the ops before them.
  virtual void upload(float* to, const float* from, size_t count) = 0;
  virtual void download(float* to, const float* from, size_t count) = 0;
  virtual void wait() {}  // until all ops are done
  virtual DeviceTraits traits() const { return {}; }

  // Runs the ops of a step: calls `body`, or replays what it recorded when it was last called with an equal key and
  // shape. The body may call ops only, and may depend on nothing but the key, the shape and the inputs' arrays.
  virtual void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) = 0;

  // Rows that a level may have where the backend grows trees itself; 0: it does not.
  virtual int level_rows() const { return 0; }
  // Grows a tree of one sequence (see TreeGrowthArgs). The body runs the ops of a pass over `step`, which the backend
  // sets before it calls it. False, with nothing done: it cannot, and the caller does it with run().
  virtual bool grow_tree(const TreeGrowthArgs&, StepInputs& step, const StepKey&, FunctionRef body) {
    return (void)step, (void)body, false;
  }

  // Ops.
  virtual void copy_rows(const CopyRowsArgs&) = 0;
  virtual void embed(const EmbedArgs&) = 0;
  virtual void norm(const NormArgs&) = 0;
  virtual void linear(const LinearArgs&) = 0;
  virtual void rope_table(const RopeTableArgs&) = 0;
  virtual void rope_store(const RopeStoreArgs&) = 0;
  virtual void attend(const AttendArgs&) = 0;
  virtual void glu(const GluArgs&) = 0;
  // linear, then glu of its result. No op may read gate_up afterwards: a backend that fuses the two does not write it.
  virtual void linear_glu(const LinearArgs& product, const GluArgs& activation) {
    linear(product);
    glu(activation);
  }
  virtual void experts(const ExpertsArgs&) = 0;
  // norm, the router's linear and experts, both of norm.out, which a backend that fuses them does not write; no op may
  // read it or the router's logits afterwards.
  virtual void mixture(const NormArgs& before, const LinearArgs& router, const ExpertsArgs& args) {
    norm(before);
    linear(router);
    experts(args);
  }
  virtual void soft_cap(const SoftCapArgs&) = 0;
  virtual void kv_move(const KvMoveArgs&) = 0;
  virtual void kv_score(const KvScoreArgs&) = 0;
  // The default chooses on the host by kv_score() and kv_move(). A backend that chooses on the device waits for it in
  // cells() only.
  virtual std::unique_ptr<KvChoice> make_choice(int most_cells);
  virtual void kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice);
  // Cells as bytes in host memory, see KvCellsArgs. What kv_write is given must come from kv_read.
  virtual size_t kv_cell_bytes(const KvStore& kv) const = 0;
  virtual void kv_read(const KvStore& kv, const KvCellsArgs& cells, std::byte* out) = 0;
  virtual void kv_write(KvStore& kv, const KvCellsArgs& cells, const std::byte* from) = 0;
  virtual void kv_release(KvStore&, const KvReleaseArgs&) {}
  virtual void choose(const ChooseArgs&) = 0;
  virtual void probabilities(const ProbabilitiesArgs&) = 0;
  virtual void top_k(const TopKArgs&) = 0;

  // For ranks by columns.
  virtual bool host_memory() const { return true; }  // the host reaches what allocate() gives
  // How its device exchanges rows with those of other ranks; null: through host memory only.
  virtual DeviceLink* link() { return nullptr; }
  // make_matrix() where the parts are some rows of larger tensors. Their GEMMs have the bits of the larger ones.
  virtual std::unique_ptr<Matrix> make_part(std::span<const Tensor> parts, std::span<const RowsOf> of) {
    return static_cast<void>(of), make_matrix(parts);
  }
  // False: bodies are called each time from now on, and may upload and download. For those that wait for other ranks.
  virtual void record_steps(bool) {}
  // Rows that an op on `rows` rows touches now; in recorded steps counts are padded.
  virtual int launched_rows(int rows) const { return rows; }
  virtual void gather(const GatherArgs&);  // only the backend of ranks has it
};

}  // namespace sx
