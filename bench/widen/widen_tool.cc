#include "bench/widen/widen_tool.h"

#include "base/error.h"
#include "bench/widen/widen.h"
#include "bench/widen/widen_head.h"
#include "engine/convert_api.h"

namespace sx {

ConvertResult widen(const WidenOptions& options) {
  WideShape shape = options.shape.empty() ? WideShape{} : named_shape(options.shape);
  const auto set = [](int& size, int wanted, const char* name) {
    if (wanted < 0) fail("{} is {}; a positive number is expected", name, wanted);
    if (wanted > 0) size = wanted;
  };
  set(shape.width, options.width, "the width");
  set(shape.layers, options.layers, "the number of layers");
  set(shape.heads, options.heads, "the number of heads");
  set(shape.kv_heads, options.kv_heads, "the number of KV heads");
  set(shape.head_dim, options.head_dim, "the head size");
  set(shape.ffn, options.ffn, "the feed-forward length");
  QuantizeJob job;
  job.out = options.out;
  job.types = {required_type(options.type), type_named(options.embedding), type_named(options.output), true};
  job.force = options.force;
  job.dry_run = options.dry_run;
  job.write = {options.threads, {}};
  if (is_eagle3_folder(options.model)) return result_of(widen_eagle3(options.model, shape, job), {});
  expect_gguf_name(options.out);
  const auto file = open_source(options.model, options.out);
  std::vector<std::string> notes;
  const TokenizerData vocabulary = gguf_vocabulary(*file, notes);
  return result_of(widen_model(*file, vocabulary, shape, job), std::move(notes));
}

}  // namespace sx
