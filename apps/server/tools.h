// Tool calls: what format a model writes them in, how a conversation and its tools are told to it, a grammar that forces a call,
// and how calls are found in its text.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sx::server {

enum class ToolFormat {
  kHermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, or a list of calls inside (Hermes, Qwen, SmolLM2)
  kLlama,    // {"name": ..., "parameters": {...}} as the whole answer (Llama 3.1)
  kMistral,  // [TOOL_CALLS] [{"name": ..., "arguments": {...}}]
};
struct ToolStyle {
  ToolFormat format = ToolFormat::kHermes;
  bool in_template = false;  // the chat template shows tools itself; otherwise they are told in the system message
};
ToolStyle tool_style(std::string_view chat_template);

// Puts `tools` into `messages` (both as the request has them, checked) for a template that does not know of tools.
void tell_tools(nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools);

// GBNF of exactly one call of one of the tools (all of them, or those the list was cut to), arguments by their schemas.
// Throws sx::Error when a schema is not supported.
std::string tool_grammar(ToolFormat format, const nlohmann::ordered_json& tools);

struct ToolCall {
  std::string id, name, arguments;  // arguments: the text of a JSON object
};

// Finds calls in a text that comes in pieces. Text that may be the beginning of a call is held back until that is decided; what
// turns out not to be a call of a known tool is content.
class ToolParser {
 public:
  struct Output {
    std::string content;
    std::vector<ToolCall> calls;
    size_t taken = 0;               // bytes of the text that are decided by now, in all
  };
  // `parallel`: false drops calls after the first.
  ToolParser(ToolFormat format, std::vector<std::string> names, bool parallel);
  Output add(std::string_view text);
  Output finish();

 private:
  bool step(Output& out, bool last);
  bool call(Output& out, size_t begin, bool last);
  void content(Output& out, size_t size);
  void take(size_t size);
  size_t json_end(size_t begin);
  std::vector<ToolCall> read_calls(std::string_view json) const;

  ToolFormat format_;
  std::vector<std::string> names_;
  bool parallel_;
  std::string held_;
  size_t taken_ = 0, calls_ = 0;
  bool plain_ = false;              // Llama: the answer is not a call
  struct Scan {
    size_t at = 0;
    int depth = 0;
    bool quoted = false, escaped = false;
  } scan_;                          // how far json_end has come in held_
};

}  // namespace sx::server
