// specextend._core: what the package needs of the library, as nanobind shows it to Python. Everything that people call
// is written in Python above it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <specextend/drafts.h>
#include <specextend/inspect.h>
#include <specextend/specextend.h>

#include <cstring>
#include <fstream>

#include "cli/compare.h"
#include "cli/explain_page.h"
#include "cli/explain_run.h"
#include "runner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sx::python {
namespace {

// ---- arrays

template <class T>
using Array = nb::ndarray<nb::numpy, T>;

template <class T, class Get>
Array<T> array(size_t rows, size_t columns, size_t dimensions, Get get) {
  T* const data = new T[std::max<size_t>(rows * columns, 1)];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  for (size_t i = 0; i < rows * columns; ++i)
    data[i] = get(i / std::max<size_t>(columns, 1), i % std::max<size_t>(columns, 1));
  const size_t shape[2] = {rows, columns};
  return Array<T>(data, dimensions, shape, owner);
}

// ---- signals

// Ctrl-C reaches Python code only between its own instructions, so that a wait looks for it now and then.
template <bool (Call::*wait)(std::chrono::milliseconds)>
void wait_for(Call& call) {
  while (true) {
    {
      const nb::gil_scoped_release release;
      if ((call.*wait)(std::chrono::milliseconds(50))) return;
    }
    if (PyErr_CheckSignals() != 0) {
      call.cancel();
      throw nb::python_error();
    }
  }
}

// Runs work on the engine's thread without the GIL. Ctrl-C sets the flag that the work asks for, and is raised behind
// it.
class Interruptible {
 public:
  template <class Work>
  void operator()(Work&& work) {
    {
      const nb::gil_scoped_release release;
      work();
    }
    if (error_) throw nb::python_error(*error_);
  }
  std::function<void()> poll() {
    return [this] {
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() == 0) return;
      error_ = std::make_unique<nb::python_error>();
      stop_ = true;
    };
  }
  std::function<bool()> cancelled() {
    return [this] { return stop_.load(); };
  }

 private:
  std::unique_ptr<nb::python_error> error_;
  std::atomic<bool> stop_{false};
};

// ---- pieces and results

nb::tuple token_tuple(const CallToken& t) { return nb::make_tuple(t.token, t.depth, t.logprob); }

nb::list pieces_of(Call& call) {
  nb::list out;
  for (const CallPiece& piece : call.take()) {
    nb::list tokens;
    for (const CallToken& t : piece.tokens) tokens.append(token_tuple(t));
    out.append(nb::make_tuple(nb::str(piece.text.data(), piece.text.size()), tokens));
  }
  return out;
}

nb::dict timings_of(const Timings& t) {
  nb::dict d;
  d["prompt_tokens"] = t.prompt_tokens;
  d["cached_tokens"] = t.cached_tokens;
  d["generated_tokens"] = t.generated_tokens;
  d["prompt_ms"] = t.prompt_ms;
  d["decode_ms"] = t.decode_ms;
  d["draft_prompt_ms"] = t.draft_prompt_ms;
  return d;
}

nb::dict result_of(Call& call) {
  const int logprobs = call.wants().logprobs;
  const GenerateResult r = call.result();
  const std::vector<CallToken> tokens = call.take_tokens();
  nb::dict d;
  d["text"] = nb::str(r.text.data(), r.text.size());
  d["tokens"] = r.tokens;
  d["finish_reason"] = finish_reason_name(r.reason);
  d["timings"] = timings_of(r.timings);
  d["speculation"] = spec_stats_json(r.spec);
  nb::list depths;
  for (const CallToken& t : tokens) depths.append(t.depth);
  d["depths"] = depths;
  if (call.wants().scores_prompt) {
    const std::vector<double> scores = call.take_scores();
    d["scores"] = array<double>(scores.size(), 1, 1, [&](size_t i, size_t) { return scores[i]; });
  }
  if (logprobs < 0) return d;
  d["logprobs"] = array<double>(tokens.size(), 1, 1, [&](size_t i, size_t) { return tokens[i].logprob; });
  if (logprobs == 0) return d;
  const size_t columns = size_t(logprobs);
  const auto top = [&](size_t i, size_t j) { return tokens[i].top.at(j); };
  d["top_tokens"] = array<int32_t>(tokens.size(), columns, 2, [&](size_t i, size_t j) { return top(i, j).first; });
  d["top_logprobs"] = array<double>(tokens.size(), columns, 2, [&](size_t i, size_t j) { return top(i, j).second; });
  return d;
}

