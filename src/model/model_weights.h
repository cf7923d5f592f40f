// Reads the weights of a model file into a backend, checked: sizes as expected, numbers finite.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "backend/ranks/ranks.h"
#include "formats/model_file.h"
#include "model/feed_forward.h"
#include "model/requantise.h"

namespace sx {

// Rows of a tensor by its name: all of them, or a rank's share.
struct WeightRows {
  WeightRows(std::string tensor, RankShare share = {0, -1}) : name(std::move(tensor)), rows(share) {}  // NOLINT
  WeightRows(const char* tensor) : name(tensor) {}                                                     // NOLINT
  std::string name;
  RankShare rows{0, -1};
};

// A vector of `size` numbers, or a share of it.
struct WeightVector {
  std::string name;
  int size;
  RankShare rows{0, -1};
  RankShare wanted() const { return rows.end < 0 ? RankShare{0, size} : rows; }
};

class WeightReader {
 public:
  // check_matrices: look through all of them for what is no number; vectors are always looked through.
  // requantise: makes matrices smaller before the backend gets them; null: they stay as they are.
  WeightReader(const ModelFile& file, Backend& backend, bool check_matrices, Requantiser* requantise = nullptr)
      : file_(file), backend_(backend), check_matrices_(check_matrices), requantise_(requantise) {}

  // The parts stacked by output rows.
  std::unique_ptr<Matrix> matrix(std::initializer_list<WeightRows> names);
  std::unique_ptr<Matrix> head(const WeightRows& name);  // to logits: 8 bits where the others get fewer
  void check_matrix(const std::string& name, const Tensor& tensor) const;
  // The router and all experts of a mixture's layer; ranks by columns: of the experts this rank's columns.
  void experts(int layer, const LayerParts& parts, FeedForwardWeights& weights, const Ranks* ranks);
  // Biases of stacked matrices, stacked too; a missing one is zero. Null: all are missing.
  const float* stacked(std::initializer_list<WeightVector> parts);
  NormWeights norm(const std::string& name);                    // "blk.0.attn_norm", with its bias if the model has any
  const float* norm_vector(const std::string& name, int size);  // weights of a norm, with the model's offset
  // Weights of q's norm times those of k's, for norms behind RoPE: see Model::norm_rotated. Divided by `factor`.
  const float* norm_product(const std::string& q, const std::string& k, int size, float factor);
  const float* ones(int size);
  size_t bytes() const { return bytes_; }  // of the matrices, read by one pass

 private:
  std::unique_ptr<Matrix> matrix_of(std::span<const WeightRows> names, bool head);
  std::unique_ptr<Matrix> experts_of(std::span<const Tensor> parts, const LayerParts& layer);
  bool read(const std::string& name, int size, bool required, float* out) const;  // false: there is none
  void check_finite(const std::string& name, const Tensor& tensor) const;
  const float* upload(const std::vector<float>& values, const char* purpose);

  const ModelFile& file_;
  Backend& backend_;
  bool check_matrices_;
  Requantiser* requantise_;
  size_t bytes_ = 0;
};

}  // namespace sx
