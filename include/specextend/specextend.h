// SpecExtend, the library. Open a model, start a session, generate:
//
//   auto engine = sx::Engine::open({.model = "model.gguf"});
//   auto session = engine->start();
//   auto result = session->generate(engine->tokenize("Once upon a time", true), {.max_tokens = 100});
//   std::cout << result.text;
//
// Output is reproducible to the byte: the same model, prompt, options and seed give the same text on a given machine,
// whatever the number of threads, what else is running, and whether and how tokens are drafted (EngineOptions::spec).
// Errors of the outside world throw sx::Error.
#pragma once
#include <specextend/error.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sx {

using Token = int32_t;

// What to speculate with. A preset is a method of the literature; settings change its numbers (spec_settings() lists them).
struct SpecOptions {
  std::string preset = "off";
  std::string draft_model{};    // GGUF file or Hugging Face folder, for presets that need one; empty: the shipped one that fits
  std::vector<std::pair<std::string, std::string>> settings{};
  std::string json{};           // vLLM's speculative configuration; taken instead of the preset, before the settings
};
struct SpecPreset { std::string name, what; bool needs_draft; };
std::vector<SpecPreset> spec_presets();
struct SpecSetting { std::string name, what; };
std::vector<SpecSetting> spec_settings();
std::string spec_describe(const SpecOptions& options);  // a JSON object: setting -> value
// What a way to speculate promises of the text, by its acceptance rule.
enum class SpecPromise {
  kBytes,         // the bytes of plain decoding, in any company
  kDistribution,  // greedy: the same. Sampled: the distribution of plain decoding, but other draws, which depend on the drafts
  kNothing,       // another text (setting allow-lossy)
};
struct SpecRule {
  std::string name;             // setting accept
  SpecPromise promise;
};
SpecRule spec_rule(const SpecOptions& options);

struct EngineOptions {
  std::string model{};          // GGUF file or Hugging Face folder; empty: the default model in the user's cache folder
  int context = 0;              // tokens a session can hold; 0: what the model was trained for
  int threads = 0;              // 0: what thread_count(0) says
  std::string device = "auto";  // "cpu", "cuda", "cuda:1", or "auto": a CUDA device if there is one
  std::string kv_type{};        // "f32", "f16", "bf16" or "q8_0"; empty: the fastest on this machine
  int chunk = 0;                // rows of one step: prompt tokens are processed in chunks of this size; 0: what suits the device
  int max_sessions = 1;         // sessions open at a time
  int max_outputs = 64;         // rows of one step whose logits can be read (evaluate)
  std::string chat_template{};  // Jinja source; empty: the model's own, else ChatML
  SpecOptions spec{};           // never changes the output, unless its rule promises less (spec_rule)
  std::vector<SpecOptions> more_specs{};  // that requests may name instead (GenerateOptions::preset)
  // Folder in which is kept, for the next start, what opening an engine finds out about its files and this machine; empty: nothing is.
  std::string startup_cache{};
  std::function<void(double done)> on_load{};  // progress 0..1
};

struct SamplingOptions {
  float temperature = 0;        // 0: greedy
  int top_k = 40;               // 0: all
  float top_p = 0.95f;
  float min_p = 0.05f;
  float repeat_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int repeat_last_n = 64;       // tokens the penalties look back at; 0: off, -1: the whole text
  std::vector<std::pair<Token, float>> logit_bias{};
  uint64_t seed = 0;
};

// Milliseconds by phase of the rounds.
struct PhaseTimes {
  double draft = 0;             // forward passes of the drafter
  double verify = 0;            // passes of the target
  double accept = 0;             // choosing tokens, walking the tree
  double commit = 0;            // moving accepted cells together
  double score = 0;             // choosing and gathering the cells a draft works on
  double host = 0;              // everything else: growing trees, looking up, text
};

struct Timings {
  int prompt_tokens = 0;        // processed in this call
  int cached_tokens = 0;        // of the prompt, found in the session's cache
  int generated_tokens = 0;
  double prompt_ms = 0;         // until the prompt was in the cache
  double decode_ms = 0;         // since then, without the following
  double draft_prompt_ms = 0;   // of the drafter reading the prompt, while the first tokens were decoded plainly
};

