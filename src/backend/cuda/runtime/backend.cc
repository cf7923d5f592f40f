#include "backend/cuda/runtime/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/kv/kv.h"
#include "backend/cuda/kv/packed.h"
#include "backend/cuda/linear/experts.h"
#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "backend/cuda/runtime/nccl.h"
#include "base/error.h"

namespace sx::cuda {
namespace {

std::string name_of(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "device properties");
  if (properties.major < 8)
    fail("device cuda: '{}' has compute capability {}.{}, at least 8.0 is needed", properties.name, properties.major,
         properties.minor);
  return properties.name;
}

int checked_device(int device) {
  if (const std::string why = why_unavailable(); !why.empty()) fail("device cuda: {}", why);
  int count = 0;
  check(cudaGetDeviceCount(&count), "devices");
  if (device < 0 || device >= count) fail("device cuda:{}: there are {} CUDA devices", device, count);
  check(use_device(device), "device");
  return device;
}

// SPECEXTEND_PROMPT_LINEAR=own: prompts use the GEMMs of decoding. That is slower, but a sanitizer then sees our
// kernels only.
bool prompts_by_library() {
  static const char* wanted = std::getenv("SPECEXTEND_PROMPT_LINEAR");
  return !wanted || std::string_view(wanted) != "own";
}

const CudaKv& kv_of(const KvStore* kv) { return static_cast<const CudaKv&>(*kv); }
KvView view_of(const KvStore* kv) { return kv_of(kv).view(); }

}  // namespace

std::string why_unavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return fmt::format("no CUDA device can be used: {}", cudaGetErrorString(status));
  return count > 0 ? "" : "this machine has no CUDA device";
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Backend> make_backend(const CudaOptions& options, std::unique_ptr<Backend> host) {
  return std::make_unique<CudaBackend>(options, std::move(host));
}

CudaBackend::CudaBackend(const CudaOptions& options, std::unique_ptr<Backend> host)
    : device_(checked_device(options.device)),
      device_name_(name_of(device_)),
      host_(std::move(host)),
      arena_(options, device_name_),
      units_(std::make_shared<UnitPool>(device_, options.cells)) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  staging_ = std::make_unique<Staging>(stream_);
  units_->set_wait([this] { wait(); });
  level_rows_ = most_level_rows();
}

CudaBackend::~CudaBackend() {
  use_device(device_);
  cudaStreamSynchronize(stream_);
  units_->set_wait({});             // stores may live longer
  graphs_.clear(), loops_.clear();  // they may hold messages of the link
  link_.reset();
  prompt_linear_.reset();
  staging_.reset();
  if (pinned_.data) cudaFreeHost(pinned_.data);
  if (grown_) cudaFreeHost(grown_);
  cudaStreamDestroy(stream_);
}

DeviceLink* CudaBackend::link() {
  bind();
  if (!link_) link_ = make_nccl_link(device_, stream_, [this] { shadow_.of = nullptr; });
  return link_.get();
}

void CudaBackend::bind() const { check(use_device(device_), "device"); }

std::string CudaBackend::name() const { return fmt::format("cuda ({})", device_name_); }
int CudaBackend::max_depth() const { return kMaxDepth; }

std::unique_ptr<Matrix> CudaBackend::make_matrix(std::span<const Tensor> parts) { return make_part(parts, {}); }

std::unique_ptr<Matrix> CudaBackend::make_part(std::span<const Tensor> parts, std::span<const RowsOf> of) {
  bind();
  auto matrix = std::make_unique<CudaMatrix>(parts, arena_, of);
  settle();
  last_half_ = matrix->half();
  return matrix;
}

std::unique_ptr<Matrix> CudaBackend::make_experts(std::span<const Tensor> parts) {
  bind();
  auto matrix = std::make_unique<CudaExperts>(parts, arena_);
  settle();
  return matrix;
}

std::unique_ptr<KvStore> CudaBackend::make_kv(const KvGeometry& geometry) {
  bind();
  // Steps of a model that is spread over ranks are keyed by another store than the one they write.
  return std::make_unique<CudaKv>(geometry, arena_, geometry.part ? nullptr : units_, stream_);
}

