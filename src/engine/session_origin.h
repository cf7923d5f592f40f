// What the cells of a session depend on besides its tokens. A saved session says where it comes from, and is restored
// only where the same tokens would give the same cells.
#pragma once
#include <span>
#include <string>

#include "model/model.h"

namespace sx {

struct SessionOrigin {
  std::string model;    // tensors and the numbers of the configuration
  std::string version;  // of the library: kernels may change
  std::string device;   // "cpu (avx2)": instruction sets and devices round differently
  std::string kv_type;
  std::string rope;  // frequencies; with dynamic scaling they depend on the context
  int context = 0;   // named in messages only
};

SessionOrigin origin_of(const Model& model, const ModelFile& file, const Backend& backend, const KvTypes& kv_type);
// Throws sx::Error naming the first thing in which the two differ.
void check_origin(const SessionOrigin& saved, const SessionOrigin& here);

// Of the tensors' names, types and shapes, the beginning of each, and what else of the configuration decides a pass.
std::string model_fingerprint(const ModelFile& file);
std::string device_name(const Backend& backend);  // "cpu (avx2)": how many threads there are changes nothing
std::string rope_fingerprint(std::span<const double> frequencies, float factor);

}  // namespace sx