// One round: a tree was verified, a path of it accepted.
struct RoundInfo {
  int drafted = 0;                          // tokens proposed
  int verified = 0;                         // of them, rows of the target's pass
  int accepted = 0;                         // of them, accepted; the round made accepted + 1 tokens
  std::span<const Token> tokens;            // the verified tree; the first is the pending token
  std::span<const int32_t> parents;         // of each node; -1 for the first
  std::span<const int32_t> path;            // accepted nodes, beginning with 0
  PhaseTimes times;                         // of this round, for all sequences of its batch together
  // Places in the text that the draft works on where these are not all of it, ascending, and how often they have been chosen.
  std::span<const int32_t> cells;
  int refreshes = 0;
  double plain_ms = 0;                      // what a round of these sequences without drafts would take; 0: not known
  Timings timings;                          // of the answer so far, this round included
};

// One token of an answer.
struct TokenInfo {
  Token token = 0;
  int depth = 0;                            // level of the accepted draft node it is; 0: it was not drafted
  std::span<const float> logits;            // [vocab] it was chosen from, before bias, penalties and grammar; empty unless wanted
};

struct SpecStats {
  int64_t rounds = 0;                       // passes of the target after the prompt
  int64_t drafted_rounds = 0;               // of them with at least one drafted token
  int64_t drafted = 0, verified = 0, accepted = 0;
  std::vector<int64_t> histogram;           // drafted rounds by number of accepted tokens
  std::vector<int64_t> tried_at_depth;      // [d - 1]: drafted rounds whose tree reached depth d
  std::vector<int64_t> accepted_at_depth;   // [d - 1]: of them, those that accepted at least d tokens
  PhaseTimes times;

  // Accepted drafted tokens per drafted round, without the token every round makes anyway ("bonus token").
  double accepted_per_round() const { return drafted_rounds ? double(accepted) / double(drafted_rounds) : 0; }
  // Tokens per drafted round, bonus token included.
  double tokens_per_round() const { return drafted_rounds ? accepted_per_round() + 1 : 1; }
};
std::string spec_stats_json(const SpecStats& stats);      // everything, as one JSON object
std::string spec_metrics_json(const SpecStats& stats);    // as in vLLM's responses: {"speculative_decoding": {...}}

struct GenerateOptions {
  int max_tokens = -1;          // -1: until the model ends the text or the context is full
  SamplingOptions sampling{};
  std::vector<std::string> stop{};  // the text ends before the first of these
  bool ignore_end = false;        // go on after end-of-text tokens
  std::vector<Token> stop_tokens{};  // further tokens that end the text, also with ignore_end; they are not part of it
  bool show_special = false;      // control tokens appear in the text
  // Called with each piece of text, always whole UTF-8 characters; false cancels.
  std::function<bool(std::string_view text)> on_text{};
  // Called during the prompt with tokens done and in all; false cancels.
  std::function<bool(int done, int total)> on_prefill{};
  bool speculate = true;          // false: this request decodes plainly
  std::string preset{};           // what this request speculates with, one of EngineOptions::spec and more_specs; empty: the first
  int draft_nodes = -1;           // most tokens of a drafted tree, within what the engine was opened with; -1: that
  int draft_depth = -1;           // most levels of it
  std::string grammar{};          // GBNF: only texts it describes (json_schema_to_gbnf makes one); empty: any text. sx::Error if too ambiguous.
                                  // In a literal behind an @ the texts of control tokens stand for these tokens
  // Asked between the phases of a round and the chunks of a prompt; true cancels.
  std::function<bool()> cancelled{};
  std::function<void(const RoundInfo& round)> on_round{};
  // Called with the logits each token is chosen from ([vocab]), before penalties, in order.
  std::function<void(std::span<const float> logits)> on_logits{};
  // Called with each token of the answer in order, before on_text with what it completes.
  std::function<void(const TokenInfo& token)> on_token{};
  bool token_logits = false;      // on_token wants them
  // Called with each token of the prompt but the first, in order, and the logits that the tokens before it give. All of the prompt is
  // processed then, whatever the session holds of it.
  std::function<void(const TokenInfo& token)> on_prompt_token{};
};