std::vector<Backend::Use> CudaBackend::memory() const {
  std::vector<Use> uses = arena_.uses();
  if (units_->made_bytes() > 0) uses.push_back({"cells", units_->made_bytes(), true});
  return uses;
}

Tensor CudaBackend::place_table(const Tensor& table) {
  bind();
  const Tensor placed = cuda::place_table(table, arena_);
  settle();
  return placed;
}

float* CudaBackend::allocate(size_t count, const char* purpose) {
  bind();
  return static_cast<float*>(arena_.take(count * sizeof(float), purpose));
}

void* CudaBackend::scratch(Scratch& s, size_t bytes, const char* purpose) {
  if (bytes > s.size) {
    s.data = arena_.take(bytes, purpose);
    s.size = bytes;
    if (&s == &half_ || &s == &activated_) shadow_.of = nullptr;
  }
  return s.data;
}

void* CudaBackend::pinned(size_t bytes) {
  if (bytes <= pinned_.size) return pinned_.data;
  wait();
  if (pinned_.data) cudaFreeHost(pinned_.data);
  pinned_ = {};
  check(cudaHostAlloc(&pinned_.data, bytes, cudaHostAllocMapped), "pinned memory");
  pinned_.size = bytes;
  return pinned_.data;
}

void CudaBackend::reserve(const StepLimits& limits) {
  bind();
  const int rows = row_capacity(limits.rows), few = padded_rows(std::max(limits.outputs, 64));
  if (block_.reserve(std::max(rows, kPromptRows), arena_)) graphs_.clear(), loops_.clear();  // they know the old place
  reserve_tree_growth();
  scratch(half_, size_t(rows) * size_t(limits.width) * 2, "16-bit activations");
  scratch(activated_, size_t(few) * size_t(limits.width) * 2, "16-bit activations");
  scratch(linear_, linear_scratch_bytes(few, std::max(limits.width * 2, limits.vocab)), "split-K sums");
  if (limits.heads > 0) {
    const size_t trees = attend_scratch_bytes(few, limits.heads, limits.head_dim, limits.context + limits.rows);
    scratch(attend_, std::max(trees, attend_prompt_scratch_bytes(rows, limits.heads, limits.head_dim)), "attention");
    scratch(score_, score_scratch_bytes(limits.heads, limits.context), "scores");
  }
  if (limits.experts > 0)
    scratch(experts_, experts_scratch_bytes(rows, limits.experts, limits.experts_used, limits.width, limits.expert_ffn),
            "rows of experts");
  if (limits.vocab > 0) reserve_copies(limits.vocab);
  host_->reserve(limits);
}

// Large copies do not go through pinned memory.
void CudaBackend::upload(float* to, const float* from, size_t count) {
  bind();
  if (dry()) return;
  shadow_.of = nullptr;
  written(to);
  const DeviceLink::Wait waits(link_.get());
  check(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyHostToDevice, stream_), "upload");
  check(cudaStreamSynchronize(stream_), "upload");
  waits.check();
}

void CudaBackend::download(float* to, const float* from, size_t count) {
  bind();
  if (dry()) return;
  const DeviceLink::Wait waits(link_.get());
  check(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToHost, stream_), "download");
  check(cudaStreamSynchronize(stream_), "download");
  waits.check();
}

void CudaBackend::wait() {
  bind();
  const DeviceLink::Wait waits(link_.get());
  check(cudaStreamSynchronize(stream_), "waiting for the device");
  waits.check();
}

int CudaBackend::padded(int rows) const { return in_step() && padding_ ? padded_rows(rows) : rows; }

