// A backend owns memory and runs ops. Set-up (matrices, stores, buffers) may throw; ops may not. See ops.h for the law.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "backend/ops.h"
#include "tensor/tensor.h"

namespace sx {

struct KvGeometry {
  int layers = 0, kv_heads = 0, head_dim = 0;
  int slots = 1;                      // sequences
  int capacity = 0;                   // cells per slot (rounded up to whole blocks)
  DType type = DType::kF32;           // F32, F16, BF16 or Q8_0
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

class Matrix {
 public:
  virtual ~Matrix() = default;
  int in() const { return in_; }
  int out() const { return out_; }
  virtual size_t bytes() const = 0;  // read by one pass over it

 protected:
  int in_ = 0, out_ = 0;
};

struct StepLimits {
  int rows = 0;                 // in one step
  int width = 0;                // largest inner dimension of a matrix
  int heads = 0, kv_heads = 0, head_dim = 0;
  int context = 0;              // longest history
  int vocab = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;         // "cpu (neon-i8mm, 2 threads)"
  virtual DType default_kv_type() const = 0;

  // Set-up. A matrix is made of one or more parts stacked by output rows (q, k, v), each [out_i, in], of any type.
  virtual std::unique_ptr<Matrix> make_matrix(std::span<const Tensor> parts) = 0;
  virtual std::unique_ptr<KvStore> make_kv(const KvGeometry& geometry) = 0;
  // f32 memory that ops can reach; zeroed.
  virtual float* allocate(size_t count, const char* purpose) = 0;
  // Scratch for steps of up to `rows` rows; called before the first op, and again to grow.
  virtual void reserve(const StepLimits& limits) = 0;

  // Ops.
  virtual void embed(const EmbedArgs&) = 0;
  virtual void norm(const NormArgs&) = 0;
  virtual void linear(const LinearArgs&) = 0;
  virtual void rope_table(const RopeTableArgs&) = 0;
  virtual void rope_store(const RopeStoreArgs&) = 0;
  virtual void attend(const AttendArgs&) = 0;
  virtual void glu(const GluArgs&) = 0;
  virtual void kv_move(const KvMoveArgs&) = 0;
  virtual void kv_score(const KvScoreArgs&) = 0;
  virtual void choose(const ChooseArgs&) = 0;
  virtual void law(const LawArgs&) = 0;
  virtual void top_k(const TopKArgs&) = 0;
};

}  // namespace sx
