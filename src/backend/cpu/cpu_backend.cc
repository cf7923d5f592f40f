#include "backend/cpu/cpu_backend.h"

#include <cstring>

#include "backend/cpu/rows.h"
#include "backend/host_rows.h"
#include "backend/host_scores.h"
#include "base/error.h"

namespace sx::cpu {

CpuBackend::CpuBackend(int threads, Isa isa)
    : pool_(threads), isa_(isa), linear_scratch_(isa), experts_scratch_(isa), row_scratch_(isa) {}

std::string CpuBackend::name() const {
  return fmt::format("cpu ({}, {} thread{})", isa_name(isa_), pool_.workers(), pool_.workers() == 1 ? "" : "s");
}

DType CpuBackend::default_kv_type() const { return has_bf16(isa_) ? DType::kBF16 : DType::kF16; }

std::unique_ptr<Matrix> CpuBackend::make_matrix(std::span<const Tensor> parts) {
  return pack_matrix(parts, isa_, pool_);
}

std::unique_ptr<Matrix> CpuBackend::make_experts(std::span<const Tensor> parts) {
  return pack_experts(parts, isa_, pool_);
}

std::unique_ptr<KvStore> CpuBackend::make_kv(const KvGeometry& geometry) {
  return make_kv_store(geometry, isa_, &pool_);
}

float* CpuBackend::allocate(size_t count, const char* purpose) {
  memory_.emplace_back(count * sizeof(float), purpose);
  return memory_.back().as<float>();
}

void CpuBackend::reserve(const StepLimits& limits) {
  linear_scratch_.reserve(limits.rows, limits.width, pool_.size());
  experts_scratch_.reserve(limits, pool_.size());
  attention_scratch_.reserve(limits, pool_.size());
  score_scratch_.reserve(limits);
  row_scratch_.reserve(pool_.size(), limits.vocab);
}

void CpuBackend::upload(float* to, const float* from, size_t count) { std::memmove(to, from, count * sizeof(float)); }
void CpuBackend::copy_rows(const CopyRowsArgs& args) { copy_host_rows(args); }
void CpuBackend::embed(const EmbedArgs& args) { cpu::embed(args, pool_); }
void CpuBackend::norm(const NormArgs& args) { cpu::norm(args, isa_, pool_); }
void CpuBackend::linear(const LinearArgs& args) {
  cpu::linear(args, static_cast<const PackedMatrix&>(*args.weight), pool_, linear_scratch_);
}
void CpuBackend::rope_table(const RopeTableArgs& args) { cpu::rope_table(args, pool_); }
void CpuBackend::rope_store(const RopeStoreArgs& args) { cpu::rope_store(args, isa_, pool_); }
void CpuBackend::attend(const AttendArgs& args) { cpu::attend(args, isa_, pool_, attention_scratch_); }
void CpuBackend::glu(const GluArgs& args) { cpu::glu(args, isa_, pool_); }
void CpuBackend::experts(const ExpertsArgs& args) { cpu::experts(args, pool_, experts_scratch_); }
void CpuBackend::soft_cap(const SoftCapArgs& args) { cpu::soft_cap(args, isa_, pool_); }
void CpuBackend::kv_move(const KvMoveArgs& args) { cpu::kv_move(args, isa_, pool_); }
void CpuBackend::kv_score(const KvScoreArgs& args) {
  const auto one = [&](const KvScoreArgs& a) { cpu::kv_score(a, isa_, pool_, score_scratch_); };
  args.mean || !args.layers.empty() ? score_layers(args, one) : one(args);
}
size_t CpuBackend::kv_cell_bytes(const KvStore& kv) const {
  return cpu::kv_cell_bytes(static_cast<const CpuKvStore&>(kv));
}
void CpuBackend::kv_read(const KvStore& kv, const KvCellsArgs& cells, std::byte* out) {
  cpu::kv_read(static_cast<const CpuKvStore&>(kv), cells, out, pool_);
}
void CpuBackend::kv_write(KvStore& kv, const KvCellsArgs& cells, const std::byte* from) {
  cpu::kv_write(static_cast<CpuKvStore&>(kv), cells, from, pool_);
}
void CpuBackend::kv_release(KvStore& kv, const KvReleaseArgs& args) { static_cast<CpuKvStore&>(kv).release(args); }
void CpuBackend::choose(const ChooseArgs& args) { cpu::choose(args, pool_, row_scratch_); }
void CpuBackend::probabilities(const ProbabilitiesArgs& args) { cpu::probabilities(args, row_scratch_[0]); }
void CpuBackend::top_k(const TopKArgs& args) { cpu::top_k(args, pool_, row_scratch_); }

}  // namespace sx::cpu
