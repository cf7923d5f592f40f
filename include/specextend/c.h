// The C interface, for programs in other languages: open a model, tokenize, continue texts in sessions and batches.
//
//   sx_engine_options options;
//   sx_engine_options_init(&options, sizeof options);
//   options.model = "model.gguf";
//   sx_engine* engine = NULL;
//   if (sx_engine_open(&options, &engine) != SX_OK) puts(sx_last_error());
//
// Errors. Functions that can fail return an sx_status; sx_last_error() is the message of the calling thread's last
// failure, in the library's words. A function that fails leaves its outputs untouched unless it says otherwise.
//
// Versions. Structures begin with their size, which their _init function writes together with the defaults. A library
// takes structures of its own and of older versions, and returns SX_BAD_ARGUMENT for those of a newer one. Members are
// only ever added, at the end. sx_c_version() is the SX_C_VERSION that the library was built with.
//
// Threads. An engine with its sessions and batches is used by one thread at a time. sx_tokenize, sx_detokenize,
// sx_chat_prompt, sx_engine_context, sx_engine_vocab and sx_engine_backend may be called from any thread at any time.
// Different engines are independent. sx_last_error() is per thread. After fork(), a child opens engines of its own.
//
// Callbacks run on the thread that called into the library; what they point to is valid until they return. They must
// not call the engine, except for the functions that any thread may call, and no exception may leave them.
//
// Lifetimes. Sessions and batches are closed before their engine, a batch before the sessions of its requests. Options
// and prompts are copied by the functions that take them; `user` is kept until the request has ended. All texts are
// UTF-8. Every close and free function accepts NULL.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SX_C_VERSION 1

typedef enum sx_status {
  SX_OK = 0,
  SX_FAILED = 1,        // a file, a model, an option or a request is wrong
  SX_BAD_ARGUMENT = 2,  // a pointer is NULL, or a structure is of a newer version
  SX_TOO_SMALL = 3,     // the output does not fit; the needed size has been written
  SX_NO_MEMORY = 4,
  SX_BUG = 5,  // of the library: please report the message
} sx_status;

typedef enum sx_reason {
  SX_REASON_END = 0,
  SX_REASON_LENGTH = 1,
  SX_REASON_STOP = 2,
  SX_REASON_CONTEXT = 3,
  SX_REASON_CANCELLED = 4,
} sx_reason;

typedef struct sx_engine sx_engine;
typedef struct sx_session sx_session;
typedef struct sx_batch sx_batch;
typedef struct sx_result sx_result;

int sx_c_version(void);
const char* sx_last_error(void);  // never NULL; valid until the thread's next failure

// ---- engines

typedef struct sx_engine_options {
  size_t size;
  const char* model;    // GGUF file or Hugging Face folder; NULL: the default model
  const char* spec;     // NAME[:key=value,...] as `specextend methods` lists them; NULL: "off"
  const char* device;   // "cpu", "cuda", "cuda:N"; NULL: "auto"
  const char* kv_type;  // "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", or keys/values: "q8_0/q4_0"; NULL: the fastest
  int32_t context;      // tokens a session can hold; 0: the trained length
  int32_t threads;      // 0: one per core
  int32_t max_sessions;
  const char* startup_cache;  // folder that keeps what opening finds out; NULL: that of the program; "": none
} sx_engine_options;

void sx_engine_options_init(sx_engine_options* options, size_t size);
sx_status sx_engine_open(const sx_engine_options* options, sx_engine** engine);
void sx_engine_close(sx_engine* engine);
int32_t sx_engine_context(const sx_engine* engine);
int32_t sx_engine_vocab(const sx_engine* engine);
const char* sx_engine_backend(const sx_engine* engine);  // valid as long as the engine

// ---- text and tokens
// These write at most `capacity` items and always store in *count how many there are. If they do not fit the status is
// SX_TOO_SMALL; `out` may be NULL where `capacity` is 0. Texts are not terminated by a zero byte.

sx_status sx_tokenize(const sx_engine* engine, const char* text, size_t bytes, int add_special, int parse_special,
                      int32_t* out, size_t capacity, size_t* count);
