#include "engine/rank_follower.h"

#include "base/error.h"
#include "engine/session_origin.h"
#include "engine/startup_cache.h"

namespace sx {
namespace {

// Numbers of ModelOptions that travel.
struct LoadHeader {
  int max_rows, max_outputs, context, most_queries;
  bool check_weights;
  bool links;  // devices, see RankedBackend::link_devices()
};

// Throws sx::Error if they differ.
void compare(const char* what, const std::string& first, const std::string& here) {
  if (first != here)
    fail("its {} is not that of rank 0, and their bits could differ: '{}' here, '{}' there", what, here, first);
}

}  // namespace

std::string rank_identity(const Backend& backend) {
  return fmt::format("SpecExtend {}, {}", SPECEXTEND_VERSION, device_name(backend));
}

std::unique_ptr<Model> load_on_ranks(const std::shared_ptr<const ModelFile>& file, Backend& backend,
                                     const ModelOptions& options) {
  Ranks& ranks = *backend.ranks();
  ModelOptions own = options;
  own.spread = true;
  auto* const ranked = dynamic_cast<RankedBackend*>(&backend);
  const bool links = ranked && ranked->wants_link();
  ranks.begin(RankCommand::kLoad)
      .put(LoadHeader{.max_rows = own.max_rows,
                      .max_outputs = own.max_outputs,
                      .context = own.context,
                      .most_queries = own.most_queries,
                      .check_weights = own.check_weights,
                      .links = links})
      .put_all(std::span<const int>(own.taps.hidden))
      .put_all(std::span<const int>(own.taps.query))
      .put_text(file->path())
      .put_text(rank_identity(backend))
      .put_text(model_fingerprint(*file));
  ranks.announce();
  std::unique_ptr<Model> model;
  std::string error;
  try {
    if (links) RankedBackend::link_devices(ranks, ranked);
    model = Model::load(file, backend, own);
  } catch (const std::exception& e) { error = e.what(); }
  ranks.agree(error);
  return model;
}

void dismiss(Ranks& ranks) {
  ranks.begin(RankCommand::kQuit);
  ranks.announce();
}

void RankFollower::load() {
  close();
  MessageBuffer& message = ranks_->command();
  const auto header = message.get<LoadHeader>();
  ModelOptions options;
  options.max_rows = header.max_rows, options.max_outputs = header.max_outputs, options.context = header.context;
  options.most_queries = header.most_queries, options.check_weights = header.check_weights, options.spread = true;
  message.get_all(options.taps.hidden);
  message.get_all(options.taps.query);
  const std::string path = message.get_text(), identity = message.get_text(), fingerprint = message.get_text();
  std::string error;
  try {
    backend_ = std::make_unique<RankedBackend>(make_(), ranks_);
  } catch (const std::exception& e) { error = e.what(); }
  try {
    if (header.links) RankedBackend::link_devices(*ranks_, backend_.get());
    if (!error.empty()) throw Error(error);
    compare("program or instruction set", identity, rank_identity(*backend_));
    const auto file = ModelFile::open(path);
    compare("model", fingerprint, model_fingerprint(*file));
    models_.push_back(Model::load(file, *backend_, options));
  } catch (const std::exception& e) { error = e.what(); }
  ranks_->agree(error);
}

void RankFollower::close() {
  stores_.clear();
  while (!models_.empty()) models_.pop_back();  // copies first
  backend_.reset();
}

Model& RankFollower::model() {
  const auto number = size_t(ranks_->command().get<int>());
  SX_ASSERT(number < models_.size() && models_[number]);
  return *models_[number];
}

void RankFollower::run() {
  for (;;) {
    const RankCommand command = ranks_->next_command();
    switch (command) {
      case RankCommand::kQuit: return close();
      case RankCommand::kLoad: load(); break;
      case RankCommand::kClose: close(); break;
      case RankCommand::kForward:
      case RankCommand::kMoreLogits:
      case RankCommand::kTapQueries: model().follow(command, stores_); break;
      // One that cannot be loaded has a number, too.
      case RankCommand::kLoadCopy: models_.push_back(model().follow_copy()); break;
      case RankCommand::kDropCopy: models_[size_t(ranks_->command().get<int>())].reset(); break;
      default: SX_ASSERT(backend_); backend_->follow(command, stores_);
    }
  }
}

}  // namespace sx
