// What ranks other than 0 run: they hold their part of a model and do what rank 0 announces, until it ends. And how
// rank 0 opens a model together with them.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/ranks/ranked_backend.h"
#include "model/model.h"

namespace sx {

// What must be the same on all ranks for their bits to be those of one: version, program, instruction set.
std::string rank_identity(const Backend& backend);

// Rank 0: all ranks load their part of the model; throws sx::Error that names the rank which could not.
std::unique_ptr<Model> load_on_ranks(const std::shared_ptr<const ModelFile>& file, Backend& backend,
                                     const ModelOptions& options);
// Rank 0: the others end.
void dismiss(Ranks& ranks);

// The others: returns when rank 0 dismisses them. Throws sx::Error when it is lost.
class RankFollower {
 public:
  // make: the backend on which this rank's part of a model runs.
  using MakeBackend = std::function<std::unique_ptr<Backend>()>;
  RankFollower(std::shared_ptr<Ranks> ranks, MakeBackend make) : ranks_(std::move(ranks)), make_(std::move(make)) {}
  void run();

 private:
  void load();
  void close();
  Model& model();  // that the command is for

  std::shared_ptr<Ranks> ranks_;
  MakeBackend make_;
  std::unique_ptr<RankedBackend> backend_;
  std::vector<std::unique_ptr<Model>> models_;  // by number: the model, then copies of it that draft
  RankedBackend::Stores stores_;
};

}  // namespace sx
