// The C interface from C: opens a tiny model and holds what comes back against itself (streamed against whole, batched
// against alone, drafted against plain), and provokes each kind of error. Argument: a GGUF file.
#include <specextend/c.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;
#define CHECK(condition)                                                                               \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, sx_last_error()); \
      ++failures;                                                                                      \
    }                                                                                                  \
  } while (0)

#define MANY 4096

typedef struct Heard {
  char text[MANY];
  size_t bytes;
  int32_t tokens[MANY];
  size_t count, drafted, with_logits;
  int32_t prefill_done, prefill_total;
  size_t cancel_after;  // tokens; 0: never
} Heard;

static void on_text(void* user, const char* text, size_t bytes) {
  Heard* heard = user;
  if (heard->bytes + bytes > MANY) abort();
  memcpy(heard->text + heard->bytes, text, bytes);
  heard->bytes += bytes;
}

static void on_token(void* user, const sx_token_info* info) {
  Heard* heard = user;
  if (heard->count == MANY) abort();
  heard->tokens[heard->count++] = info->token;
  heard->drafted += info->depth > 0;
  heard->with_logits += info->logits != NULL;
}

static void on_prefill(void* user, int32_t done, int32_t total) {
  Heard* heard = user;
  heard->prefill_done = done;
  heard->prefill_total = total;
}

static int cancelled(void* user) {
  const Heard* heard = user;
  return heard->cancel_after > 0 && heard->count >= heard->cancel_after;
}

static sx_engine* open_engine(const char* model, const char* spec) {
  sx_engine_options options;
  sx_engine_options_init(&options, sizeof options);
  options.model = model;
  options.spec = spec;
  options.device = "cpu";
  options.threads = 1;
  options.max_sessions = 3;
  options.startup_cache = "";
  sx_engine* engine = NULL;
  CHECK(sx_engine_open(&options, &engine) == SX_OK);
  if (!engine) exit(1);
  return engine;
}

static size_t prompt_of(const sx_engine* engine, const char* text, int32_t* tokens) {
  size_t count = 0;
  CHECK(sx_tokenize(engine, text, strlen(text), 1, 1, tokens, MANY, &count) == SX_OK);
  return count;
}

static sx_generate_options listening(Heard* heard) {
  sx_generate_options options;
  sx_generate_options_init(&options, sizeof options);
  options.max_tokens = 40;
  options.ignore_end = 1;
  options.temperature = 0.8f;
  options.seed = 7;
  options.user = heard;
  options.on_text = on_text;
  options.on_token = on_token;
  options.on_prefill = on_prefill;
  options.cancelled = cancelled;
  return options;
}

static int same(const sx_result* a, const sx_result* b) {
  size_t m = 0, n = 0;
  const char *x = sx_result_text(a, &m), *y = sx_result_text(b, &n);
  if (m != n || memcmp(x, y, m) != 0) return 0;
  const int32_t *s = sx_result_tokens(a, &m), *t = sx_result_tokens(b, &n);
  return m == n && memcmp(s, t, m * sizeof *s) == 0 && sx_result_reason(a) == sx_result_reason(b);
}

static const char* const kText = "A fox, a dog, a fox, a dog, a fox,";

