#include "backend/cpu/sampling/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/host_rows.h"
#include "base/error.h"
#include "base/rng.h"

namespace sx::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void adjust(float* x, int vocab, const ChooseRow& row) {
  const Sampling& s = *row.sampling;
  for (const TokenBias& b : row.bias)
    if (b.token >= 0 && b.token < vocab) x[b.token] += b.bias;
  for (const TokenCount& c : row.counts) {
    if (c.token < 0 || c.token >= vocab || c.count <= 0) continue;
    float& logit = x[c.token];
    logit = logit > 0 ? logit / s.repeat_penalty : logit * s.repeat_penalty;
    logit -= s.presence_penalty + s.frequency_penalty * static_cast<float>(c.count);
  }
}

// Tokens that are not allowed get -infinity, which no filter counts and no race can win.
void forbid(float* x, int vocab, const uint32_t* allowed) {
  for (int from = 0; from < vocab; from += 32) {
    const uint32_t bits = allowed[from / 32];
    const int count = std::min(32, vocab - from);
    if (bits == 0) std::fill_n(x + from, count, kNever);
    else if (bits != ~0u)
      for (int i = 0; i < count; ++i) x[from + i] = bits >> i & 1 ? x[from + i] : kNever;
  }
}

Token first_allowed(const ChooseRow& row, int vocab) {
  for (Token t = 0; t < vocab; ++t)
    if (row.allows(t)) return t;
  return kNoToken;
}

// A row with bias, penalties and forbidden tokens; its maxima are in the scratch memory. Sampled rows hold no infinity
// but -infinity.
struct Ready {
  const float* logits;
  int vocab;
  float largest;
  Token first;   // with the largest logit: the answer unless the row is sampled; kNoToken: none is allowed
  bool sampled;  // some logit is finite, and the temperature is not 0
};

Ready prepare(const ChooseRow& row, int vocab, RowScratch& scratch) {
  SX_ASSERT(static_cast<size_t>(vocab) <= scratch.copy.size());
  Ready r{row.logits, vocab, kNever, 0, row.sampling->temperature > 0};
  if (!row.bias.empty() || !row.counts.empty() || row.allowed) {
    std::memcpy(scratch.copy.data(), row.logits, static_cast<size_t>(vocab) * sizeof(float));
    adjust(scratch.copy.data(), vocab, row);
    if (row.allowed) forbid(scratch.copy.data(), vocab, row.allowed);
    r.logits = scratch.copy.data();
  }
  r.largest = find_maxima(r.logits, vocab, scratch);
  if (row.allowed && r.largest == kNever) {
    r.first = first_allowed(row, vocab), r.sampled = false;
    return r;
  }
  if (r.sampled && r.largest < -kNever) {
    r.sampled = r.largest > kNever;
    return r;
  }
  r.first = first_with(r.largest, r.logits, vocab, scratch);
  if (r.sampled) {
    r.largest = find_maxima_of_finite(r.logits, vocab, scratch);
    r.logits = scratch.copy.data();
    r.sampled = r.largest > kNever;
  }
  return r;
}

// 2^x for x <= 0, relative error 2e-12; 0 below -1000 and for NaN. Loops over it vectorise.
inline double power_of_two(double x) {
  constexpr double kShift = 0x1.8p52;  // sums with it are whole, and their last bits the exponent
  const double w = x + kShift, f = x - (w - kShift), ff = f * f;
  // A minimax polynomial on [-0.5, 0.5] that is exact at 0, in short chains.
  const double a = 1.0 + f * 0.6931471805412329;
  const double b = 0.24022650694742637 + f * 0.05550410959227876;
  const double c = 0.009618129558824302 + f * 0.0013333434158352689;
  const double d = 0.000154030982978597 + f * 1.531420903803661e-05 + ff * 1.334418095993795e-06;
  const double p = (a + ff * b) + (ff * ff) * (c + ff * d);
  const double scaled = std::bit_cast<double>(std::bit_cast<uint64_t>(p) + (std::bit_cast<uint64_t>(w) << 52));
  return x > -1000.0 ? scaled : 0.0;
}