void CudaBackend::run(const StepInputs& inputs, const StepKey& key, FunctionRef body) {
  bind();
  SX_ASSERT(!in_step());
  if (dry()) return;
  // Before the watch below: memory that moves waits for itself.
  if (const auto* kv = static_cast<const KvStore*>(key.kv); kv && !kv->geometry().spread) hold(*kv, inputs.seqs);
  const DeviceLink::Wait waits(link_.get());  // copies and launches may wait for the device
  waits.check();
  struct Leave {  // also when the body throws
    CudaBackend& backend;
    ~Leave() { backend.step_ = nullptr, backend.shadow_.of = nullptr, backend.deferred_.x = nullptr; }
  } leave{*this};
  shadow_.of = unwritten_ = nullptr, deferred_.x = nullptr;
  step_kv_ = key.kv;
  padding_ = !inputs.prompt;
  shape_ = StepBlock::shape_of(inputs, padding_);
  block_.send(inputs, shape_, *staging_);
  step_ = &inputs;
  if (inputs.prompt || !records_) return body();
  cudaGraphExec_t graph = graphs_.find(key, shape_);
  if (!graph) {
    graphs_.begin(stream_);
    try {
      body();
    } catch (...) {
      graphs_.abandon(stream_);
      throw;
    }
    graph = graphs_.end(key, shape_, stream_);
  }
  check(cudaGraphLaunch(graph, stream_), "a recorded step");
}

StepView CudaBackend::place(const StepInputs& inputs) {
  if (in_step()) {
    const bool own = (inputs.tokens.empty() || inputs.tokens.data() == step_->tokens.data()) &&
                     (inputs.positions.empty() || inputs.positions.data() == step_->positions.data()) &&
                     (inputs.seqs.empty() || inputs.seqs.data() == step_->seqs.data());
    SX_ASSERT(own);
    return block_.view();
  }
  padding_ = false;
  shape_ = StepBlock::shape_of(inputs, false);
  shape_.history += 1;
  if (block_.reserve(std::max({shape_.rows, shape_.tiles, 1}), arena_)) graphs_.clear(), loops_.clear();
  block_.send(inputs, shape_, *staging_);
  return block_.view();
}

const double* CudaBackend::frequencies(const double* values, int dims) {
  if (!values) return nullptr;
  const size_t count = size_t(dims) / 2;
  for (const Frequencies& f : frequencies_)
    if (f.values.size() == count && std::memcmp(f.values.data(), values, count * sizeof(double)) == 0) return f.device;
  auto* device = static_cast<double*>(arena_.take(count * sizeof(double), "RoPE frequencies"));
  check(cudaMemcpy(device, values, count * sizeof(double), cudaMemcpyHostToDevice), "RoPE frequencies");
  settle();
  frequencies_.push_back({{values, values + count}, device});
  return device;
}

void* CudaBackend::shadow(const float* of, int rows, int width) {
  void* half = scratch(half_, size_t(rows) * size_t(width) * 2, "16-bit activations");
  shadow_ = {of, half, rows, width, last_half_};
  return half;
}

float* CudaBackend::wanted(float* out, const Matrix* only_for) {
  unwritten_ = nullptr;
  const auto* matrix = static_cast<const CudaMatrix*>(only_for);
  if (!matrix || !in_step() || step_->prompt || matrix->wants_f32() || !matrix->wants_half()) return out;
  last_half_ = matrix->half();
  unwritten_ = out;
  return nullptr;
}

void CudaBackend::copy_rows(const CopyRowsArgs& args) {
  bind();
  if (dry()) return;
  shadow_.of = nullptr;
  written(args.to);
  CopyCall call{args.to,          args.from, args.rows, args.width, args.to_stride,
                args.from_stride, nullptr,   args.add,  args.scale};
  if (!args.which || (in_step() && args.which == step_->outputs.data())) {
    call.which = args.which ? block_.view().outputs : nullptr;
    call.rows = args.launched ? args.rows : padded(args.rows);
    return cuda::copy_rows(call, stream_);
  }
  SX_ASSERT(!in_step());  // a recorded step cannot know other lists
  const size_t rows = size_t(args.rows);
  cuda::copy_rows_by(call, {args.which, rows}, {args.into, args.into ? rows : 0}, stream_);
}

void CudaBackend::embed(const EmbedArgs& args) {
  if (dry()) return;
  shadow_.of = nullptr;
  written(args.out);
  const StepView view = place({{args.tokens, size_t(args.rows)}, {}, {}, {}});
  cuda::embed({args.out, view.tokens, padded(args.rows), args.table}, stream_);
}

