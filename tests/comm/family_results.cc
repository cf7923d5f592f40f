#include "comm/family_results.h"

#include <algorithm>
#include <filesystem>

#include "engine/rank_follower.h"
#include "model/model.h"

namespace sx::testing {

std::vector<std::string> models_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (std::filesystem::exists(entry.path() / "model.safetensors")) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<float> family_results(Backend& backend, const std::string& path) {
  const auto file = ModelFile::open(path);
  const ModelConfig& c = file->config();
  ModelOptions options;
  options.max_rows = 40, options.max_outputs = 8, options.context = 128;
  options.taps.hidden = {0, c.layers - 1, c.layers};
  options.taps.query = {0, c.layers - 1};
  auto model = backend.ranks() ? load_on_ranks(file, backend, options) : Model::load(file, backend, options);
  auto kv = backend.make_kv(model->kv_geometry(2, 128, DType::kF32));
  std::vector<float> all;
  const auto keep = [&](const float* from, size_t count) {
    const size_t at = all.size();
    all.resize(at + count);
    backend.download(all.data() + at, from, count);
  };
  int history = 0;
  const auto run = [&](int rows, int outputs, const uint64_t* ancestors) {
    std::vector<Token> tokens;
    std::vector<int32_t> positions, wanted;
    for (int i = 0; i < rows; ++i) {
      tokens.push_back((history * 31 + i * 17 + 5) % c.vocab);
      positions.push_back(history + (ancestors ? i / 2 : i));
    }
    for (int i = rows - outputs; i < rows; ++i) wanted.push_back(i);
    const SeqRows seq{.first_row = 0,
                      .rows = rows,
                      .slot = 1,
                      .history = history,
                      .ancestors = ancestors,
                      .words = ancestors ? 1 : 0};
    const StepOutputs& out = model->forward(
        {.tokens = tokens, .positions = positions, .seqs = std::span(&seq, 1), .outputs = wanted, .prompt = !ancestors},
        *kv);
    const size_t n = size_t(rows), width = size_t(c.width), q = size_t(c.heads) * size_t(c.head_dim);
    keep(out.logits, size_t(outputs) * size_t(c.vocab));
    for (size_t i = 0; i < 3; ++i)
      if (outputs > 0 || i < 2) keep(out.hidden[i], n * width);
    for (const float* query : out.query) keep(query, n * q);
    history += rows;
  };
  run(33, 3, nullptr);
  keep(model->more_logits(2, 5), 5 * size_t(c.vocab));
  run(1, 1, nullptr);
  const uint64_t tree[5] = {1, 3, 5, 11, 21};
  run(5, 5, tree);
  const KvMove moves[] = {{35, 34, 0}, {38, 35, 0}};
  backend.kv_move({.from = kv.get(), .to = kv.get(), .from_slot = 1, .to_slot = 1, .moves = moves});
  history = 36;
  run(2, 0, nullptr);
  run(1, 1, nullptr);
  return all;
}

}  // namespace sx::testing