// The grammar (GBNF) of the JSON texts that a JSON schema describes, between two fixed texts. Throws sx::Error naming what it does
// not support or what is too large.
std::string json_schema_to_gbnf(std::string_view schema_json, std::string_view before = {}, std::string_view after = {});
// A grammar of several values: `rules` (GBNF, with a line break after the last) may use one rule for each of `schemas`, by its name, which
// begins with a capital letter: the JSON texts that the schema describes.
std::string json_schemas_to_gbnf(std::string_view rules, std::span<const std::pair<std::string, std::string>> schemas);
std::string gbnf_quote(std::string_view text);  // `text` as a literal of GBNF, quotes included

enum class FinishReason { kEnd, kLength, kStop, kContext, kCancelled };
const char* finish_reason_name(FinishReason reason);  // "end", "length", "stop", "context", "cancelled"

struct GenerateResult {
  std::string text;
  std::vector<Token> tokens;    // generated, without the end-of-text token
  FinishReason reason = FinishReason::kEnd;
  Timings timings;
  SpecStats spec;
};

// One text and its cache. Not thread-safe; closing it frees its place.
class Session {
 public:
  virtual ~Session() = default;
  // Continues `prompt`. The longest common prefix with what the session holds is not processed again.
  virtual GenerateResult generate(std::span<const Token> prompt, const GenerateOptions& options) = 0;
  // Appends tokens to the text in one or more steps and returns the logits of the last `outputs` of them
  // ([outputs, vocab], valid until the next call). outputs <= EngineOptions::max_outputs, and <= tokens.
  virtual std::span<const float> evaluate(std::span<const Token> tokens, int outputs) = 0;
  // Forgets everything from `length` on.
  virtual void truncate(int length) = 0;
  virtual int length() const = 0;
  virtual std::span<const Token> text() const = 0;  // what it holds
  // Takes over the first `length` tokens of another session of this engine, with what the drafters know of them.
  virtual void copy_from(const Session& other, int length) = 0;
  // Everything it holds, for restore() into a session of an engine with the same model, draft and types, also in another process.
  // restore() throws sx::Error, naming why, on anything else; the session is empty then.
  virtual void save(std::ostream& to) const = 0;
  virtual void restore(std::istream& from) = 0;
  virtual size_t save_bytes() const = 0;            // that save() would write
};

struct TensorSummary {
  std::string name, type;
  std::vector<int64_t> shape;   // outermost first
  size_t bytes;
};

struct ModelSummary {
  std::string path, format, name, architecture;
  int layers, width, heads, kv_heads, head_dim, ffn, vocab, context, window;
  std::string rope, types;      // "base 100000, yarn x4 from 8192"; "Q4_1 210, Q8_0 1, F32 61"
  bool tied_head;
  uint64_t parameters;
  size_t file_bytes, weight_bytes;
  std::string tokenizer;
  std::string unsupported;      // why the model cannot be run; empty: it can. If not, sizes that are not known are 0
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<TensorSummary> tensors;
  // Bytes of K/V for `context` tokens in a given type.
  size_t kv_bytes(int context, std::string_view kv_type) const;
};

// What is in a model file, without loading it.
ModelSummary inspect(const std::string& model);

// What one step costs, for rooflines.
struct StepCosts {
  size_t weight_bytes = 0;           // weights read by a step of few rows
  size_t kv_bytes_per_token = 0;     // K/V read per token of history
  double matrix_ops_per_row = 0;     // multiply-adds count as two; layers without the head
  double head_ops_per_row = 0;       // the output head, for rows whose logits are wanted
  double attention_ops_per_key = 0;  // per row and key it sees
};

// What this machine can do, measured in about a second.
struct MachinePeaks {
  double read_gb_per_s = 0;          // memory read bandwidth with the given threads
  double int8_gop_per_s = 0;         // fastest 8-bit dot product instruction; 0: not known here
  double bf16_gflop_per_s = 0;       // fastest 16-bit (else 32-bit) multiply-add
};
MachinePeaks measure_peaks(int threads);  // 0: what thread_count(0) says

// How many threads really run where so many are asked for, and why. 0 means one per physical core that this process may use, but no more
// than the CPU quota of its control group (a container's limit), rounded to the nearest; more than there are CPUs never run.
struct ThreadCount {
  int threads = 1;
  std::string why;                   // "2 cores", "CPU quota 1.5 of 8 cores", "asked for", "16 asked for, 2 CPUs"
};
ThreadCount thread_count(int asked);

