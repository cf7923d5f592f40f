// The engine: a loaded model, sessions (one text and its KV cache each) and batches of requests.
//
// Output is deterministic: the same model, prompt, options and seed give the same bytes on a given machine, whatever
// the number of threads, whatever else is in the batch, and whether and how tokens are drafted (EngineOptions::spec).
//
// Thread safety. An engine with its sessions and batches is used by one thread at a time: they share the model's
// working memory. These const functions of Engine may be called from any thread at any time: tokenizer(), options(),
// context(), vocab(), backend(), kv_type(), warnings(). Different engines are independent of each other.
//
// Lifetimes. An engine outlives its sessions and batches. A session, prompt and options named by a Request outlive the
// request. The spans that callbacks get are valid until the callback returns; those that Session::evaluate and
// Session::text return, until the next call of that session.
//
// Errors. Functions throw sx::Error when something outside of the library is wrong: a file, a model, an option, a
// request. Besides it, std::bad_alloc, std::logic_error (a bug of the library: please report its message) and what a
// callback throws can leave a call. One error is not thrown: a request of a Batch that fails while others go on reports
// it in Finished::error. After an exception has left Session::generate, chat or evaluate, the session is usable and
// holds a prefix of its text. After an exception has left Batch::step, the batch must be destroyed; its sessions are
// usable then.
//
// Callbacks run on the thread that called into the engine. They return nothing, may throw (the exception leaves that
// call, as above), and must not call the engine, its sessions or its batches, except for the const functions listed
// under thread safety. The one way to cancel a request is GenerateOptions::cancelled.
//
// Versions. Programs written for a version compile with all versions that have the same major and minor number. There
// is no promise about the binary interface: programs are compiled again for each version.
#pragma once
#include <specextend/error.h>
#include <specextend/speculation.h>
#include <specextend/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sx {

struct EngineOptions {
  std::string model{};          // GGUF file or Hugging Face folder; empty: the default model in the user's cache folder
  int context = 0;              // tokens a session can hold; 0: what the model was trained for
  int threads = 0;              // 0: what thread_count(0) says
  std::string device = "auto";  // "cpu", "cuda", "cuda:1", or "auto": a CUDA device if there is one
  // "layers" or "columns": how the model is divided among the ranks of an MPI job (<specextend/ranks.h>), or among the
  // devices that `device` lists ("cuda:0,cuda:1"; by layers if nothing is said). Empty: one device.
  std::string split{};
  // "f32", "f16", "bf16", "q8_0", "q4_0" or "q4_1"; keys and values apart: "q8_0/q4_0"; empty: the fastest here.
  std::string kv_type{};
  int chunk = 0;  // rows of one step: prompts are processed in chunks of so many tokens; 0: what suits the device
  int max_sessions = 1;                   // sessions open at a time
  int max_outputs = 64;                   // rows of one step whose logits can be read (evaluate)
  std::string chat_template{};            // Jinja source; empty: the model's own, else ChatML
  SpecOptions spec{};                     // never changes the output, unless its rule promises less (spec_rule)
  std::vector<SpecOptions> more_specs{};  // further presets that a request may name (GenerateOptions::preset)
  // Folder that keeps, for the next start, what opening an engine finds out about its files and this machine; empty:
  // nothing is kept.
  std::string startup_cache{};
  std::function<void(double done)> on_load{};  // progress of Engine::open, 0..1
};

struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int top_k = 40;         // 0: all
  float top_p = 0.95f;
  float min_p = 0.05f;
  float repeat_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int repeat_last_n = 64;  // tokens the penalties look back at; 0: off, -1: the whole text
  std::vector<std::pair<Token, float>> logit_bias{};
  uint64_t seed = 0;
};

// One token of an answer.
struct TokenInfo {
  Token token = 0;
  int depth = 0;                  // depth in the accepted draft path; 0 if the target chose it itself
  std::span<const float> logits;  // [vocab] it was chosen from, before bias, penalties and grammar; empty unless wanted
};

