// `specextend tokenize`: text to token ids.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/open_engine.h"
#include "cli/prompt.h"
#include "cli/terminal.h"

namespace sx::cli {
namespace {

struct TokenizeArgs {
  std::string model, prompt, file;
  bool ids = false, no_bos = false, raw = false, count = false, decode = false;
};

int run(const TokenizeArgs& a) {
  if (a.prompt.empty() && a.file.empty()) throw Error("give a text with -p TEXT or -f FILE (- is standard input)");
  const auto tokenizer = Tokenizer::open(a.model);
  print_warnings(tokenizer->warnings());
  const std::string text = a.file.empty() ? a.prompt : read_file(a.file);
  if (a.decode) {
    std::vector<Token> tokens;
    try {
      tokens = nlohmann::json::parse(text).get<std::vector<Token>>();
    } catch (const nlohmann::json::exception&) {
      throw Error("--decode expects a JSON array of token ids, e.g. [1, 2, 3]");
    }
    write_out(tokenizer->detokenize(tokens, true));
    return 0;
  }
  const auto tokens = tokenizer->tokenize(text, !a.no_bos, !a.raw);
  std::string out;
  if (a.count) out = fmt::format("{}\n", tokens.size());
  else if (a.ids) out = nlohmann::json(tokens).dump() + "\n";
  else
    for (Token t : tokens) out += fmt::format("{:>7}  {}\n", t, tokenizer->token_text(t));
  return write_out(out) ? 0 : 1;
}

}  // namespace

Command add_tokenize(CLI::App& app) {
  auto args = std::make_shared<TokenizeArgs>();
  add_model_flag(app, args->model);
  app.add_option("-p,--prompt", args->prompt, "the text");
  app.add_option("-f,--file", args->file, "read the text from a file (- is standard input)");
  app.add_flag("--ids,--json", args->ids, "print a JSON array of ids");
  app.add_flag("--show-count,--count", args->count, "print only the number of tokens");
  app.add_flag("--no-bos", args->no_bos, "do not add the tokens that open and close a text");
  app.add_flag("--raw,--no-parse-special", args->raw, "take control tokens in the text as plain text");
  app.add_flag("--decode", args->decode, "the other way: a JSON array of ids to text");
  return [args] { return run(*args); };
}

}  // namespace sx::cli
