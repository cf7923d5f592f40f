// What the tests of conversion share: logits of a model file in F32, distances between logits, messages of errors.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "base/error.h"
#include "model/model.h"
#include "support/model_writer.h"

namespace sx {

inline std::vector<Token> random_text(int n, int vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> text(static_cast<size_t>(n));
  for (auto& t : text) t = Token(random() % unsigned(vocab));
  return text;
}

// Logits of every position of a text, in F32.
inline std::vector<float> logits_of(const std::string& path, const std::vector<Token>& text) {
  auto backend = make_cpu_backend({1, cpu::available_isas().front()});
  ModelOptions o;
  o.max_rows = o.max_outputs = int(text.size());
  o.context = 256;
  auto model = Model::load(ModelFile::open(path), *backend, o);
  auto kv = backend->make_kv(model->kv_geometry(1, 256, DType::kF32));
  std::vector<int32_t> positions, outputs;
  for (size_t i = 0; i < text.size(); ++i) positions.push_back(int32_t(i)), outputs.push_back(int32_t(i));
  const std::vector<SeqRows> seqs{{0, int(text.size()), 0, 0, nullptr, 0}};
  const float* logits = model->forward({text, positions, seqs, outputs}, *kv).logits;
  return {logits, logits + text.size() * size_t(model->config().vocab)};
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, double(std::fabs(a[i] - b[i])));
  return most;
}

inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, power = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference += std::pow(double(a[i]) - double(b[i]), 2), power += double(a[i]) * double(a[i]);
  return std::sqrt(difference / power);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

}  // namespace sx
