// Split-KV decode on Hopper: the plan and the launches. serves_hopper() is false for other devices and builds.
#include "backend/cuda/attention/decode_sm90.cuh"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "backend/cuda/attention/decode_combine_sm90.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {
namespace {

// Boxes of 64 cells x 64 columns, swizzled, of the blocks of all heads, layers and slots, [blocks][64][head_dim].
CUtensorMap tensor_map(const std::byte* data, const AttendCall& call) {
  CUtensorMap map;
  const cuuint64_t width = cuuint64_t(call.head_dim);
  const cuuint64_t sizes[3] = {width, kAttendBlock, cuuint64_t(call.kv.cells() / kAttendBlock)};
  const cuuint64_t strides[2] = {width * 2, width * 2 * kAttendBlock};  // bytes, of dimensions 1 and 2
  const cuuint32_t box[3] = {64, kAttendBlock, 1}, steps[3] = {1, 1, 1};
  const auto type = call.kv.type == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result = encode_tiled()(&map, type, 3, const_cast<std::byte*>(data), sizes, strides, box, steps,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(cudaErrorInvalidValue, "tensor map of attend_rows");
  return map;
}

constexpr int kSms = 132;  // of an H200

// Thread blocks that share the query rows of a tile.
int parts_of(const AttendCall& call) {
  return divide_up(std::min(call.rows, kTileRows) * (call.heads / call.kv_heads), kGroupQueries);
}

// The split between L1 and shared memory is left to the driver: asking for all of it as shared memory takes away the L1
// that the GEMMs before and after keep their loads in, and made a whole step a quarter slower.
template <class Kernel>
void set_shared(Kernel* kernel, size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "attend_rows");
}

template <int D, bool bf16, HopperForm form>
void launch_body(const AttendCall& call, const AttendBody& body, const HopperPlan& plan, int kv_heads,
                 cudaStream_t stream) {
  using S = HopperShape<D, form>;
  const auto kernel = attend_rows_wgmma_kernel<D, bf16, form>;
  set_shared(kernel, S::kBytes);
  const int items = divide_up(plan.pieces, S::kGroups) * kv_heads * plan.units;
  const int blocks = plan.pairs ? std::min(items, kSms) : items;
  launch(kernel, dim3(unsigned(blocks)), dim3(unsigned(S::kThreads)), S::kBytes, stream, body, tensor_map(body.k, call),
         tensor_map(body.v, call));
}

template <int D, bool bf16>
void attend(const AttendCall& call, void* scratch, cudaStream_t stream, HopperKernels kernels) {
  const int group = call.heads / call.kv_heads;
  const HopperPlan plan = hopper_plan(call);
  HopperFinish finish{};
  AttendBody& body = finish.body;
  const size_t layer = size_t(call.layer) * call.kv.layer_cells() * size_t(D) * 2;
  body.k = call.kv.k + layer;
  body.v = call.kv.v + layer;
  body.block_cells = uint32_t(call.kv.block_cells());
  body.slot_cells = call.kv.slot_cells();
  body.q = call.q;
  body.q_stride = call.q_stride;
  body.rows = call.step.rows;
  body.ancestors = call.step.ancestors;
  body.tiles = call.step.tiles;
  body.row_count = call.rows;
  body.tile_count = call.tiles;
  body.parts = parts_of(call);
  body.units = plan.units;
  body.group = group;
  body.scale_log2 = call.scale * kLog2E;
  body.window = call.window;
  body.state_o = static_cast<float*>(scratch);
  finish.out = call.out;
  finish.out16 = call.out16;
  finish.half = call.half;
  finish.width = call.heads * D;
  finish.sinks = call.sinks;
  finish.after_body = plan.units > 0;
  for (int first = 0; first < call.kv_heads; first += plan.range_kv_heads) {
    const int kv_heads = std::min(plan.range_kv_heads, call.kv_heads - first);
    body.first_kv_head = first;
    body.range_heads = kv_heads * group;
    const size_t states = size_t(plan.units) * size_t(call.rows) * size_t(body.range_heads);
    body.state_ml = reinterpret_cast<float2*>(body.state_o + states * size_t(D));
    const bool has_body = plan.units > 0 && kernels != HopperKernels::kFinish;
    if (has_body && plan.pairs) {
      launch_body<D, bf16, HopperForm::kPairs>(call, body, plan, kv_heads, stream);
    } else if (has_body) {
      launch_body<D, bf16, HopperForm::kSingles>(call, body, plan, kv_heads, stream);
    }
    if (kernels == HopperKernels::kBody) continue;
    const dim3 grid(unsigned(call.rows), unsigned(kv_heads * (group / plan.block_heads)));
    auto kernel = attend_rows_wgmma_finish<D, bf16, FinishForm::kMany>;
    if (plan.block_heads == 1) kernel = attend_rows_wgmma_finish<D, bf16, FinishForm::kHead>;
    else if (plan.few) kernel = attend_rows_wgmma_finish<D, bf16, FinishForm::kFew>;
    launch(kernel, grid, dim3(kAttendThreads), 0, stream, finish);
  }
}

// Whether the build has code for sm_90a: the kernel of other architectures is one trap, and needs next to no registers.
bool has_hopper_code() {
  static const bool known = [] {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, attend_rows_wgmma_kernel<128, true, HopperForm::kSingles>), "attend_rows");
    return attributes.numRegs > 64;
  }();
  return known;
}

}  // namespace

