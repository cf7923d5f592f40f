// The functions of <specextend/c.h>. No exception leaves them: each becomes a status and the thread's last error.
#include <specextend/inspect.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "capi/handles.h"

namespace {

using sx::capi::BadArgument;

thread_local std::string last_error;

sx_status failed(sx_status status, const char* message) {
  try {
    last_error = message;
  } catch (const std::bad_alloc&) { last_error.clear(); }
  return status;
}

// Runs what a function of the interface does. `work` returns nothing, or a status.
template <class Work>
sx_status guarded(Work&& work) {
  try {
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      return SX_OK;
    } else {
      return work();
    }
  } catch (const BadArgument& error) { return failed(SX_BAD_ARGUMENT, error.what()); } catch (const sx::Error& error) {
    return failed(SX_FAILED, error.what());
  } catch (const std::bad_alloc&) {
    return failed(SX_NO_MEMORY, "out of memory");
  } catch (const std::exception& error) { return failed(SX_BUG, error.what()); } catch (...) {
    return failed(SX_BUG, "an exception of unknown type");
  }
}

template <class T>
T& given(T* pointer, const char* name) {
  if (!pointer) throw BadArgument(fmt::format("{} is NULL", name));
  return *pointer;
}

std::span<const sx::Token> tokens_at(const int32_t* tokens, size_t n) {
  if (n > 0) given(tokens, "the pointer to the tokens");
  return {tokens, n};
}

// Stores how many items there are, and the items where they fit.
template <class Items, class T>
sx_status put(const Items& items, T* out, size_t capacity, size_t* count) {
  given(count, "count") = items.size();
  if (items.size() > capacity)
    return failed(SX_TOO_SMALL, fmt::format("{} items do not fit into {}", items.size(), capacity).c_str());
  if (!items.empty()) std::copy(items.begin(), items.end(), &given(out, "out"));
  return SX_OK;
}

std::string stats_of(const sx::GenerateResult& r) {
  const sx::Timings& t = r.timings;
  nlohmann::ordered_json j;
  j["timings"] = {
      {"prompt_tokens", t.prompt_tokens}, {"cached_tokens", t.cached_tokens}, {"generated_tokens", t.generated_tokens},
      {"prompt_ms", t.prompt_ms},         {"decode_ms", t.decode_ms},         {"draft_prompt_ms", t.draft_prompt_ms}};
  j["speculation"] = nlohmann::ordered_json::parse(sx::spec_stats_json(r.spec));
  return j.dump();
}

sx_result* keep(sx::GenerateResult&& result) {
  auto kept = std::make_unique<sx_result>();
  kept->stats = stats_of(result);
  kept->result = std::move(result);
  return kept.release();
}

[[noreturn]] void fail_file(const char* what, const char* path) {
  sx::fail("cannot {} '{}': {}", what, path, std::strerror(errno));
}

}  // namespace

int sx_c_version(void) { return SX_C_VERSION; }
const char* sx_last_error(void) { return last_error.c_str(); }

// ---- engines

sx_status sx_engine_open(const sx_engine_options* options, sx_engine** engine) {
  return guarded([&] {
    given(engine, "engine");
    auto opened = std::make_unique<sx_engine>();
    opened->engine = sx::Engine::open(sx::capi::engine_options(given(options, "options")));
    opened->backend = opened->engine->backend();
    *engine = opened.release();
  });
}

void sx_engine_close(sx_engine* engine) { delete engine; }
int32_t sx_engine_context(const sx_engine* engine) { return engine ? engine->engine->context() : 0; }
int32_t sx_engine_vocab(const sx_engine* engine) { return engine ? engine->engine->vocab() : 0; }
const char* sx_engine_backend(const sx_engine* engine) { return engine ? engine->backend.c_str() : ""; }

// ---- text and tokens

sx_status sx_tokenize(const sx_engine* engine, const char* text, size_t bytes, int add_special, int parse_special,
                      int32_t* out, size_t capacity, size_t* count) {
  return guarded([&] {
    const std::string_view words(bytes > 0 ? &given(text, "text") : "", bytes);
    const sx::Tokenizer& tokenizer = given(engine, "engine").engine->tokenizer();
    return put(tokenizer.tokenize(words, add_special != 0, parse_special != 0), out, capacity, count);
  });
}

sx_status sx_detokenize(const sx_engine* engine, const int32_t* tokens, size_t n, int show_special, int continues,
                        char* out, size_t capacity, size_t* count) {
  return guarded([&] {
    const sx::Tokenizer& tokenizer = given(engine, "engine").engine->tokenizer();
    return put(tokenizer.detokenize(tokens_at(tokens, n), show_special != 0, continues != 0), out, capacity, count);
  });
}

sx_status sx_chat_prompt(const sx_engine* engine, const char* messages_json, int add_generation_prompt, char* out,
                         size_t capacity, size_t* count) {
  return guarded([&] {
    const sx::Tokenizer& tokenizer = given(engine, "engine").engine->tokenizer();
    return put(tokenizer.apply_template_json(&given(messages_json, "messages_json"), add_generation_prompt != 0), out,
               capacity, count);
  });
}

