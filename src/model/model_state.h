// What a model holds inside: the weights of a layer, and the activations of a step.
#pragma once
#include <memory>
#include <vector>

#include "model/model.h"

namespace sx {

struct Model::Layer {
  LayerParts parts;  // ranks by columns: heads and KV heads are this rank's
  size_t rope;       // which of the tables of a step
  NormWeights norm, post_norm;
  const float *q_norm, *k_norm;                          // [head_dim], or as long as all heads, or null
  const float* rotated_norm = nullptr;                   // [head_dim] or null: see Model::norm_rotated
  const float *qkv_bias = nullptr, *out_bias = nullptr;  // or null
  const float* sinks = nullptr;                          // [heads] or null
  std::unique_ptr<Matrix> qkv, out;
  FeedForwardWeights ffn;
};

// Neighbouring rows of a step whose queries grow by the same factor.
struct QueryGrowth {
  int first, rows;
  float factor;
};

// Activations of one step, f32, in backend memory.
struct Model::Workspace : LayerBuffers {
  float* qkv;                // [rows, (heads + 2 kv_heads) * head_dim]
  float* whole;              // [rows, heads * head_dim], ranks by columns: q or k of all ranks; else null
  float* attended;           // [rows, heads * head_dim]
  float* rotated = nullptr;  // [rows, heads * head_dim], q with its norm behind RoPE; null: no layer has one
  std::vector<float*> rope;  // per RoPE: [rows, dims]
  float* picked;             // [outputs, width]
  float* logits;             // [outputs, vocab]
  std::vector<float*> hidden, query;
  std::vector<QueryGrowth> growth;  // of the step's rows; empty: queries do not grow
};

// Of a step that rank 0 has announced: the rows of a sequence. Where they are a tree, its bits follow.
struct SeqHeader {
  int32_t first_row, rows, slot, history, words, uncommitted;
  bool tree;
};

// A step as it was announced.
struct Model::Followed {
  std::vector<Token> tokens;
  std::vector<int32_t> positions, outputs;
  std::vector<SeqHeader> headers;
  std::vector<SeqRows> seqs;
  std::vector<uint64_t> ancestors;
  std::vector<uint8_t> skip_attention, skip_ffn;
};

}  // namespace sx