void CudaBackend::norm(const NormArgs& args) {
  if (dry()) return;
  const int rows = padded(args.rows);
  const auto* reader = static_cast<const CudaMatrix*>(args.only_for);
  if (reader && in_step() && !step_->prompt && linear_normed_serves(args, *reader, rows)) {
    deferred_ = args, unwritten_ = args.out, shadow_.of = nullptr;
    return;
  }
  const bool contiguous = args.stride == 0 || args.stride == args.width;  // else no linear reads it
  float* const out = wanted(args.out, args.only_for);
  void* half = contiguous ? shadow(args.out, rows, args.width) : nullptr;
  if (!contiguous) shadow_.of = nullptr;
  cuda::norm(
      {out, half, last_half_, args.x, args.weight, rows, args.width, args.eps, args.centred, args.bias, args.stride},
      stream_);
}

void CudaBackend::soft_cap(const SoftCapArgs& args) {
  if (dry()) return;
  if (shadow_.of == args.x) shadow_.of = nullptr;
  SoftCapArgs call = args;
  call.rows = padded(args.rows);
  cuda::soft_cap(call, stream_);
}

void CudaBackend::glu(const GluArgs& args) {
  if (dry()) return;
  const int rows = padded(args.rows);
  float* const out = wanted(args.out, args.only_for);
  void* half = shadow(args.out, rows, args.width);
  cuda::glu({out, half, last_half_, args.gate_up, rows, args.width, args.activation, args.gated}, stream_);
}

// As one kernel, which reads the 16-bit shadow of its input and writes the shadow of its output to another buffer.
void CudaBackend::linear_glu(const LinearArgs& product, const GluArgs& activation) {
  if (dry()) return;
  const auto& matrix = static_cast<const CudaMatrix&>(*product.weight);
  const int rows = padded(product.rows), width = activation.width;
  const bool prompt = in_step() && step_->prompt && !product.outputs;
  const bool silu = activation.gated && activation.activation == Activation::kSilu;  // what the fused kernel computes
  if (silu && !prompt && !deferred_.x && activation.gate_up == product.out &&
      size_t(rows) * size_t(width) * 2 <= activated_.size) {
    const void* x = half_of(product.x, rows, matrix);
    const auto* reader = static_cast<const CudaMatrix*>(activation.only_for);
    const bool same = reader && reader->wants_half() && reader->half() == matrix.half();
    float* const out = same ? wanted(activation.out, reader) : activation.out;
    if (cuda::linear_glu(matrix, {out, x, product.x, product.bias, rows, width, product.accumulate}, activated_.data,
                         stream_)) {
      shadow_ = {activation.out, activated_.data, rows, width, last_half_};
      return;
    }
  }
  linear(product);
  glu(activation);
}

void CudaBackend::rope_table(const RopeTableArgs& args) {
  if (dry()) return;
  shadow_.of = nullptr;
  const StepView view = place({{}, {args.positions, size_t(args.rows)}, {}, {}});
  cuda::rope_table(
      {args.table, view.positions, padded(args.rows), frequencies(args.frequencies, args.dims), args.dims, args.factor},
      stream_);
}

void CudaBackend::rope_store(const RopeStoreArgs& a) {
  if (dry()) return;
  if (!in_step()) hold(*a.kv, a.seqs);
  SX_ASSERT(!in_step() || a.kv == step_kv_ || !kv_of(a.kv).follows_use());
  shadow_.of = nullptr;
  const StepView view = place({{}, {}, a.seqs, {}});
  cuda::rope_store({a.qkv, a.table, a.q_norm, a.k_norm, a.eps, a.shape.heads, a.shape.kv_heads, a.shape.head_dim,
                    a.dims, a.style, view_of(a.kv), a.layer, shape_.rows, view.rows},
                   stream_);
}

void CudaBackend::attend(const AttendArgs& a) {
  if (dry()) return;
  if (in_step() && step_->prompt) return attend_to_prompt(a);
  if (!in_step()) hold(*a.kv, a.seqs);
  const StepView view = place({{}, {}, a.seqs, {}});
  const int width = a.shape.heads * a.shape.head_dim;
  const size_t need = attend_scratch_bytes(shape_.rows, a.shape.heads, a.shape.head_dim, shape_.history);
  AttendCall call{a.out,
                  shadow(a.out, shape_.rows, width),
                  last_half_,
                  a.q,
                  a.q_stride,
                  a.shape.heads,
                  a.shape.kv_heads,
                  a.shape.head_dim,
                  a.scale,
                  a.window,
                  a.soft_cap,
                  a.sinks,
                  view_of(a.kv),
                  a.layer,
                  view,
                  shape_.rows,
                  shape_.tiles,
                  shape_.history};
  attend_rows(on_tile(call, kv_of(a.kv), stream_), scratch(attend_, need, "attention"), stream_);
}