sx_status sx_schema_to_grammar(const char* schema_json, char* out, size_t capacity, size_t* count) {
  return guarded(
      [&] { return put(sx::json_schema_to_gbnf(&given(schema_json, "schema_json")), out, capacity, count); });
}

// ---- results

const char* sx_result_text(const sx_result* result, size_t* bytes) {
  if (bytes) *bytes = result ? result->result.text.size() : 0;
  return result ? result->result.text.c_str() : "";
}

const int32_t* sx_result_tokens(const sx_result* result, size_t* count) {
  if (count) *count = result ? result->result.tokens.size() : 0;
  return result ? result->result.tokens.data() : nullptr;
}

sx_reason sx_result_reason(const sx_result* result) {
  if (!result) return SX_REASON_CANCELLED;
  switch (result->result.reason) {
    case sx::FinishReason::kEnd: return SX_REASON_END;
    case sx::FinishReason::kLength: return SX_REASON_LENGTH;
    case sx::FinishReason::kStop: return SX_REASON_STOP;
    case sx::FinishReason::kContext: return SX_REASON_CONTEXT;
    case sx::FinishReason::kCancelled: break;
  }
  return SX_REASON_CANCELLED;
}

const char* sx_result_stats(const sx_result* result) { return result ? result->stats.c_str() : "{}"; }
void sx_result_free(sx_result* result) { delete result; }

// ---- sessions

sx_status sx_session_start(sx_engine* engine, sx_session** session) {
  return guarded([&] {
    given(session, "session");
    auto started = std::make_unique<sx_session>();
    started->session = given(engine, "engine").engine->start();
    *session = started.release();
  });
}

void sx_session_close(sx_session* session) { delete session; }

sx_status sx_session_generate(sx_session* session, const int32_t* prompt, size_t n, const sx_generate_options* options,
                              sx_result** result) {
  return guarded([&] {
    given(result, "result");
    const sx::GenerateOptions translated = sx::capi::generate_options(options);
    *result = keep(given(session, "session").session->generate(tokens_at(prompt, n), translated));
  });
}

int32_t sx_session_length(const sx_session* session) { return session ? session->session->length() : 0; }

sx_status sx_session_truncate(sx_session* session, int32_t length) {
  return guarded([&] { given(session, "session").session->truncate(length); });
}

sx_status sx_session_save(const sx_session* session, const char* path) {
  return guarded([&] {
    const sx::Session& from = *given(session, "session").session;
    std::ofstream out(&given(path, "path"), std::ios::binary);
    if (!out) fail_file("write", path);
    from.save(out);
    if (!out.flush()) fail_file("write", path);
  });
}

sx_status sx_session_load(sx_session* session, const char* path) {
  return guarded([&] {
    sx::Session& into = *given(session, "session").session;
    std::ifstream in(&given(path, "path"), std::ios::binary);
    if (!in) fail_file("read", path);
    into.restore(in);
  });
}

// ---- batches

sx_status sx_batch_open(sx_engine* engine, sx_batch** batch) {
  return guarded([&] {
    given(batch, "batch");
    auto opened = std::make_unique<sx_batch>();
    opened->batch = given(engine, "engine").engine->batch();
    *batch = opened.release();
  });
}

void sx_batch_close(sx_batch* batch) { delete batch; }

sx_status sx_batch_add(sx_batch* batch, sx_session* session, const int32_t* prompt, size_t n,
                       const sx_generate_options* options) {
  return guarded([&] {
    sx_batch& into = given(batch, "batch");
    given(session, "session");
    const auto tokens = tokens_at(prompt, n);
    into.requests.push_back({session, {tokens.begin(), tokens.end()}, sx::capi::generate_options(options)});
    const sx_batch::Request& request = into.requests.back();
    try {
      into.batch->add({session->session.get(), request.prompt, &request.options});
    } catch (...) {
      into.requests.pop_back();
      throw;
    }
  });
}

sx_status sx_batch_step(sx_batch* batch, int* more) {
  return guarded([&] {
    given(more, "more");
    sx_batch& b = given(batch, "batch");
    *more = b.batch->step();
    for (sx::Finished& one : b.batch->take_finished()) b.finished.push_back(std::move(one));
  });
}

sx_status sx_batch_take(sx_batch* batch, sx_session** session, sx_result** result) {
  return guarded([&]() -> sx_status {
    given(session, "session") = nullptr;
    given(result, "result") = nullptr;
    sx_batch& b = given(batch, "batch");
    if (b.finished.empty()) return SX_OK;
    sx::Finished one = std::move(b.finished.front());
    b.finished.erase(b.finished.begin());
    const auto request = std::find_if(b.requests.begin(), b.requests.end(), [&](const sx_batch::Request& r) {
      return r.session->session.get() == one.session;
    });
    SX_ASSERT(request != b.requests.end());
    *session = request->session;
    b.requests.erase(request);
    if (!one.error.empty()) return failed(SX_FAILED, one.error.c_str());
    *result = keep(std::move(one.result));
    return SX_OK;
  });
}