// out[i] = e^((x[i] - top) * inverse); returns the sum, in partial sums of one fixed order.
double powers(const float* x, int count, float top, double inverse, double* out) {
  constexpr int kLanes = 8;
  const double scale = inverse * 1.4426950408889634, most = double(top);
  for (int i = 0; i < count; ++i) out[i] = power_of_two((double(x[i]) - most) * scale);
  double lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lane[j] += out[i + j];
  for (int j = 0; i < count; ++i, ++j) lane[j] += out[i];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

double sum_of_powers(const Ready& r) {
  constexpr int kPart = 512;
  double part[kPart], sum = 0;
  for (int from = 0; from < r.vocab; from += kPart)
    sum += powers(r.logits + from, std::min(kPart, r.vocab - from), r.largest, 1, part);
  return sum;
}

// How many of the tokens, sorted best first, hold `share` of their probability; at least one.
size_t count_share(const Ready& r, std::span<const Token> tokens, double share) {
  const auto weight = [&](Token t) { return std::exp(double(r.logits[t]) - double(r.largest)); };
  double sum = 0, kept = 0;
  for (const Token t : tokens) sum += weight(t);
  for (size_t n = 0; n < tokens.size();) {
    kept += weight(tokens[n++]);
    if (kept >= share * sum) return n;
  }
  return tokens.size();
}

// The best tokens of the whole row that hold `share` of its probability, sorted best first. The definition is
// count_share() of all tokens, sorted. A total that was summed in another order decides all but the closest of cases
// (kDoubt is far above the error of either sum), and then only the best tokens need to be sorted.
size_t pick_share(const Ready& r, double share, RowScratch& scratch) {
  constexpr double kDoubt = 1e-9;
  const double sum = sum_of_powers(r);
  for (double reach = 4; reach < 40; reach += 2) {
    const std::span tokens(scratch.tokens.data(), pick_above(double(r.largest) - reach, r.logits, r.vocab, scratch));
    double kept = 0;
    for (const Token t : tokens) kept += std::exp(double(r.logits[t]) - double(r.largest));
    if (kept < (share + kDoubt) * sum) continue;  // the border lies beyond
    sort_tokens(tokens, r.logits);
    kept = 0;
    for (size_t n = 0; n < tokens.size();) {
      kept += std::exp(double(r.logits[tokens[n++]]) - double(r.largest));
      if (std::fabs(kept - share * sum) <= kDoubt * sum) break;
      if (kept > share * sum) return n;
    }
    break;
  }
  const std::span all(scratch.tokens.data(),
                      pick_above(double(std::numeric_limits<float>::lowest()), r.logits, r.vocab, scratch));
  sort_tokens(all, r.logits);
  return count_share(r, all, share);
}

// What top-k, top-p and min-p leave: scratch.tokens[0, count), or all tokens with finite logits.
struct Left {
  bool all = true;
  size_t count = 0;
};

Left filter(const Ready& r, const Sampling& s, RowScratch& scratch) {
  Left left;
  if (s.top_k > 0 && s.top_k < r.vocab) {
    left = {false, pick_best(static_cast<size_t>(s.top_k), r.logits, r.vocab, scratch)};
    if (s.top_p < 1) {
      const std::span tokens(scratch.tokens.data(), left.count);
      sort_tokens(tokens, r.logits);
      left.count = count_share(r, tokens, double(s.top_p));
    }
  } else if (s.top_p < 1) {
    left = {false, pick_share(r, double(s.top_p), scratch)};
  }
  if (s.min_p > 0) {
    const double least = double(r.largest) + std::min(0.0, std::log(double(s.min_p)));
    if (left.all) {
      left = {false, pick_above(least, r.logits, r.vocab, scratch)};
    } else {
      Token* tokens = scratch.tokens.data();
      const auto below = [&](Token t) { return double(r.logits[t]) < least; };
      const auto end = std::remove_if(tokens, tokens + left.count, below);
      left.count = static_cast<size_t>(end - tokens);
    }
  }
  return left;
}

// The largest logit / temperature + noise of the tokens that were offered.
class Race {
 public:
  Race(const Ready& r, const ChooseRow& row)
      : r_(r), seed_(row.sampling->seed), position_(row.position), inverse_(1.0 / double(row.sampling->temperature)) {}
  Token winner() const { return winner_; }

  // Most candidates are dismissed without logarithms: -log(-log u) >= b needs -log u <= e^-b, and -log u >= 1 - u.
  void offer(Token token) {
    const double u = uniform_from(hash_key(seed_, position_, static_cast<uint64_t>(token)));
    const double scaled = double(r_.logits[token]) * inverse_;
    if (1.0 - u > std::exp(scaled - best_) * kMargin) return;
    const double score = scaled - std::log(-std::log(u));
    if (score > best_ || (score == best_ && token < winner_)) best_ = score, winner_ = token;
  }

  // All tokens. Those of a slab are dismissed together, by the slab's largest logit: u must come near enough to 1.
  void offer_all(const RowScratch& scratch) {
    offer(first_with(r_.largest, r_.logits, r_.vocab, scratch));
    for (int from = 0; from < r_.vocab; from += kSlab) {
      const float* maxima = scratch.maxima.data() + from / kSlab * kGroups;
      const double top = double(*std::max_element(maxima, maxima + kGroups));
      const double needed = 1.0 - std::exp(top * inverse_ - best_) * kMargin - 1e-12;  // of u; below 1
      const uint64_t least = needed > 0 ? static_cast<uint64_t>(needed * 0x1p52) << 12 : 0;
      const int to = std::min(from + kSlab, r_.vocab);
      for (Token t = from; t < to; ++t)
        if (hash_key(seed_, position_, static_cast<uint64_t>(t)) >= least && r_.logits[t] > kNever) offer(t);
    }
  }

 private:
  static constexpr double kMargin = 1.000001;  // what exp() and rounding may be wrong by
  const Ready& r_;
  const uint64_t seed_, position_;
  const double inverse_;
  double best_ = -std::numeric_limits<double>::infinity();
  Token winner_ = -1;
};

Token choose_row(const ChooseRow& row, int vocab, RowScratch& scratch) {
  mark_broken(row, vocab);
  const Ready r = prepare(row, vocab, scratch);
  if (!r.sampled) return r.first;
  const Left left = filter(r, *row.sampling, scratch);
  Race race(r, row);
  if (left.all) race.offer_all(scratch);
  for (size_t i = 0; i < left.count; ++i) race.offer(scratch.tokens[i]);
  return race.winner();
}

}  // namespace

