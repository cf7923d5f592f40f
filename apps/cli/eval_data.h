// The data sets of `specextend eval`: JSON lines, one prompt each, and how a prompt is cut to a number of tokens.
#pragma once
#include <specextend/specextend.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sx::cli {

// One line: "prompt" (a text to continue), or "text" (a document, behind "instruction" if there is one), or "messages"
// (a conversation); besides "id", "category" and "reference".
struct EvalPrompt {
  std::string id, category, where;  // where: "FILE line N", for errors
  std::string prompt, instruction;  // prompt: of "prompt" and "text"
  bool document = false;            // it is a "text": only its end may be cut off
  std::vector<Message> messages;    // of "messages"
  std::optional<std::string> reference;
};

// `name` stands for the text in errors. Throws sx::Error naming file and line of what is wrong.
std::vector<EvalPrompt> parse_eval_data(std::string_view jsonl, const std::string& name);
// Makes ids unique across data sets: throws on ids that are there twice. `limit` > 0: only the first so many.
std::vector<EvalPrompt> joined(std::vector<std::vector<EvalPrompt>> sets, int limit);
// A few short prompts of different kinds.
std::string_view builtin_eval_data();

struct EvalPromptOptions {
  bool chat = false;        // prompts and documents go through the chat template, too
  std::string instruction;  // before documents that have none of their own
};

// The tokens of a prompt, at most `length` of them (0: all). What is cut is the middle of a prompt or of the longest
// message, and the end of a document, so that an instruction before or behind the text stays. Empty: the prompt has
// fewer than `length` tokens.
std::vector<Token> eval_tokens(const EvalPrompt& prompt, int length, const EvalPromptOptions& options,
                               const Tokenizer& tokenizer);

}  // namespace sx::cli