// ---- what runs alone

nb::tuple explain(Runner& runner, const std::vector<Token>& prompt, GenerateOptions options, bool compare) {
  Interruptible interruptible;
  options.cancelled = interruptible.cancelled();
  std::string page, data;
  interruptible([&] {
    runner.run_alone(
        [&](Engine& engine, Session& session) {
          const cli::Explanation e = cli::explain(engine, session, prompt, options, compare);
          page = cli::explain_page(e), data = cli::explain_json(e);
        },
        interruptible.poll());
  });
  return nb::make_tuple(nb::str(page.data(), page.size()), nb::str(data.data(), data.size()));
}

// The logits of the plain run are kept, those of the run with speculation compared as they come.
struct Verified {
  GenerateResult plain, drafted;
  std::vector<float> logits;
  size_t used = 0;
  std::string difference;
};

void verify_in(Session& session, const std::vector<Token>& prompt, GenerateOptions options, Verified& v) {
  options.speculate = false;
  options.on_logits = [&](std::span<const float> row) { v.logits.insert(v.logits.end(), row.begin(), row.end()); };
  v.plain = session.generate(prompt, options);
  session.truncate(0);
  options.speculate = true;
  options.on_logits = [&](std::span<const float> row) {
    const size_t at = std::exchange(v.used, v.used + row.size());
    if (!v.difference.empty()) return;
    if (v.used > v.logits.size() || std::memcmp(row.data(), v.logits.data() + at, row.size_bytes()) != 0)
      v.difference = "logits of token " + std::to_string(at / row.size()) + " differ";
  };
  v.drafted = session.generate(prompt, options);
  if (v.plain.reason == FinishReason::kCancelled || v.drafted.reason == FinishReason::kCancelled) return;
  if (v.plain.tokens != v.drafted.tokens) v.difference = "tokens differ";
  else if (v.plain.text != v.drafted.text) v.difference = "texts differ";
  else if (v.plain.reason != v.drafted.reason) v.difference = "another end";
  else if (v.difference.empty() && v.used != v.logits.size()) v.difference = "number of logits differs";
}

nb::dict verify(Runner& runner, const std::vector<Token>& prompt, GenerateOptions options) {
  const SpecRule rule = spec_rule(runner.engine().options().spec);
  if (!cli::promises_bytes(rule, options.sampling))
    throw Error("accept=" + rule.name + ": " + cli::allowed_difference(rule) + ", so that there is nothing to verify");
  Interruptible interruptible;
  options.cancelled = interruptible.cancelled();
  Verified v;
  interruptible([&] {
    runner.run_alone([&](Engine&, Session& session) { verify_in(session, prompt, options, v); }, interruptible.poll());
  });
  nb::dict d;
  d["equal"] = v.difference.empty();
  d["difference"] = v.difference;
  d["tokens"] = v.drafted.tokens.size();
  d["logits"] = v.used;
  d["plain"] = timings_of(v.plain.timings);
  d["drafted"] = timings_of(v.drafted.timings);
  return d;
}

// ---- sessions

class SessionHandle {
 public:
  explicit SessionHandle(std::shared_ptr<Runner> runner) : runner_(std::move(runner)), place_(runner_->start()) {}
  ~SessionHandle() { close(); }
  SessionHandle(const SessionHandle&) = delete;
  SessionHandle& operator=(const SessionHandle&) = delete;

  const std::shared_ptr<Place>& place() const {
    if (!place_) throw Error("this session is closed");
    return place_;
  }
  void close() {
    if (place_) runner_->end(place_);
    place_.reset();
  }
  // The work runs while no call runs on the session.
  void use(const std::function<void(Session&)>& work) {
    const auto held = place();
    const nb::gil_scoped_release release;
    runner_->run([&](Engine&) {
      if (!held->session) throw Error("this session is closed");
      if (held->busy) throw Error("a request runs on this session: wait for it, or cancel it");
      work(*held->session);
    });
  }

 private:
  std::shared_ptr<Runner> runner_;
  std::shared_ptr<Place> place_;
};