struct GenerateOptions {
  int max_tokens = -1;  // -1: until the model ends the text or the context is full
  SamplingOptions sampling{};
  std::vector<std::string> stop{};   // the text ends before the first of these
  bool ignore_end = false;           // go on after end-of-text tokens
  std::vector<Token> stop_tokens{};  // further tokens that end the text, also with ignore_end; they are not part of it
  int min_tokens = 0;                // tokens of the answer before which neither an end-of-text token nor one of
                                     // stop_tokens is chosen, unless a grammar leaves nothing else
  bool show_special = false;         // control tokens appear in the text
  bool speculate = true;             // false: this request decodes plainly
  std::string preset{};  // what to speculate with: one of EngineOptions::spec and more_specs; empty: the first
  int draft_nodes = -1;  // most tokens of a drafted tree, within what the engine was opened with; -1: that
  int draft_depth = -1;  // most levels of a drafted tree, likewise
  std::string
      grammar{};  // GBNF: only texts it describes (<specextend/grammar.h>); empty: any text. A grammar that is too
                  // ambiguous to follow is an error of the request. In a literal behind an @ the texts
                  // of control tokens stand for these tokens
  // Asked between the phases of a round, between the chunks of a prompt and after each on_text; true ends the request
  // with FinishReason::kCancelled and what it has so far. The function decides: a flag of the caller, a deadline, a
  // closed connection.
  std::function<bool()> cancelled{};

  // Called with each piece of the text, always whole UTF-8 characters.
  std::function<void(std::string_view text)> on_text{};
  // Called during the prompt: tokens in the cache so far, and in all.
  std::function<void(int done, int total)> on_prefill{};
  std::function<void(const RoundInfo& round)> on_round{};
  // Called with each token of the answer in order, before on_text with what it completes. token_logits: with its
  // logits.
  std::function<void(const TokenInfo& token)> on_token{};
  bool token_logits = false;
  // Called with the logits of each choice ([vocab], before bias, penalties and grammar), in order. Unlike on_token it
  // also sees the choice of an end token, which is not part of the answer.
  std::function<void(std::span<const float> logits)> on_logits{};
  // Called with each token of the prompt but the first, in order, and the logits that the tokens before it give. All of
  // the prompt is processed then, whatever the session holds of it.
  std::function<void(const TokenInfo& token)> on_prompt_token{};
};

enum class FinishReason { kEnd, kLength, kStop, kContext, kCancelled };
const char* finish_reason_name(FinishReason reason);  // "end", "length", "stop", "context", "cancelled"

struct GenerateResult {
  std::string text;
  std::vector<Token> tokens;  // generated, without the end-of-text token
  FinishReason reason = FinishReason::kEnd;
  Timings timings;
  SpecStats spec;
};

// One text and its KV cache. Destroying a session frees its place.
class Session {
 public:
  virtual ~Session() = default;
  // Continues `prompt`. The longest common prefix with what the session holds is not processed again.
  virtual GenerateResult generate(std::span<const Token> prompt, const GenerateOptions& options = {}) = 0;
  // The same for a text: tokenize(prompt, true).
  GenerateResult generate(std::string_view prompt, const GenerateOptions& options = {});
  // Answers a conversation through the model's chat template. For the next turn, pass all messages again: the session
  // finds what it holds of them.
  GenerateResult chat(std::span<const Message> messages, const GenerateOptions& options = {});
  GenerateResult chat(std::initializer_list<Message> messages, const GenerateOptions& options = {});
  // Appends tokens to the text in one or more steps and returns the logits of the last `outputs` of them
  // ([outputs, vocab], valid until the next call). outputs <= EngineOptions::max_outputs, and <= tokens.
  virtual std::span<const float> evaluate(std::span<const Token> tokens, int outputs) = 0;
  virtual void truncate(int length) = 0;  // forgets what follows; with sliding windows it may read the rest again
  virtual int length() const = 0;
  virtual std::span<const Token> text() const = 0;  // the tokens it holds
  // Takes over the first `length` tokens of another session of this engine, with what the drafters know of them.
  virtual void copy_from(const Session& other, int length) = 0;
  // Writes everything it holds, for restore() into a session of an engine with the same model, draft and types, also in
  // another process. restore() throws sx::Error naming why it cannot; the session is empty then.
  virtual void save(std::ostream& to) const = 0;
  virtual void restore(std::istream& from) = 0;
  virtual size_t save_bytes() const = 0;           // what save() would write
  virtual const Tokenizer& tokenizer() const = 0;  // of its engine
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
  std::string error;          // why it failed, e.g. a grammar that turned out too ambiguous; empty: it did not
  bool models_fault = false;  // the error is the model's, e.g. logits that are no numbers, and not the request's
  bool no_memory = false;     // the error is that the device has no memory for more of the text beside other texts
};