// The plan affects speed only. Pieces go in pairs that share K/V as soon as there are several, if their query rows are
// used: a pair takes about as long as a single piece. If the states do not fit the scratch, a range of kv heads at a
// time.
HopperPlan hopper_plan(const AttendCall& call) {
  HopperPlan plan;
  const int group = call.heads / call.kv_heads, blocks = body_end(call.history + kMaxDepth) / kAttendBlock;
  plan.units = units_of_blocks(blocks);
  plan.pieces = call.tiles * parts_of(call);
  plan.pairs = plan.pieces > 1 && call.rows * group >= kGroupQueries / 2 * plan.pieces;
  const size_t unit = size_t(call.rows) * size_t(group) * (size_t(call.head_dim) + 2) * sizeof(float);
  const size_t limit = attend_scratch_bytes(call.rows, call.heads, call.head_dim, call.history);
  const size_t per_kv_head = std::max<size_t>(unit * size_t(plan.units), 1);
  plan.range_kv_heads = int(std::clamp<size_t>(limit / per_kv_head, 1, size_t(call.kv_heads)));
  plan.block_heads = call.rows * call.heads <= 2 * kSms ? 1 : group;
  plan.few = !plan.pairs && call.rows * call.kv_heads <= 2 * kSms;
  return plan;
}

// SPECEXTEND_ATTENTION=portable selects the mma.sync kernels, for debugging.
bool serves_hopper(const AttendCall& call) {
  static const char* wanted = std::getenv("SPECEXTEND_ATTENTION");
  if (wanted && std::string_view(wanted) == "portable") return false;
  if (call.head_dim != 64 && call.head_dim != 128) return false;
  if (call.kv.type != DType::kBF16 && call.kv.type != DType::kF16) return false;
  if (call.heads / call.kv_heads > 16 || call.soft_cap > 0) return false;
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
  return major == 9 && minor == 0 && has_hopper_code() && encode_tiled() != nullptr;
}

void attend_rows_hopper(const AttendCall& call, void* scratch, cudaStream_t stream, HopperKernels kernels) {
  const bool bf16 = call.kv.type == DType::kBF16;
  if (call.head_dim == 128) {
    bf16 ? attend<128, true>(call, scratch, stream, kernels) : attend<128, false>(call, scratch, stream, kernels);
  } else {
    bf16 ? attend<64, true>(call, scratch, stream, kernels) : attend<64, false>(call, scratch, stream, kernels);
  }
}

}  // namespace sx::cuda
