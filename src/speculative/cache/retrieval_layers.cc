// The probe for retrieval layers: a text that repeats a passage is run once.
#include "speculative/cache/retrieval_layers.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace sx {
namespace {

constexpr int kChunk = 16;             // cells scored together
constexpr int kQueries = 8;            // the last tokens, whose queries score the text
constexpr int kRepeated = 28;          // tokens of the passage that are repeated
constexpr double kMostBytes = 2.5e11;  // of weights times tokens: about a second on two cores

constexpr const char* kBefore =
    "The harbour office keeps a daily record of ships, cargo and weather. On Monday two trawlers came in before noon with cod and "
    "haddock, and the ice plant ran without a stop. The price of diesel rose by four cents. A crane on the north quay was out of order "
    "until Wednesday, when a fitter from the shipyard replaced its cable. ";
constexpr const char* kPassage =
    "Captain Ingrid Halvorsen reported that the lighthouse at Skarvik had been dark for three nights and that her crew had marked the "
    "shoal with seven yellow barrels until the keeper returned from the hospital with new lamps and a younger assistant. ";
constexpr const char* kBetween =
    "On Thursday the mail boat brought eleven parcels, a piano and the new teacher. The school opens again next week with forty pupils. "
    "Rain is expected from the west, with gusts in the evening. The council met to discuss the widening of the road to the airfield; "
    "a vote was put off because the plans were not complete. Fees for small boats stay as they are, while visitors pay a little more from "
    "the first of June. The museum shows photographs of the old whaling station, open every day except Tuesday. A bakery has moved into "
    "the former customs house and sells rye bread, cinnamon rolls and coffee from six in the morning. Two lost dogs were found near the "
    "mill and given back to their owners. The library asks for the return of all books that were borrowed last winter. From the record: ";

struct ProbeText {
  std::vector<Token> tokens;
  int first = 0, again = 0;  // where the passage begins, and where its repetition begins
};

ProbeText probe_text(const std::function<std::vector<Token>(std::string_view)>& encode) {
  ProbeText text;
  const auto add = [&](const std::vector<Token>& more) {
    text.tokens.insert(text.tokens.end(), more.begin(), more.end());
  };
  add(encode(kBefore));
  text.first = int(text.tokens.size());
  std::vector<Token> passage = encode(kPassage);
  add(passage);
  add(encode(kBetween));
  text.again = int(text.tokens.size());
  passage.resize(std::min(passage.size(), size_t(kRepeated)));
  add(passage);
  return text;
}

class Probe {
 public:
  Probe(Backend& backend, Model& target, KvStore& kv, const ProbeText& text)
      : backend_(backend), target_(target), kv_(kv), text_(text) {
    for (int border = 0; border < cells(); border += kChunk) borders_.push_back(border);
    borders_.push_back(cells());
    scores_.resize(size_t(target.config().heads) * borders_.size());
  }

  int cells() const { return int(text_.tokens.size()); }

  // Runs cells [first, end) of the text.
  const StepOutputs& run(int first, int end) {
    const int rows = end - first;
    positions_.resize(size_t(rows));
    for (int i = 0; i < rows; ++i) positions_[size_t(i)] = first + i;
    const SeqRows seq{0, rows, 0, first};
    return target_.forward(
        {std::span(text_.tokens).subspan(size_t(first), size_t(rows)), positions_, std::span(&seq, 1), {}, true}, kv_);
  }

  // The logarithm of the attention to the chunk where the passage goes on, over the highest attention to another chunk.
  // The first chunk and the repetition do not count.
  double margin(int layer, const float* query, int cell) {
    const ModelConfig& c = target_.config();
    backend_.kv_score({scores_.data(), query, c.heads, c.kv_heads, c.head_dim, 1.0f / std::sqrt(float(c.head_dim)),
                       &kv_, layer, 0, borders_, ScoreKind::kMass});
    const size_t chunks = borders_.size() - 1;
    const int wanted = (text_.first + cell - text_.again + 1) / kChunk;
    double found = 0, best = 1e-12;
    for (int i = 1; i < text_.again / kChunk; ++i) {
      double mass = 1e-12;
      for (int h = 0; h < c.heads; ++h) mass += double(scores_[size_t(h) * chunks + size_t(i)]);
      (i == wanted ? found : best) = i == wanted ? mass : std::max(best, mass);
    }
    return std::log(std::max(found, 1e-12) / best);
  }

 private:
  Backend& backend_;
  Model& target_;
  KvStore& kv_;
  const ProbeText& text_;
  std::vector<int32_t> positions_, borders_;
  std::vector<float> scores_;
};

}  // namespace

std::vector<int> likely_retrieval_layers(int layers) {
  if (layers == 1) return {0};
  const int first = std::min(layers - 2, layers * 2 / 3);
  return {first, first + 1};
}

std::vector<int> probe_retrieval_layers(Backend& backend, Model& target, KvStore& kv,
                                        const std::function<std::vector<Token>(std::string_view)>& encode) {
  const ModelConfig& c = target.config();
  const ProbeText text = probe_text(encode);
  const int cells = int(text.tokens.size()), asked = cells - kQueries, most = target.options().max_rows;
  std::vector<int> result = likely_retrieval_layers(c.layers);
  const bool slow = double(target.weight_bytes()) * cells >
                    kMostBytes;  // decided by size, not by the clock, so that the answer is always the same
  if (slow || kv.geometry().capacity < cells || most < kQueries || text.again + kQueries > cells) return result;
  Probe probe(backend, target, kv, text);
  for (int first = 0; first < asked; first += most) probe.run(first, std::min(first + most, asked));
  std::vector<std::pair<double, int>> found;  // margin and layer; worst first after sorting
  for (int i = 0; i < c.layers; ++i) {
    target.tap_queries(std::span(&i, 1));
    const StepOutputs& out = probe.run(asked, cells);
    double sum = 0;
    for (int r = 0; r < kQueries; ++r)
      sum += probe.margin(i, out.query[0] + size_t(r) * size_t(c.heads * c.head_dim), asked + r);
    found.emplace_back(sum, i);
  }
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i < result.size(); ++i) result[i] = found[found.size() - 1 - i].second;
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace sx
