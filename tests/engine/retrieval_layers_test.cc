// The retrieval layers that the probe names retrieve in texts it does not know, and the last layer does not: on the
// default model, because layers of random weights find nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/registry.h"
#include "engine/tokenizer.h"
#include "model/model.h"
#include "speculative/cache/retrieval_layers.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

constexpr int kChunk = 32;

struct Target {
  explicit Target(const std::string& path) {
    file = ModelFile::open(path);
    tokenizer = std::make_unique<TokenizerImpl>(file, "");
    backend = make_cpu_backend({2, std::nullopt});
    ModelOptions options;
    options.max_rows = 512, options.max_outputs = 1, options.context = 1024;
    options.taps.query = likely_retrieval_layers(file->config().layers);
    model = Model::load(file, *backend, options);
    kv = backend->make_kv(model->kv_geometry(1, 1024, backend->default_kv_type()));
  }
  std::vector<Token> encode(std::string_view text) const { return tokenizer->codec().encode(text, false, false); }
  std::vector<int> probe() {
    return probe_retrieval_layers(*backend, *model, *kv, [&](std::string_view text) { return encode(text); });
  }

  // Share of the last `asking` tokens whose attention in `layer` is largest in the chunk where `text` goes on after its
  // first occurrence of them, among all chunks but the first and those of the last 64 tokens.
  double found(int layer, const std::vector<Token>& text, int first, int again, int asking) {
    const int cells = int(text.size()), from = cells - asking;
    std::vector<int32_t> positions(text.size()), borders;
    for (int i = 0; i < cells; ++i) positions[size_t(i)] = i;
    for (int border = 0; border < cells; border += kChunk) borders.push_back(border);
    borders.push_back(cells);
    const size_t chunks = borders.size() - 1;
    model->tap_queries(std::span(&layer, 1));
    const auto run = [&](int begin, int end) -> const StepOutputs& {
      const SeqRows seq{0, end - begin, 0, begin};
      return model->forward({std::span(text).subspan(size_t(begin), size_t(end - begin)),
                             std::span(positions).subspan(size_t(begin), size_t(end - begin)),
                             std::span(&seq, 1),
                             {}},
                            *kv);
    };
    run(0, from);
    const StepOutputs& out = run(from, cells);
    const ModelConfig& c = model->config();
    float* scores = backend->allocate(size_t(c.heads) * chunks, "scores");
    int right = 0;
    for (int r = 0; r < asking; ++r) {
      backend->kv_score({scores, out.query[0] + size_t(r) * size_t(c.heads * c.head_dim), c.heads, c.kv_heads,
                         c.head_dim, 1 / std::sqrt(float(c.head_dim)), kv.get(), layer, 0, borders, ScoreKind::kMass});
      size_t best = 1;
      std::vector<double> mass(chunks);
      for (size_t i = 1; i < size_t(cells - 64) / kChunk; ++i) {
        for (int h = 0; h < c.heads; ++h) mass[i] += double(scores[size_t(h) * chunks + i]);
        if (mass[i] > mass[best]) best = i;
      }
      right += int(best) == (first + from + r - again + 1) / kChunk;
    }
    return double(right) / asking;
  }

  std::shared_ptr<const ModelFile> file;
  std::unique_ptr<TokenizerImpl> tokenizer;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<KvStore> kv;
};

TEST(Probe, LikelyLayersExist) {
  for (int layers = 1; layers < 100; ++layers) {
    const auto likely = likely_retrieval_layers(layers);
    ASSERT_EQ(likely.size(), size_t(std::min(layers, 2)));
    for (size_t i = 0; i < likely.size(); ++i) {
      EXPECT_GE(likely[i], i == 0 ? 0 : likely[i - 1] + 1);
      EXPECT_LT(likely[i], layers);
    }
  }
}

TEST(Probe, FindsLayersThatFindThingsAgain) {
  std::string path;
  try {
    path = default_model_path();
  } catch (const std::exception&) { GTEST_SKIP() << "the default model is not here"; }
  Target target(path);
  const auto layers = target.probe();
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers, target.probe());  // a function of the model alone

  const std::string filler =
      "Section 12 of the act asks agencies to publish their plans once a year. The committee held nine hearings on the matter between "
      "March and October. Costs have grown with the number of stations, and the largest share goes to salaries and repairs. ";
  const std::string passage =
      "Dr. Amelia Okafor, who directed the seismic survey of the Tarim basin, told the panel that eleven of the forty drilling sites "
      "showed traces of methane, that the contractor had sealed four of them with concrete, and that a full report would follow in spring. ";
  std::string between;
  for (const char* topic :
       {"Rural post offices", "Harbour pilots", "Weather balloons", "Veterans' clinics", "Bridge inspectors"})
    between +=
        std::string(topic) +
        " depend on a fund that was set up in 1974. Its rules changed twice, and a third change is before the house. "
        "Supporters say that the change would shorten delays; opponents point to its price and ask for a trial in two states first. ";
  std::vector<Token> text = target.encode(filler);
  const int first = int(text.size());
  const auto again_tokens = target.encode(passage);
  const auto add = [&](const std::vector<Token>& more) { text.insert(text.end(), more.begin(), more.end()); };
  add(again_tokens);
  add(target.encode(between));
  const int again = int(text.size());
  add({again_tokens.begin(), again_tokens.begin() + 36});
  double mean = 0;
  for (int layer : layers) mean += target.found(layer, text, first, again, 12) / 2;
  const double last = target.found(target.file->config().layers - 1, text, first, again, 12);
  EXPECT_GE(mean, 0.6);
  EXPECT_GT(mean, last + 0.2);
}

}  // namespace
}  // namespace sx
