#include "engine/session_origin.h"

#include <algorithm>

#include "base/error.h"
#include "engine/sha256.h"
#include "formats/family.h"

namespace sx {

std::string model_fingerprint(const ModelFile& file) {
  constexpr size_t kSample = 64;
  Sha256 hash;
  const ModelConfig& c = file.config();
  std::string numbers = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}\n", c.family->name, c.layers, c.width,
                                    c.norm_eps, c.centred_norms, c.norm_offset, c.embedding_scale, c.residual_scale,
                                    c.logit_scale, c.rope.dims, int(c.rope.style), c.query_growth, c.query_period);
  for (int i = 0; i < c.layers; ++i) {
    const LayerParts& p = c.layer(i);
    numbers += fmt::format("{} {} {} {} {} {} {} {} {} {}\n", p.heads, p.kv_heads, p.head_dim, p.window, p.rope,
                           int(p.qk_norm), int(p.activation), p.attention_scale, p.attention_soft_cap, p.parallel);
  }
  hash.add(std::as_bytes(std::span(numbers)));
  for (const NamedTensor& t : file.tensors()) {
    const std::string what =
        fmt::format("{} {} {} {}\n", t.name, dtype_name(t.tensor.type), t.tensor.rows(), t.tensor.columns());
    hash.add(std::as_bytes(std::span(what)));
    hash.add(std::span(t.tensor.data, std::min(kSample, t.tensor.bytes())));
  }
  return hash.hex();
}

std::string device_name(const Backend& backend) {
  const std::string name = backend.name();
  const size_t comma = name.find(',');
  return comma == name.npos ? name : name.substr(0, comma) + ")";
}

std::string rope_fingerprint(std::span<const double> frequencies, float factor) {
  Sha256 hash;
  hash.add(std::as_bytes(frequencies));
  hash.add(std::as_bytes(std::span(&factor, 1)));
  return hash.hex();
}

SessionOrigin origin_of(const Model& model, const ModelFile& file, const Backend& backend, const KvTypes& kv_type) {
  SessionOrigin origin;
  origin.model = model_fingerprint(file);
  origin.version = SPECEXTEND_VERSION;
  origin.device = device_name(backend);
  origin.kv_type = kv_types_name(kv_type);
  origin.rope = rope_fingerprint(model.rope_frequencies(), model.rope_factor());
  origin.context = model.context();
  return origin;
}

void check_origin(const SessionOrigin& saved, const SessionOrigin& here) {
  const char* const cannot = "this saved session cannot be restored here:";
  if (saved.model != here.model) fail("{} it was made with another model", cannot);
  if (saved.version != here.version)
    fail("{} it was made by version {} of SpecExtend, this is {}, and their kernels may round differently", cannot,
         saved.version, here.version);
  if (saved.device != here.device)
    fail("{} it was made on {}, this is {}, and they round differently", cannot, saved.device, here.device);
  if (saved.kv_type != here.kv_type)
    fail("{} its KV type is {}, that of this engine is {}", cannot, saved.kv_type, here.kv_type);
  if (saved.rope != here.rope)
    fail(
        "{} its keys were rotated by the RoPE frequencies of a context of {}, and those of the context here, {}, are others (the model's "
        "RoPE scaling is dynamic): open the model with a context of {}",
        cannot, saved.context, here.context, saved.context);
}

}  // namespace sx
