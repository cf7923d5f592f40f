// The objects behind the handles of <specextend/c.h>, and how C structures become options of the library.
#pragma once
#include <specextend/c.h>
#include <specextend/specextend.h>

#include <list>
#include <memory>
#include <string>
#include <vector>

struct sx_engine {
  std::unique_ptr<sx::Engine> engine;
  std::string backend;
};

struct sx_session {
  std::unique_ptr<sx::Session> session;
};

struct sx_result {
  sx::GenerateResult result;
  std::string stats;
};

struct sx_batch {
  // A request keeps what the library only refers to.
  struct Request {
    sx_session* session = nullptr;
    std::vector<sx::Token> prompt;
    sx::GenerateOptions options;
  };
  std::list<Request> requests;  // before the batch: it ends first
  std::vector<sx::Finished> finished;
  std::unique_ptr<sx::Batch> batch;
};

namespace sx::capi {

// These throw BadArgument for structures of a newer version than the library's. Members that the caller's version does
// not have get their defaults.
EngineOptions engine_options(const sx_engine_options& given);
GenerateOptions generate_options(const sx_generate_options* given);

// The caller's mistake, as opposed to an Error about a file or a model.
class BadArgument : public Error {
 public:
  using Error::Error;
};

}  // namespace sx::capi