static void check_generation(const char* model) {
  sx_engine *plain_engine = open_engine(model, NULL), *engine = NULL;
  char spec[512];  // a draft that is the target itself, so that tokens are accepted
  snprintf(spec, sizeof spec, "sd:cost-model=off,draft-model=%s", model);
  engine = open_engine(model, spec);
  CHECK(sx_engine_vocab(engine) > 0 && sx_engine_context(engine) > 0 && strstr(sx_engine_backend(engine), "cpu"));
  static int32_t prompt[MANY];
  const size_t n = prompt_of(engine, kText, prompt);
  sx_session *plain_session = NULL, *session = NULL;
  CHECK(sx_session_start(plain_engine, &plain_session) == SX_OK);
  CHECK(sx_session_start(engine, &session) == SX_OK);

  static Heard heard, unheard;
  sx_generate_options options = listening(&heard), plain_options = listening(&unheard);
  options.token_logits = 1;
  sx_result *plain = NULL, *drafted = NULL;
  CHECK(sx_session_generate(plain_session, prompt, n, &plain_options, &plain) == SX_OK);
  CHECK(sx_session_generate(session, prompt, n, &options, &drafted) == SX_OK);
  CHECK(same(plain, drafted));
  CHECK(heard.drafted > 0 && unheard.drafted == 0);
  CHECK(heard.with_logits == 40 && unheard.with_logits == 0 && heard.count == 40);
  CHECK(heard.prefill_total == (int32_t)n - 1 && heard.prefill_done == heard.prefill_total);
  CHECK(sx_result_reason(drafted) == SX_REASON_LENGTH);
  CHECK(strstr(sx_result_stats(drafted), "\"generated_tokens\":40"));
  size_t bytes = 0, count = 0;
  const char* text = sx_result_text(drafted, &bytes);
  CHECK(bytes == heard.bytes && memcmp(text, heard.text, bytes) == 0 && text[bytes] == 0);
  const int32_t* tokens = sx_result_tokens(drafted, &count);
  CHECK(count == heard.count && memcmp(tokens, heard.tokens, count * sizeof *tokens) == 0);
  static char again[MANY];
  CHECK(sx_detokenize(engine, tokens, count, 0, 1, again, MANY, &count) == SX_OK);
  CHECK(count == bytes && memcmp(again, text, bytes) == 0);

  // A file keeps what the session holds.
  char path[64];
  snprintf(path, sizeof path, "capi_test_%p.state", (void*)session);
  CHECK(sx_session_save(session, path) == SX_OK);
  sx_session* loaded = NULL;
  CHECK(sx_session_start(engine, &loaded) == SX_OK);
  CHECK(sx_session_load(loaded, path) == SX_OK);
  remove(path);
  CHECK(sx_session_length(loaded) == sx_session_length(session) && sx_session_length(loaded) > (int32_t)n);
  heard.bytes = heard.count = 0;
  sx_result* resumed = NULL;
  CHECK(sx_session_generate(loaded, prompt, n, &options, &resumed) == SX_OK && same(resumed, plain));
  CHECK(sx_session_truncate(loaded, 1) == SX_OK && sx_session_length(loaded) == 1);
  CHECK(sx_session_truncate(loaded, 9) == SX_FAILED);

  // Cancelling keeps what there is.
  heard.bytes = heard.count = 0;
  heard.cancel_after = 5;
  sx_result* part = NULL;
  CHECK(sx_session_generate(session, prompt, n, &options, &part) == SX_OK);
  CHECK(sx_result_reason(part) == SX_REASON_CANCELLED);
  size_t some = 0;
  tokens = sx_result_tokens(part, &some);
  CHECK(some >= 5 && some < 40 && memcmp(tokens, sx_result_tokens(plain, NULL), some * sizeof *tokens) == 0);

  sx_result_free(part), sx_result_free(resumed), sx_result_free(drafted), sx_result_free(plain);
  sx_session_close(loaded), sx_session_close(session), sx_session_close(plain_session);
  sx_engine_close(engine), sx_engine_close(plain_engine);
}

static void check_batch(const char* model, const char* spec) {
  sx_engine* engine = open_engine(model, spec);
  static int32_t prompts[3][MANY];
  static const char* const texts[3] = {"A fox, a dog, a fox,", "One two three", "The end of the"};
  size_t lengths[3];
  sx_session* sessions[3];
  sx_result *alone[3], *together[3] = {NULL, NULL, NULL};
  sx_generate_options options;
  sx_generate_options_init(&options, sizeof options);
  options.max_tokens = 24;
  for (int i = 0; i < 3; ++i) {
    lengths[i] = prompt_of(engine, texts[i], prompts[i]);
    CHECK(sx_session_start(engine, &sessions[i]) == SX_OK);
    options.seed = (uint64_t)i, options.temperature = (float)i;
    CHECK(sx_session_generate(sessions[i], prompts[i], lengths[i], &options, &alone[i]) == SX_OK);
    CHECK(sx_session_truncate(sessions[i], 0) == SX_OK);
  }
  sx_batch* batch = NULL;
  CHECK(sx_batch_open(engine, &batch) == SX_OK);
  for (int i = 0; i < 3; ++i) {
    options.seed = (uint64_t)i, options.temperature = (float)i;
    CHECK(sx_batch_add(batch, sessions[i], prompts[i], lengths[i], &options) == SX_OK);
    memset(prompts[i], 0, sizeof prompts[i]);  // the batch has its own copy
  }
  int more = 1;
  while (more) CHECK(sx_batch_step(batch, &more) == SX_OK);
  for (sx_session* session = sessions[0]; session;) {
    sx_result* result = NULL;
    CHECK(sx_batch_take(batch, &session, &result) == SX_OK);
    for (int i = 0; i < 3; ++i)
      if (session == sessions[i]) together[i] = result;
  }
  sx_batch_close(batch);
  for (int i = 0; i < 3; ++i) {
    CHECK(together[i] && same(together[i], alone[i]));
    sx_result_free(together[i]), sx_result_free(alone[i]);
    sx_session_close(sessions[i]);
  }
  sx_engine_close(engine);
}