// The text side of a model: its tokens and its chat template, without its weights.
class Vocabulary {
 public:
  // `model` may also be a vocabulary without weights, or a model of an architecture that is not supported.
  // `chat_template`: Jinja source; empty: the model's own, else ChatML. One of the model's own that does not parse is no error
  // before apply_template is called.
  static std::unique_ptr<Vocabulary> open(const std::string& model, const std::string& chat_template = {});
  virtual ~Vocabulary() = default;

  virtual std::vector<Token> tokenize(std::string_view text, bool add_special = false, bool parse_special = true) const = 0;
  // `continues`: the text these tokens add behind others, as an answer behind its prompt. A whole text loses the space that some
  // vocabularies (SentencePiece) put in front of it.
  virtual std::string detokenize(std::span<const Token> tokens, bool show_special = false, bool continues = false) const = 0;
  virtual std::string token_text(Token token) const = 0;  // printable
  // The prompt for a conversation: `messages_json` is a JSON array of {"role": ..., "content": ...}, `tools_json` one of functions
  // as OpenAI describes them, `variables_json` an object of further variables of the template; empty: none.
  virtual std::string apply_template(std::string_view messages_json, bool add_generation_prompt = true,
                                     std::string_view tools_json = {}, std::string_view variables_json = {}) const = 0;
  virtual std::string token_bytes(Token token) const = 0; // what it adds behind others; may be part of a character
  virtual bool is_end(Token token) const = 0;             // ends a text
  virtual std::string chat_template() const { return {}; }  // its source; empty: ChatML
  // What works, though perhaps not as it was meant: the file does not say how words are cut, its chat template does not parse, the
  // context is longer than the model was trained for.
  virtual std::vector<std::string> warnings() const { return {}; }
};

// One request of a batch.
struct Request {
  Session* session = nullptr;
  std::span<const Token> prompt;
  const GenerateOptions* options = nullptr;
};

// A request of a batch that has ended.
struct Finished {
  Session* session = nullptr;
  GenerateResult result;
  std::string error;              // why it failed in the middle, e.g. a grammar that turned out too ambiguous; empty: it did not
  bool models_fault = false;      // the error is the model's, e.g. logits that are no numbers, and not the request's
};

// Requests that share passes of the model and come and go at any time. Each result is what Session::generate would have given.
// Not thread-safe; requests that still run when it is destroyed end without a result.
class Batch {
 public:
  virtual ~Batch() = default;
  // Session, prompt and options must stay until the request has ended. Throws sx::Error naming what is wrong with it.
  virtual void add(const Request& request) = 0;
  // One pass of the model: a piece of the prompts that are not done, and a round of the others. False: there was nothing to do.
  virtual bool step() = 0;
  virtual std::vector<Finished> take_finished() = 0;
};

class Engine : public Vocabulary {
 public:
  static std::unique_ptr<Engine> open(const EngineOptions& options);

  virtual std::unique_ptr<Session> start() = 0;
  // Continues several sessions of this engine at once: their rounds share passes of the model. Each result is what
  // Session::generate would have given.
  virtual std::vector<GenerateResult> generate(std::span<const Request> requests) = 0;
  virtual std::unique_ptr<Batch> batch() = 0;         // one at a time
  virtual int context() const = 0;
  virtual int vocab() const = 0;
  virtual const EngineOptions& options() const = 0;   // with defaults filled in
  // Memory taken on a device, by purpose; nothing on the CPU.
  virtual std::vector<std::pair<std::string, size_t>> device_memory() const = 0;
  virtual std::string backend() const = 0;            // "cpu (neon-i8mm, 2 threads)"
  virtual std::string kv_type() const = 0;
  virtual StepCosts costs() const = 0;
};

// Where the default model is looked for, and whether it is there.
std::string default_model_path();
// Where programs keep what they find out at start (EngineOptions::startup_cache): the variable SPECEXTEND_CACHE, or a folder in the user's
// cache folder; empty if the variable is "off".
std::string startup_cache_folder();

}  // namespace sx
