#include "cli/flags.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <stdexcept>

#include "cli/help.h"
#include "cli/prompt.h"

namespace sx::cli {
namespace {

const EngineOptions* g_split = nullptr;  // of the command that is run

uint64_t read_seed(const std::string& text) {
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  if (const auto [rest, error] = std::from_chars(text.data(), end, seed); error != std::errc() || rest != end)
    throw CLI::ValidationError("--seed", fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX));
  return seed;
}

void add_penalty_flags(CLI::App& app, SamplingOptions& s) {
  app.add_option("--repeat-penalty", s.repeat_penalty, "divide the logits of recent tokens by this; 1: off")
      ->capture_default_str();
  rare(app.add_option("--presence-penalty", s.presence_penalty, "subtract this from the logits of recent tokens"))
      ->capture_default_str();
  rare(app.add_option("--frequency-penalty", s.frequency_penalty, "subtract this once per recent occurrence"))
      ->capture_default_str();
  rare(app.add_option("--repeat-last-n", s.repeat_last_n, "tokens the penalties look back at; -1: all"))
      ->capture_default_str();
}

void add_grammar_flags(CLI::App& app, GenerateOptions& o) {
  auto* const grammar =
      rare(app.add_option("--grammar", o.grammar, "generate only text that this GBNF grammar accepts"));
  auto* const grammar_file = rare(app.add_option_function<std::string>(
      "--grammar-file", [&o](const std::string& file) { o.grammar = read_file(file); },
      "read the grammar from a file"));
  app.add_option_function<std::string>(
         "-j,--json-schema", [&o](const std::string& schema) { o.grammar = json_schema_to_gbnf(schema); },
         "generate only JSON that this schema accepts; '{}': any JSON")
      ->excludes(grammar, grammar_file);
  grammar_file->excludes(grammar);
}

}  // namespace

void ignore(CLI::App& app, const char* spellings, const char* why) {
  rare(app.add_option_function<std::string>(
      spellings, [](const std::string&) {}, fmt::format("ignored, as in llama.cpp's scripts: {}", why)));
}

const EngineOptions* split_options() { return g_split; }

void add_model_flag(CLI::App& app, std::string& model) {
  app.add_option("-m,--model", model, "GGUF file or Hugging Face folder; without it the default model")
      ->envname("LLAMA_ARG_MODEL");
}

void add_engine_flags(CLI::App& app, EngineOptions& o, std::string& chat_template_file) {
  const HelpGroup group(app, "Model and device");
  add_model_flag(app, o.model);
  app.add_option("-c,--ctx-size", o.context, "context length in tokens; 0: the trained length")
      ->capture_default_str()
      ->envname("LLAMA_ARG_CTX_SIZE");
  app.add_option("-t,--threads", o.threads, "CPU threads; 0: one per core within the CPU quota")
      ->capture_default_str()
      ->envname("LLAMA_ARG_THREADS");
  app.add_option(
         "--device,--dev", o.device,
         "cpu, cuda, cuda:N, or auto: CUDA if there is a device; cuda:0,cuda:1: the model is divided among them")
      ->capture_default_str();
  rare(app.add_option_function<std::string>(
           "--split",
           [&o](const std::string& split) {
             o.split = split;
             g_split = &o;
           },
           "divide the model among the ranks that mpirun started or the devices of a list, by layers or columns"))
      ->check(CLI::IsMember({"layers", "columns"}));
  rare(app.add_option_function<std::string>(
      "--isa", [](const std::string& name) { ::setenv("SPECEXTEND_ISA", name.c_str(), 1); },
      "CPU kernels for this instruction set instead of the machine's best: what ranks of different machines share"));
  rare(app.add_option("--kv-type,--ctk,--cache-type-k", o.kv_type,
                      "type of the KV cache: f32, f16, bf16, q8_0, q4_0 or q4_1, or two of them for keys and values "
                      "(q8_0/q4_0); without it the fastest here"));
  rare(app.add_option_function<std::string>(
      "--ctv,--cache-type-v",
      [&o](const std::string& type) {
        if (o.kv_type.find('/') != o.kv_type.npos)
          throw CLI::ValidationError("--ctv", "the type of values is given already: --kv-type " + o.kv_type);
        o.kv_type += "/" + type;
      },
      "type of the values alone; without it that of --ctk"));
  rare(app.add_option("-b,--batch-size,--ub,--ubatch-size", o.chunk,
                      "prompt tokens processed in one step; 0: what suits the device"))
      ->capture_default_str();
  rare(app.add_option("--chat-template-file", chat_template_file,
                      "Jinja chat template to use instead of the model's own"));
  rare(app.add_option_function<int>(
      "--ngl,--gpu-layers,--n-gpu-layers",
      [&o](int layers) {
        if (layers == 0 && o.device == "auto") o.device = "cpu";
      },
      "0 means --device cpu; other numbers are ignored: a model runs on one device as a whole"));
  ignore(app, "--tb,--threads-batch", "prompts use the same threads");
  ignore(app, "--fa,--flash-attn", "attention always is flash attention");
}

void add_sampling_flags(CLI::App& app, GenerateOptions& o, std::vector<std::string>& bias) {
  const HelpGroup group(app, "Sampling");
  SamplingOptions& s = o.sampling;
  app.add_option("-n,--predict,--n-predict", o.max_tokens, "most tokens to generate; -1: until the text ends")
      ->capture_default_str();
  app.add_option("--temp,--temperature", s.temperature, "temperature; 0: greedy")->capture_default_str();
  app.add_option("--top-k", s.top_k, "sample from the K most likely tokens; 0: all")->capture_default_str();
  app.add_option("--top-p", s.top_p, "sample from the smallest set of this probability; 1: all")->capture_default_str();
  app.add_option("--min-p", s.min_p, "drop tokens below this share of the likeliest; 0: none")->capture_default_str();
  app.add_option_function<std::string>(
         "-s,--seed", [&s](const std::string& text) { s.seed = read_seed(text); },
         "seed below 2^64; equal seeds give equal texts")
      ->type_name("UINT")
      ->default_str("0");
  add_penalty_flags(app, s);
  app.add_option("-r,--stop", o.stop, "end the text before this string; repeatable");
  add_grammar_flags(app, o);
  rare(app.add_option("-l,--logit-bias", bias, "TOKEN+VALUE or TOKEN-VALUE, e.g. 15+2.5; repeatable"));
  rare(app.add_flag("--ignore-eos", o.ignore_end, "go on after end-of-text tokens"));
  rare(app.add_flag("--special", o.show_special, "show control tokens"));
}

void apply_bias(GenerateOptions& options, const std::vector<std::string>& bias) {
  for (const auto& text : bias) {
    const size_t sign = text.find_first_of("+-", 1);
    try {
      size_t used = 0, used_value = 0;
      const int token = std::stoi(text, &used);
      const float value = std::stof(text.substr(used), &used_value);
      if (sign == std::string::npos || used != sign || used + used_value != text.size())
        throw std::invalid_argument(text);
      options.sampling.logit_bias.emplace_back(token, value);
    } catch (const std::exception&) {
      throw Error("--logit-bias '" + text + "': expected TOKEN+VALUE or TOKEN-VALUE, e.g. 15+2.5");
    }
  }
}

}  // namespace sx::cli