static void check_errors(const char* model) {
  sx_engine_options options;
  sx_engine_options_init(&options, sizeof options);
  sx_engine* engine = NULL;
  options.model = "absent.gguf";
  CHECK(sx_engine_open(&options, &engine) == SX_FAILED && strstr(sx_last_error(), "absent.gguf") && !engine);
  options.model = model, options.spec = "sufix";
  CHECK(sx_engine_open(&options, &engine) == SX_FAILED && strstr(sx_last_error(), "did you mean suffix?"));
  CHECK(sx_engine_open(NULL, &engine) == SX_BAD_ARGUMENT && strstr(sx_last_error(), "options is NULL"));
  CHECK(sx_engine_open(&options, NULL) == SX_BAD_ARGUMENT);

  // A structure of an older version ends earlier; one of a newer version is rejected.
  options.spec = NULL;
  options.size = offsetof(sx_engine_options, context);
  options.context = -5;
  CHECK(sx_engine_open(&options, &engine) == SX_OK && engine);
  sx_engine_close(engine);
  engine = NULL;
  options.size = sizeof options + 8;
  CHECK(sx_engine_open(&options, &engine) == SX_BAD_ARGUMENT && strstr(sx_last_error(), "newer") && !engine);

  engine = open_engine(model, NULL);
  int32_t tokens[2];
  size_t count = 0;
  CHECK(sx_tokenize(engine, kText, strlen(kText), 0, 1, tokens, 2, &count) == SX_TOO_SMALL && count > 2);
  CHECK(sx_tokenize(engine, kText, strlen(kText), 0, 1, NULL, 0, &count) == SX_TOO_SMALL);
  CHECK(sx_tokenize(engine, NULL, 3, 0, 1, tokens, 2, &count) == SX_BAD_ARGUMENT);
  tokens[0] = sx_engine_vocab(engine);
  char text[MANY];
  CHECK(sx_detokenize(engine, tokens, 1, 0, 0, text, MANY, &count) == SX_FAILED);
  CHECK(sx_chat_prompt(engine, "[{\"role\": \"user\", \"content\": \"Hi\"}]", 1, text, MANY, &count) == SX_OK);
  text[count] = 0;
  CHECK(strstr(text, "Hi"));
  CHECK(sx_chat_prompt(engine, "[{", 1, text, MANY, &count) == SX_FAILED);
  CHECK(sx_schema_to_grammar("{\"type\": \"integer\"}", text, MANY, &count) == SX_OK && count > 0);
  CHECK(sx_schema_to_grammar("{\"type\": \"frog\"}", text, MANY, &count) == SX_FAILED &&
        strstr(sx_last_error(), "frog"));

  sx_session* session = NULL;
  sx_result* result = NULL;
  CHECK(sx_session_start(engine, &session) == SX_OK);
  sx_generate_options wrong;
  sx_generate_options_init(&wrong, sizeof wrong);
  wrong.grammar = "root ::= (";
  tokens[0] = 1;
  CHECK(sx_session_generate(session, tokens, 1, &wrong, &result) == SX_FAILED && !result);
  sx_generate_options_init(&wrong, sizeof wrong);
  wrong.stops = 1;
  CHECK(sx_session_generate(session, tokens, 1, &wrong, &result) == SX_BAD_ARGUMENT && strstr(sx_last_error(), "stop"));
  CHECK(sx_session_load(session, "absent.state") == SX_FAILED && strstr(sx_last_error(), "absent.state"));
  CHECK(sx_session_save(session, "absent/folder.state") == SX_FAILED && strstr(sx_last_error(), "absent/folder.state"));
  sx_session* others[3] = {NULL, NULL, NULL};
  CHECK(sx_session_start(engine, &others[0]) == SX_OK && sx_session_start(engine, &others[1]) == SX_OK);
  CHECK(sx_session_start(engine, &others[2]) == SX_FAILED && !others[2]);
  sx_session_close(others[0]), sx_session_close(others[1]), sx_session_close(session);
  sx_engine_close(engine);
  sx_engine_close(NULL), sx_session_close(NULL), sx_batch_close(NULL), sx_result_free(NULL);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  CHECK(sx_c_version() == SX_C_VERSION);
  check_generation(argv[1]);
  check_batch(argv[1], "suffix:cost-model=off");
  check_batch(argv[1], "auto");
  check_errors(argv[1]);
  if (failures == 0) printf("the C interface holds\n");
  return failures == 0 ? 0 : 1;
}
