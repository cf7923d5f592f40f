#include "model/expert_weights.h"

#include <cstring>

#include "base/error.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

using Bytes = std::vector<std::byte>;

Tensor stack_of(DType type, int64_t experts, int64_t out, int64_t in, const Bytes& bytes) {
  return {.type = type, .rank = 3, .shape = {experts, out, in}, .data = bytes.data()};
}

// "ffn_gate.0", "ffn_gate.1", ... one behind the other. They must be of one type.
Tensor stack_separate(const ModelFile& file, const std::string& name, const LayerParts& parts, Bytes& bytes) {
  const Tensor first = file.get(fmt::format("{}.0.weight", name));
  bytes.reserve(first.bytes() * static_cast<size_t>(parts.experts));
  for (int e = 0; e < parts.experts; ++e) {
    const std::string one = fmt::format("{}.{}.weight", name, e);
    const Tensor& tensor = file.get(one);
    if (tensor.type != first.type)
      fail("'{}': tensor '{}' has type {}, that of the first expert has {}", file.path(), one, dtype_name(tensor.type),
           dtype_name(first.type));
    bytes.insert(bytes.end(), tensor.data, tensor.data + tensor.bytes());
    file.release(tensor);
  }
  return stack_of(first.type, parts.experts, first.shape[0], first.shape[1], bytes);
}

// [experts, in, columns] -> [experts, out, in] of the columns first, first + step, ...
Tensor transpose(const Tensor& from, int64_t first, int64_t step, Bytes& bytes) {
  const int64_t experts = from.shape[0], in = from.shape[1], columns = from.shape[2], out = columns / step;
  const size_t size = dtype_bytes(from.type, 1);
  bytes.resize(static_cast<size_t>(experts * out * in) * size);
  std::byte* to = bytes.data();
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i, to += size)
        std::memcpy(to, from.data + static_cast<size_t>((e * in + i) * columns + first + o * step) * size, size);
  return stack_of(from.type, experts, out, in, bytes);
}

// MXFP4 as folders have it, blocks and scales apart, two neighbouring values to a byte, to the blocks of GGUF: the rows
// first, first + step, ... of each expert.
Tensor from_blocks(const Tensor& blocks, const Tensor& scales, int64_t first, int64_t step, Bytes& bytes) {
  const int64_t experts = blocks.shape[0], rows = blocks.shape[1], count = blocks.shape[2], out = rows / step;
  bytes.resize(static_cast<size_t>(experts * out * count) * sizeof(BlockMXFP4));
  std::byte* to = bytes.data();
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t o = 0; o < out; ++o)
      for (int64_t b = 0; b < count; ++b, to += sizeof(BlockMXFP4)) {
        const auto at = static_cast<size_t>((e * rows + first + o * step) * count + b);
        const auto* pairs = reinterpret_cast<const uint8_t*>(blocks.data) + 16 * at;
        const auto value = [&](size_t i) { return i % 2 ? pairs[i / 2] >> 4 : pairs[i / 2] & 15; };
        BlockMXFP4 block{reinterpret_cast<const uint8_t*>(scales.data)[at], {}};
        for (size_t i = 0; i < 16; ++i) block.q[i] = static_cast<uint8_t>(value(i) | value(i + 16) << 4);
        std::memcpy(to, &block, sizeof block);
      }
  return stack_of(DType::kMXFP4, experts, out, 32 * count, bytes);
}

std::vector<float> floats(const ModelFile& file, const std::string& name) {
  const Tensor& tensor = file.get(name);
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  dequantise(tensor.type, tensor.data, tensor.elements(), values.data());
  return values;
}

// Rows of gates and ups, alternating or apart, to gates first and ups behind.
std::vector<float> gate_up_bias(const ModelFile& file, const std::string& prefix, const LayerParts& parts,
                                bool alternate) {
  const auto experts = static_cast<size_t>(parts.experts), ffn = static_cast<size_t>(parts.ffn);
  std::vector<float> both, gates, ups, out;
  if (alternate) both = floats(file, prefix + "ffn_gate_up_exps.bias");
  else gates = floats(file, prefix + "ffn_gate_exps.bias"), ups = floats(file, prefix + "ffn_up_exps.bias");
  for (size_t e = 0; e < experts; ++e)
    for (size_t half = 0; half < 2; ++half)
      for (size_t i = 0; i < ffn; ++i)
        out.push_back(alternate ? both[2 * (e * ffn + i) + half] : (half ? ups : gates)[e * ffn + i]);
  return out;
}

}  // namespace