// `continues`: the tokens stand behind others, as an answer behind its prompt.
sx_status sx_detokenize(const sx_engine* engine, const int32_t* tokens, size_t n, int show_special, int continues,
                        char* out, size_t capacity, size_t* count);
// The prompt of a conversation by the model's chat template, for sx_tokenize(..., 0, 1, ...). `messages_json`: an array
// of {"role": ..., "content": ...}, ended by a zero byte.
sx_status sx_chat_prompt(const sx_engine* engine, const char* messages_json, int add_generation_prompt, char* out,
                         size_t capacity, size_t* count);
// The grammar (GBNF) of the texts that a JSON schema describes. It needs no engine.
sx_status sx_schema_to_grammar(const char* schema_json, char* out, size_t capacity, size_t* count);

// ---- generation

typedef struct sx_token_info {
  int32_t token;
  int32_t depth;        // in the accepted draft path; 0: the target chose it itself
  const float* logits;  // [vocab] it was chosen from; NULL unless token_logits
} sx_token_info;

typedef struct sx_generate_options {
  size_t size;
  int32_t max_tokens;  // -1: until the model ends the text or the context is full
  float temperature;   // 0: greedy
  int32_t top_k;       // 0: all
  float top_p;
  float min_p;
  float repeat_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t repeat_last_n;
  uint64_t seed;
  const int32_t* bias_tokens;  // [biases] tokens, and what to add to their logits
  const float* bias_values;
  size_t biases;
  const char* const* stop;  // [stops]; the text ends before the first of these
  size_t stops;
  const int32_t* stop_tokens;
  size_t stop_token_count;
  int32_t ignore_end;
  int32_t show_special;
  int32_t speculate;     // 0: plain decoding
  const char* grammar;   // GBNF; NULL: any text
  int32_t token_logits;  // 1: on_token gets logits
  void* user;            // first argument of the callbacks, each of which may be NULL
  void (*on_text)(void* user, const char* text, size_t bytes);
  void (*on_token)(void* user, const sx_token_info* token);
  void (*on_prefill)(void* user, int32_t done, int32_t total);
  int (*cancelled)(void* user);  // asked often; other than 0 ends the request with what it has so far
} sx_generate_options;

void sx_generate_options_init(sx_generate_options* options, size_t size);

const char* sx_result_text(const sx_result* result, size_t* bytes);  // ended by a zero byte, too
const int32_t* sx_result_tokens(const sx_result* result, size_t* count);
sx_reason sx_result_reason(const sx_result* result);
// {"timings": {...}, "speculation": {...}}, ended by a zero byte; valid as long as the result.
const char* sx_result_stats(const sx_result* result);
void sx_result_free(sx_result* result);

// ---- sessions: one text and its KV cache each

sx_status sx_session_start(sx_engine* engine, sx_session** session);
void sx_session_close(sx_session* session);
// Continues the prompt; the longest common prefix with what the session holds is not processed again. Options may be
// NULL.
sx_status sx_session_generate(sx_session* session, const int32_t* prompt, size_t n, const sx_generate_options* options,
                              sx_result** result);
int32_t sx_session_length(const sx_session* session);  // tokens it holds
sx_status sx_session_truncate(sx_session* session, int32_t length);
// A file with everything the session holds, for a session of an engine with the same model, draft and types.
sx_status sx_session_save(const sx_session* session, const char* path);
sx_status sx_session_load(sx_session* session, const char* path);

// ---- batches: requests that share passes of the model, and come and go at any time

sx_status sx_batch_open(sx_engine* engine, sx_batch** batch);  // one at a time
void sx_batch_close(sx_batch* batch);                          // requests that still run end without a result
sx_status sx_batch_add(sx_batch* batch, sx_session* session, const int32_t* prompt, size_t n,
                       const sx_generate_options* options);
// One pass of the model; *more becomes 0 when there is nothing to do. After a failure the batch can only be closed.
sx_status sx_batch_step(sx_batch* batch, int* more);
// The next request that has ended: *session is whose it is, NULL: none. A request that failed by itself gives its
// session, no result, and SX_FAILED; the others go on.
sx_status sx_batch_take(sx_batch* batch, sx_session** session, sx_result** result);

#ifdef __cplusplus
}
#endif