void choose(const ChooseArgs& args, ThreadPool& pool, RowScratches& scratch) {
  share_rows(static_cast<int>(args.rows.size()), pool, scratch, [&](int r, RowScratch& mine) {
    args.out[r] = choose_row(args.rows[static_cast<size_t>(r)], args.vocab, mine);
  });
}

void probabilities(const ProbabilitiesArgs& args, RowScratch& scratch) {
  mark_broken(args.row, args.vocab);
  const Ready r = prepare(args.row, args.vocab, scratch);
  const double inverse = 1.0 / double(args.row.sampling->temperature);
  const Left left = r.sampled ? filter(r, *args.row.sampling, scratch) : Left{false, 0};
  if (left.all) {
    const double share = 1 / powers(r.logits, args.vocab, r.largest, inverse, args.out);
    for (int t = 0; t < args.vocab; ++t) args.out[t] *= share;
    return;
  }
  std::fill_n(args.out, args.vocab, 0.0);
  if (!r.sampled) {
    if (r.first != kNoToken) args.out[r.first] = 1;
    return;
  }
  double sum = 0;
  for (size_t i = 0; i < left.count; ++i) {
    const Token t = scratch.tokens[i];
    sum += args.out[t] = std::exp((double(r.logits[t]) - double(r.largest)) * inverse);
  }
  for (size_t i = 0; i < left.count; ++i) args.out[scratch.tokens[i]] /= sum;
}

}  // namespace sx::cpu