Tensor expert_stack(const ModelFile& file, const std::string& prefix, const LayerParts& parts, ExpertPart part,
                    std::vector<std::byte>& memory) {
  const bool down = part == ExpertPart::kDown;
  const char* const names[] = {"ffn_gate", "ffn_up", "ffn_down"};
  const std::string name = prefix + names[static_cast<int>(part)], both = prefix + "ffn_gate_up_exps",
                    fused = down ? name + "_exps" : both;
  const int64_t first = part == ExpertPart::kUp ? 1 : 0, step = down ? 1 : 2;
  switch (file.config().expert_form) {
    case ExpertForm::kSeparate: return stack_separate(file, name, parts, memory);
    case ExpertForm::kFused: return transpose(file.get(fused + ".weight"), first, step, memory);
    case ExpertForm::kBlocks:
      return from_blocks(file.get(fused + ".blocks"), file.get(fused + ".scales"), first, step, memory);
    case ExpertForm::kStacked: break;
  }
  return file.get(name + "_exps.weight");
}

DType expert_type(const ModelFile& file, const std::string& prefix, ExpertPart part) {
  const char* const names[] = {"ffn_gate", "ffn_up", "ffn_down"};
  const std::string name = prefix + names[static_cast<int>(part)];
  switch (file.config().expert_form) {
    case ExpertForm::kSeparate: return file.get(name + ".0.weight").type;
    case ExpertForm::kFused:
      return file.get(part == ExpertPart::kDown ? name + "_exps.weight" : prefix + "ffn_gate_up_exps.weight").type;
    case ExpertForm::kBlocks: return DType::kMXFP4;
    case ExpertForm::kStacked: break;
  }
  return file.get(name + "_exps.weight").type;
}

void read_expert_biases(const ModelFile& file, const std::string& prefix, const LayerParts& parts, ExpertStacks& out) {
  if (!parts.expert_bias) return;
  const ExpertForm form = file.config().expert_form;
  out.gate_up_bias = gate_up_bias(file, prefix, parts, form == ExpertForm::kFused || form == ExpertForm::kBlocks);
  out.down_bias = floats(file, prefix + "ffn_down_exps.bias");
}

ExpertStacks expert_stacks(const ModelFile& file, const std::string& prefix, const LayerParts& parts) {
  ExpertStacks stacks;
  stacks.memory.resize(file.config().expert_form == ExpertForm::kStacked ? 0 : 3);
  Bytes none;
  const auto stack = [&](ExpertPart part) {
    return expert_stack(file, prefix, parts, part, stacks.memory.empty() ? none : stacks.memory[size_t(part)]);
  };
  stacks.gate = stack(ExpertPart::kGate);
  stacks.up = stack(ExpertPart::kUp);
  stacks.down = stack(ExpertPart::kDown);
  read_expert_biases(file, prefix, parts, stacks);
  return stacks;
}

namespace {

// Output rows of every expert of a stack [experts, out, in].
Tensor rows_of(const Tensor& from, RankShare rows, Bytes& bytes) {
  const size_t row = from.row_bytes(), count = static_cast<size_t>(rows.size());
  bytes.resize(static_cast<size_t>(from.shape[0]) * count * row);
  for (int64_t e = 0; e < from.shape[0]; ++e)
    std::memcpy(bytes.data() + static_cast<size_t>(e) * count * row, from.row(e * from.shape[1] + rows.first),
                count * row);
  return stack_of(from.type, from.shape[0], rows.size(), from.shape[2], bytes);
}

// Columns of every vector of `width` numbers.
std::vector<float> bias_of(const std::vector<float>& from, size_t width, RankShare columns) {
  std::vector<float> out;
  for (size_t at = 0; at < from.size(); at += width)
    out.insert(out.end(), from.begin() + static_cast<ptrdiff_t>(at) + columns.first,
               from.begin() + static_cast<ptrdiff_t>(at) + columns.end);
  return out;
}

}  // namespace

void keep_columns(ExpertStacks& stacks, RankShare inner, RankShare out) {
  std::vector<Bytes> memory(3);
  const auto ffn = static_cast<size_t>(stacks.gate.shape[1]), width = static_cast<size_t>(stacks.down.shape[1]);
  stacks.gate = rows_of(stacks.gate, inner, memory[0]);
  stacks.up = rows_of(stacks.up, inner, memory[1]);
  stacks.down = rows_of(stacks.down, out, memory[2]);
  stacks.gate_up_bias = bias_of(stacks.gate_up_bias, ffn, inner);
  stacks.down_bias = bias_of(stacks.down_bias, width, out);
  stacks.memory = std::move(memory);
}

}  // namespace sx
