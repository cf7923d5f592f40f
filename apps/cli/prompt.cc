#include "cli/prompt.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "cli/help.h"
#include "cli/open_engine.h"

namespace sx::cli {

void add_prompt_flags(CLI::App& app, PromptFlags& flags) {
  const HelpGroup group(app, "Prompt");
  app.add_option("-p,--prompt", flags.prompt, "the prompt");
  app.add_option("-f,--file", flags.file, "read the prompt from a file; -: standard input");
  app.add_option("--prefix", flags.prefix, "text before the prompt, e.g. an instruction before a document");
  rare(app.add_option("--suffix", flags.suffix, "text after the prompt"));
  auto* const chat = app.add_flag("--chat", flags.chat, "send the prompt as a user message through the chat template");
  app.add_option("--system,--sys", flags.system, "system message, with --chat")->needs(chat);
  rare(app.add_flag("-e,--escape", flags.escape, "read \\n, \\t, ... in the prompt as escapes"));
  rare(app.add_flag("--raw", flags.raw, "take control tokens in the prompt as plain text"));
}

std::vector<Token> prompt_tokens(const PromptFlags& flags, const Engine& engine) {
  std::string text = flags.file.empty() ? flags.prompt : read_file(flags.file);
  if (flags.escape) text = unescape(text);
  if (flags.chat) warn_without_template(engine);
  text = flags.prefix + text + flags.suffix;
  return engine.tokenizer().tokenize(flags.chat ? chat_prompt(engine, flags.system, text) : text, !flags.chat,
                                     !flags.raw);
}

std::string chat_prompt(const Engine& engine, const std::string& system, const std::string& text) {
  std::vector<Message> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", text});
  return engine.tokenizer().apply_template(messages);
}

std::string read_file(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw Error("'" + path + "' is a folder, a file is expected");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error("cannot open '" + path + "'");
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) throw Error("cannot read '" + path + "'");
  return text.str();
}

std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'n') out += '\n';
    else if (c == 't') out += '\t';
    else if (c == 'r') out += '\r';
    else if (c == '\\' || c == '"' || c == '\'') out += c;
    else out += '\\', out += c;
  }
  return out;
}

}  // namespace sx::cli
