// Measured acceptance of copied continuations, and what follows from it for a draft's size.
#include "speculative/draft/copy_confidence.h"

#include <algorithm>
#include <cmath>

#include "speculative/draft/drafter.h"

namespace sx {
namespace {

constexpr float kPriorWeight = 8;  // observations
constexpr float kStale = 0.98f;    // what evidence is worth after one more round without any
// Measured on reports with their summaries, prose, source code and generated text.
constexpr float kPrior[Calibration::kLengths][Calibration::kCounts] = {
    {0.25f, 0.38f, 0.70f}, {0.38f, 0.55f, 0.72f}, {0.50f, 0.65f, 0.75f}, {0.62f, 0.74f, 0.80f},
    {0.80f, 0.86f, 0.90f}, {0.90f, 0.93f, 0.95f}, {0.96f, 0.96f, 0.96f}};

}  // namespace

Calibration::Calibration(float memory) : keep_(std::exp(-1 / memory)) {
  for (int i = 0; i < kBuckets; ++i) {
    Bucket& b = buckets_[size_t(i)];
    b = {kPrior[i / kCounts][i % kCounts] * kPriorWeight, kPriorWeight, 0, 0};
    set(b);
  }
}

void Calibration::set(Bucket& b) { b.chance = std::clamp(b.right / b.tried, 0.01f, 0.99f); }

int Calibration::bucket(int matched, int continuations) {
  int length = 0;
  while (length < kLengths - 1 && matched > 1 << length) ++length;
  return length * kCounts + (continuations <= 1 ? 0 : continuations <= 3 ? 1 : 2);
}

void Calibration::record(int bucket, float share, bool right) {
  Bucket& b = buckets_[size_t(bucket)];
  b.right = b.right * keep_ + (right ? 1.0f : 0.0f);
  b.tried = b.tried * keep_ + share;
  set(b);
}

bool Calibration::skip(int bucket, float cost) {
  Bucket& b = buckets_[size_t(bucket)];
  const float fade = std::max(kStale, std::min(1.0f, kPriorWeight / b.tried));
  b.right *= fade;
  b.tried *= fade;
  b.balance += kExplore;
  if (b.balance < cost) return false;
  b.balance = 0;
  return true;
}

void Calibration::seed(const Calibration& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const float chance = other.buckets_[i].chance;
    buckets_[i] = {chance * kPriorWeight, kPriorWeight, chance, 0};
  }
}

int Proposal::child(int parent, Token token) const {
  for (int i = parent + 1; i < static_cast<int>(nodes.size()); ++i)
    if (nodes[size_t(i)].parent == parent && nodes[size_t(i)].token == token) return i;
  return -1;
}

Cut best_cut(std::span<const float> probabilities, const float* cost) {
  Cut best;
  double tokens = 1;
  for (size_t n = 1; n <= probabilities.size(); ++n) {
    tokens += double(probabilities[n - 1]);
    const auto worth = static_cast<float>(cost ? tokens / double(cost[n]) : tokens);
    if (!cost || worth > best.worth) best = {static_cast<int>(n), worth};
  }
  return best;
}

void learn(const Outcome& outcome, const Proposal& proposal, Calibration& own, Calibration& shared) {
  const TokenTree& tree = *outcome.tree;
  int at = 0;
  for (size_t i = 0; i < outcome.path.size() && at >= 0; ++i) {
    // What the target said here. A text that ended here may still have it among the children.
    const Token truth = i + 1 < outcome.path.size() ? tree.token(outcome.path[i + 1]) : outcome.next;
    if (truth == kNoToken) return;
    float share = 0;
    bool right = false;
    for (NodeId c = tree.first_child(outcome.path[i]); c != kNoNode; c = tree.next_sibling(c)) {
      const int proposed = tree.source(c) & kFromIndex ? proposal.child(at, tree.token(c)) : -1;
      if (proposed < 0) continue;
      share += proposal.nodes[size_t(proposed)].share;
      right |= tree.token(c) == truth;
    }
    if (share > 0) {
      own.record(proposal.nodes[size_t(at)].bucket, share, right);
      shared.record(proposal.nodes[size_t(at)].bucket, share, right);
    }
    at = proposal.child(at, truth);
  }
}

}  // namespace sx
