// What is in a model file, what a step of an engine costs, and statistics as JSON: for tools, benchmarks and
// dashboards.
//
// Thread safety: the functions have no state; any thread may call them, step_costs() too. Errors throw sx::Error.
#pragma once
#include <specextend/error.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sx {

class Engine;
struct SpecStats;

struct TensorSummary {
  std::string name, type;
  std::vector<int64_t> shape;  // outermost first
  size_t bytes;
};

struct ModelSummary {
  std::string path, format, name, architecture;
  int layers, width, heads, kv_heads, head_dim, ffn, vocab, context, window;
  std::string rope, types;  // "base 100000, yarn x4 from 8192"; "Q4_1 210, Q8_0 1, F32 61"
  bool tied_head;
  uint64_t parameters;
  size_t file_bytes, weight_bytes;
  std::string tokenizer;
  std::string unsupported;  // why the model cannot be run; empty: it can. If not, sizes that are not known are 0
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<TensorSummary> tensors;
  // Bytes of the KV cache for `context` tokens in a given type, as EngineOptions::kv_type names it.
  size_t kv_bytes(int context, std::string_view kv_type) const;
};
ModelSummary inspect(const std::string& model);  // reads the file without loading its weights

// What is in the folder of a draft head. `inspect` is for whole models.
struct HeadSummary {
  std::string path, kind;  // "EAGLE-1", "EAGLE-3", "LongSpec", "DFlash" or "Medusa"
  int layers = 0;          // decoder layers; Medusa: residual blocks of each head
  int heads = 1;           // Medusa: tokens it looks ahead
  int width = 0, target_width = 0, vocab = 0, draft_vocab = 0, context = 0;  // context: trained length, 0: not said
  std::string reads;                                                         // which states of the target
  bool own_embedding = false, own_output = false;                            // false: the head uses the target's
  std::string types;                                                         // "Q4_0 1, Q8_0 8, BF16 4"
  uint64_t parameters = 0;
  size_t file_bytes = 0, weight_bytes = 0;
  size_t cell_values = 0;  // numbers of a token in its KV cache; 0: it has none of the text
  std::vector<TensorSummary> tensors;
};
bool is_head(const std::string& path);
HeadSummary inspect_head(const std::string& folder);

// What one step of an engine costs, for rooflines.
struct StepCosts {
  size_t weight_bytes = 0;           // weights read by a step of few rows
  size_t kv_bytes_per_token = 0;     // K/V read per token of history
  double matrix_ops_per_row = 0;     // multiply-adds count as two; layers without the output head
  double head_ops_per_row = 0;       // the output head, for rows whose logits are wanted
  double attention_ops_per_key = 0;  // per row and key it sees
};
StepCosts step_costs(const Engine& engine);

std::string spec_stats_json(const SpecStats& stats);    // everything, as one JSON object
std::string spec_metrics_json(const SpecStats& stats);  // as in vLLM's responses: {"speculative_decoding": {...}}

}  // namespace sx
