#include "far_backends.h"

#include "backend/registry.h"
#include "support/far_backend.h"
#include "support/host_facing_backend.h"

namespace sx::parity {
namespace {

constexpr int kDeepest = 63;  // Backend::max_depth() of both

bool is_step(const OpRow& row) { return row.op == Op::kRopeStore || row.op == Op::kAttend; }
bool deep_chain(const OpRow& row) { return is_step(row) && !row.tree && row.uncommitted + row.rows - 1 > kDeepest; }

}  // namespace

BackendFactory far_backend() {
  return [](int threads) -> std::unique_ptr<Backend> {
    auto far = std::make_unique<testing::FarBackend>(make_cpu_backend({threads, std::nullopt}));
    return std::make_unique<testing::HostFacingBackend>(std::move(far));
  };
}

BackendFactory cuda_backend() {
  return [](int) -> std::unique_ptr<Backend> {
    return std::make_unique<testing::HostFacingBackend>(make_cuda_backend({}));
  };
}

bool supports(const std::string& backend, const OpRow& row) {
  const KvTypes types = row.kv_types();
  if (backend == "cuda" && is_kv(row.op)) {
    if (types.keys == DType::kF32 || types.values == DType::kF32) return false;
    if (!types.same() && row.head_dim % 32 != 0) return false;
  }
  return (backend != "cuda" && backend != "far") || !deep_chain(row) || row.uncommitted == 0;
}

bool decodes(const std::string& backend, const OpRow& row) { return backend != "cuda" || !deep_chain(row); }

Tolerance tolerance_of(const std::string& backend, const OpRow& row) {
  if (backend != "cuda") return tolerance(row);
  // bf16 rounds by 2^-9 at most, 8e-4 in the mean; f16 by 2^-12.
  if (row.op == Op::kLinear && row.mixed) return {2e-3, 1e-2};
  if (row.op == Op::kLinear && row.type == DType::kBF16) return {2e-3, 1e-2};
  if (row.op == Op::kLinear && row.type != DType::kF32) return {1e-3, 5e-3};   // weights are rounded to f16 as well
  if (row.op == Op::kExperts && row.type != DType::kF32) return {1e-2, 6e-2};  // two products and what lies between
  if (is_kv(row.op) && row.kv_types() == DType::kF16) return {1e-3, 8e-3};  // queries and probabilities are rounded too
  return tolerance(row);
}

}  // namespace sx::parity