// Continuous batching: requests share passes of the model, and come and go at any time. Each result is what
// Session::generate would have given. Requests that still run when the batch is destroyed end without a result.
class Batch {
 public:
  virtual ~Batch() = default;
  virtual void add(
      const Request& request) = 0;  // throws sx::Error naming what is wrong with the request; the others go on
  // One pass of the model: a piece of the prompts that are not done, and a round of the other requests. False: nothing
  // to do.
  virtual bool step() = 0;
  virtual std::vector<Finished> take_finished() = 0;
};

// Why EngineOptions::device "cuda" does not work here (no driver, no device, the backend's library is not installed);
// empty: it does.
std::string why_no_cuda();

class Engine {
 public:
  static std::unique_ptr<Engine> open(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual std::unique_ptr<Session> start() = 0;  // throws sx::Error if EngineOptions::max_sessions are open
  // One answer in a session of its own.
  GenerateResult generate(std::string_view prompt, const GenerateOptions& options = {}) {
    return start()->generate(prompt, options);
  }
  GenerateResult chat(std::span<const Message> messages, const GenerateOptions& options = {}) {
    return start()->chat(messages, options);
  }
  GenerateResult chat(std::initializer_list<Message> messages, const GenerateOptions& options = {}) {
    return start()->chat(messages, options);
  }
  // Continues several sessions of this engine at once in one batch, and returns their results in the same order. The
  // error of the first request that fails is thrown as sx::Error.
  virtual std::vector<GenerateResult> generate(std::span<const Request> requests) = 0;
  virtual std::unique_ptr<Batch> batch() = 0;        // one at a time
  virtual const Tokenizer& tokenizer() const = 0;    // valid as long as the engine
  virtual int context() const = 0;                   // tokens a session can hold
  virtual int vocab() const = 0;                     // logits of a row
  virtual const EngineOptions& options() const = 0;  // with defaults filled in
  // Memory taken on a device, by purpose; nothing on the CPU.
  virtual std::vector<std::pair<std::string, size_t>> device_memory() const = 0;
  virtual std::string backend() const = 0;  // "cpu (neon-i8mm, 2 threads)"
  virtual std::string kv_type() const = 0;
  // Sentences a user should know: those of the tokenizer, and that the context is longer than the model was trained
  // for.
  virtual std::vector<std::string> warnings() const { return tokenizer().warnings(); }
};

// How many threads really run where so many are asked for, and why. 0 means one per physical core that this process may
// use, but no more than the CPU quota of its control group (a container's limit), rounded to the nearest; more than
// there are CPUs never run.
struct ThreadCount {
  int threads = 1;
  std::string why;  // "2 cores", "CPU quota 1.5 of 8 cores", "asked for", "16 asked for, 2 CPUs"
};
ThreadCount thread_count(int asked);

std::string default_model_path();  // throws sx::Error saying how to fetch the default model if it is not there
// Where programs keep what they find out at start (EngineOptions::startup_cache): the variable SPECEXTEND_CACHE, or a
// folder in the user's cache folder; empty if the variable is "off".
std::string startup_cache_folder();

}  // namespace sx