void CudaBackend::attend_to_prompt(const AttendArgs& a) {
  const int width = a.shape.heads * a.shape.head_dim;
  void* half = shadow(a.out, shape_.rows, width);
  for (const SeqRows& seq : a.seqs) {
    SX_ASSERT(!seq.ancestors && seq.uncommitted == 0);
    PromptAttendCall call{
        a.out,    half,       last_half_, a.q,     a.q_stride,    a.shape.heads, a.shape.kv_heads, a.shape.head_dim,
        a.scale,  a.window,   a.soft_cap, a.sinks, view_of(a.kv), a.layer,       seq.slot,         seq.first_row,
        seq.rows, seq.history};
    attend_prompt(on_tile(call, kv_of(a.kv), stream_),
                  scratch(attend_, attend_prompt_scratch_bytes(seq.rows, a.shape.heads, a.shape.head_dim), "attention"),
                  stream_);
  }
}

// The 16-bit form of the input: the shadow that its producer wrote, or a conversion made now.
void* CudaBackend::half_of(const float* x, int rows, const CudaMatrix& matrix) {
  if (!matrix.wants_half()) return nullptr;
  last_half_ = matrix.half();
  const int in = matrix.in();
  const bool there = shadow_.of == x && shadow_.rows == rows && shadow_.width == in && shadow_.half == matrix.half();
  if (there) return shadow_.data;
  SX_ASSERT(x != unwritten_);
  void* half = shadow(x, rows, in);
  to_half(half, matrix.half(), x, size_t(rows) * size_t(in), stream_);
  return half;
}

void CudaBackend::linear(const LinearArgs& args) {
  if (dry()) return;
  const auto& matrix = static_cast<const CudaMatrix&>(*args.weight);
  if (in_step() && step_->prompt && !args.outputs && prompts_by_library()) return linear_of_prompt(args, matrix);
  const int rows = padded(args.rows);
  if (deferred_.x) {
    SX_ASSERT(deferred_.out == args.x && deferred_.only_for == args.weight);
    linear_normed(matrix, deferred_, {args.out, nullptr, nullptr, args.bias, rows, args.out_stride, args.accumulate},
                  stream_);
    deferred_.x = nullptr;
    return written(args.out);
  }
  const LinearCall call{args.out,       half_of(args.x, rows, matrix), args.x, args.bias, rows, args.out_stride,
                        args.accumulate};
  linear_rows(matrix, call, scratch(linear_, linear_scratch_bytes(rows, matrix.out()), "split-K sums"), stream_);
  if (shadow_.of == args.out) shadow_.of = nullptr;
  written(args.out);
}

void CudaBackend::linear_of_prompt(const LinearArgs& args, const CudaMatrix& matrix) {
  if (!prompt_linear_) prompt_linear_ = std::make_unique<PromptLinear>(kPromptSizes, arena_);
  prompt_linear_->prepare(matrix);  // does something for the first matrix of a shape only
  scratch(half_, size_t(row_capacity(args.rows)) * size_t(matrix.in()) * 2, "16-bit activations");
  const char* half = static_cast<const char*>(half_of(args.x, args.rows, matrix));
  for (int first = 0; first < args.rows; first += kPromptRows) {
    const size_t at = size_t(first);
    const LinearCall call{args.out + at * size_t(args.out_stride),
                          half ? half + at * size_t(matrix.in()) * 2 : nullptr,
                          args.x + at * size_t(matrix.in()),
                          args.bias,
                          std::min(kPromptRows, args.rows - first),
                          args.out_stride,
                          args.accumulate};
    prompt_linear_->run(matrix, call, stream_);
  }
  if (shadow_.of == args.out) shadow_.of = nullptr;
  written(args.out);
}

}  // namespace sx::cuda