[[noreturn]] void fail_file(const char* what, const std::string& path) {
  throw Error(std::string("cannot ") + what + " '" + path + "': " + std::strerror(errno));
}

void save(SessionHandle& session, const std::string& path) {
  session.use([&](Session& s) {
    std::ofstream out(path, std::ios::binary);
    if (!out) fail_file("write", path);
    s.save(out);
    if (!out.flush()) fail_file("write", path);
  });
}

void load(SessionHandle& session, const std::string& path) {
  session.use([&](Session& s) {
    std::ifstream in(path, std::ios::binary);
    if (!in) fail_file("read", path);
    s.restore(in);
  });
}

// ---- engines

std::shared_ptr<Runner> open(const std::string& model, const std::string& spec, const std::string& draft_model,
                             const std::string& device, int context, int threads, int parallel,
                             const std::string& kv_type, const std::string& chat_template) {
  EngineOptions o;
  o.model = model, o.device = device, o.context = context, o.threads = threads, o.max_sessions = parallel;
  o.kv_type = kv_type, o.chat_template = chat_template;
  std::map<std::string, std::string> more;
  if (!draft_model.empty()) more["draft-model"] = draft_model;
  o.spec = parse_spec(spec, more);
  o.startup_cache = startup_cache_folder();
  o.on_load = [](double) {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
  const nb::gil_scoped_release release;
  return std::make_shared<Runner>(o);
}

std::shared_ptr<Call> submit(Runner& runner, std::vector<Token> prompt, const GenerateOptions& options, int logprobs,
                             bool pieces, bool scores, SessionHandle* session) {
  if (logprobs > runner.engine().vocab())
    throw Error("logprobs=" + std::to_string(logprobs) + ": the vocabulary has " +
                std::to_string(runner.engine().vocab()) + " tokens");
  auto call = std::make_shared<Call>(std::move(prompt), options, CallWants{logprobs, pieces, scores},
                                     session ? session->place() : std::shared_ptr<Place>());
  runner.submit(call);
  return call;
}

void add_options(nb::module_& m) {
  nb::class_<GenerateOptions> c(m, "Options");
  c.def(nb::init<>());
  c.def_rw("max_tokens", &GenerateOptions::max_tokens).def_rw("stop", &GenerateOptions::stop);
  c.def_rw("ignore_end", &GenerateOptions::ignore_end).def_rw("stop_tokens", &GenerateOptions::stop_tokens);
  c.def_rw("show_special", &GenerateOptions::show_special).def_rw("speculate", &GenerateOptions::speculate);
  c.def_rw("draft_nodes", &GenerateOptions::draft_nodes).def_rw("draft_depth", &GenerateOptions::draft_depth);
  c.def_rw("grammar", &GenerateOptions::grammar);
  const auto sampling = [&c](const char* name, auto member) {
    using Value = std::remove_reference_t<decltype(SamplingOptions().*member)>;
    c.def_prop_rw(
        name, [member](const GenerateOptions& o) { return o.sampling.*member; },
        [member](GenerateOptions& o, const Value& value) { o.sampling.*member = value; });
  };
  sampling("temperature", &SamplingOptions::temperature);
  sampling("top_k", &SamplingOptions::top_k);
  sampling("top_p", &SamplingOptions::top_p);
  sampling("min_p", &SamplingOptions::min_p);
  sampling("repeat_penalty", &SamplingOptions::repeat_penalty);
  sampling("presence_penalty", &SamplingOptions::presence_penalty);
  sampling("frequency_penalty", &SamplingOptions::frequency_penalty);
  sampling("repeat_last_n", &SamplingOptions::repeat_last_n);
  sampling("logit_bias", &SamplingOptions::logit_bias);
  sampling("seed", &SamplingOptions::seed);
}

void add_call(nb::module_& m) {
  nb::class_<Call> c(m, "Call");
  c.def("cancel", &Call::cancel).def("take", &pieces_of).def("done", &Call::done);
  c.def("wait", &wait_for<&Call::wait>).def("wait_done", &wait_for<&Call::wait_done>);
  c.def("descriptor", &Call::descriptor).def("clear_descriptor", &Call::clear_descriptor).def("arm", &Call::arm);
  c.def("pause", [](Call& call) { return 1e-6 * double(call.pause().count()); });
  c.def("result", &result_of);
}

void add_session(nb::module_& m) {
  nb::class_<SessionHandle> c(m, "Session");
  c.def(nb::init<std::shared_ptr<Runner>>(), nb::call_guard<nb::gil_scoped_release>());
  c.def("save", &save, "path"_a).def("load", &load, "path"_a).def("close", &SessionHandle::close);
  c.def("tokens", [](SessionHandle& session) {
    std::vector<Token> tokens;
    session.use([&](Session& s) { tokens.assign(s.text().begin(), s.text().end()); });
    return tokens;
  });
}

void add_engine(nb::module_& m) {
  nb::class_<Runner> c(m, "Engine");
  m.def("open", &open, nb::kw_only(), "model"_a, "spec"_a, "draft_model"_a, "device"_a, "context"_a, "threads"_a,
        "parallel"_a, "kv_type"_a, "chat_template"_a);
  c.def("submit", &submit, "prompt"_a, "options"_a, "logprobs"_a, "pieces"_a, "scores"_a, "session"_a.none());
  c.def("close", &Runner::close, nb::call_guard<nb::gil_scoped_release>());
  c.def("explain", &explain, "prompt"_a, "options"_a, "compare"_a);
  c.def("verify", &verify, "prompt"_a, "options"_a);
  const auto get = [&c](const char* name, auto function) {
    c.def_prop_ro(name, [function](const Runner& r) { return (r.engine().*function)(); });
  };
  get("context", &Engine::context);
  get("vocab", &Engine::vocab);
  get("backend", &Engine::backend);
  get("kv_type", &Engine::kv_type);
  get("warnings", &Engine::warnings);
  c.def_prop_ro("model", [](const Runner& r) { return r.engine().options().model; });
  c.def_prop_ro("spec", [](const Runner& r) { return r.engine().options().spec.preset; });
  c.def_prop_ro("draft_model", [](const Runner& r) { return r.engine().options().spec.draft_model; });
  c.def_prop_ro("settings", [](const Runner& r) { return spec_describe(r.engine().options().spec); });
  c.def(
      "tokenize",
      [](const Runner& r, std::string_view text, bool add_special, bool parse_special) {
        const nb::gil_scoped_release release;
        return r.engine().tokenizer().tokenize(text, add_special, parse_special);
      },
      "text"_a, "add_special"_a, "parse_special"_a);
  c.def(
      "detokenize",
      [](const Runner& r, const std::vector<Token>& tokens, bool show_special, bool continues) {
        return r.engine().tokenizer().detokenize(tokens, show_special, continues);
      },
      "tokens"_a, "show_special"_a, "continues"_a);
  c.def(
      "token_bytes",
      [](const Runner& r, Token token) {
        r.engine().tokenizer().detokenize(std::span(&token, 1));  // throws where there is no such token
        const std::string bytes = r.engine().tokenizer().token_bytes(token);
        return nb::bytes(bytes.data(), bytes.size());
      },
      "token"_a);
  c.def(
      "chat_prompt",
      [](const Runner& r, std::string_view messages, bool add_generation_prompt, std::string_view tools,
         std::string_view variables) {
        return r.engine().tokenizer().apply_template_json(messages, add_generation_prompt, tools, variables);
      },
      "messages_json"_a, "add_generation_prompt"_a, "tools_json"_a, "variables_json"_a);
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // an interpreter that ends while a generator is suspended is no bug
  nb::exception<Error>(m, "Error", PyExc_RuntimeError).attr("__doc__") = "What the library rejects, with its message.";
  add_options(m);
  add_call(m);
  add_session(m);
  add_engine(m);
  m.attr("version") = SPECEXTEND_VERSION;
  m.def("why_no_cuda", &why_no_cuda, "Why device=\"cuda\" does not work here; empty: it does.");
  m.def("close_all", &Runner::close_all, nb::call_guard<nb::gil_scoped_release>());
  m.def("default_model", &default_model_path);
  m.def("drafts_folder", &shipped_drafts_folder);
  m.def(
      "schema_to_grammar", [](std::string_view schema) { return json_schema_to_gbnf(schema); }, "schema_json"_a);
  m.def("presets", [] {
    std::vector<std::pair<std::string, std::string>> out;
    for (const SpecPreset& preset : spec_presets()) out.emplace_back(preset.name, preset.what);
    return out;
  });
}

}  // namespace sx::python
