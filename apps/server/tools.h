// Tool calls: what format a model writes them in, how a conversation and its tools are told to it, a grammar that forces a call,
// and how calls are found in its text.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sx::server {

enum class ToolFormat {
  kHermes,         // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, or a list of calls inside (Hermes, Qwen, SmolLM2)
  kLlama,          // {"name": ..., "parameters": {...}} as the whole answer (Llama 3.1)
  kMistral,        // [TOOL_CALLS] [{"name": ..., "arguments": {...}}] (Mistral up to Small 3.1)
  kMistralNamed,   // [TOOL_CALLS]NAME[ARGS]{...}, once for each call (Devstral, Ministral 3)
  kMistralCallId,  // [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...} (Mistral Small 3.2)
  kQwenCoder,      // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> (Qwen3-Coder, Qwen3.5)
  kGlm,            // <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call> (GLM 4.5, Laguna)
  kMiniMax,        // <minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke></minimax:tool_call>
  kFunctionary,    // <function=NAME>{...}</function> (Functionary 3.1)
  kNemotron,       // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>
  kApriel,         // <tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>
};
struct ToolStyle {
  ToolFormat format = ToolFormat::kHermes;
  bool in_template = false;     // the chat template shows tools itself; otherwise they are told in the system message
  bool text_arguments = false;  // it wants the arguments of earlier calls as the text of a JSON object, not as the object
};
// What a template says of tools. `render`, of messages and tools as JSON, is tried: what the template makes of a call decides in which form
// it gets calls. It may throw sx::Error.
using RenderTemplate = std::function<std::string(const std::string& messages, const std::string& tools)>;
ToolStyle tool_style(std::string_view chat_template, const RenderTemplate& render);
bool shows_control_tokens(ToolFormat format);  // the marks of calls are such tokens

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
  // `parallel`: false drops calls after the first. `tools`: JSON, as templates take them; formats that write values without quotes
  // tell texts from numbers by their schemas.
  ToolParser(ToolFormat format, std::vector<std::string> names, bool parallel, std::string tools = {});
  Output add(std::string_view text);
  Output finish();

 private:
  enum class Seen { kYes, kNo, kMore };
  enum class Phase { kOpen, kName, kNameEnd, kArguments, kKey, kValue, kCallEnd, kClose };

  bool step(Output& out, bool last);
  bool step_llama(Output& out, bool last);
  bool json_call(Output& out, size_t begin, bool last);
  bool marked_call(Output& out, size_t begin, bool opened, bool last);
  Seen go_on(Phase& phase);
  Seen read_name();
  Seen read_end_of_name();
  Seen read_json_arguments();
  Seen read_key();
  Seen read_value();
  Seen see(std::string_view mark);
  Seen text_until(std::string_view mark, size_t most, std::string& text);
  std::string arguments() const;
  bool known(const std::string& name) const;
  void deliver(Output& out, std::vector<ToolCall> found, size_t end);
  bool refuse(Output& out, size_t size);
  void content(Output& out, size_t size);
  void take(size_t size);
  size_t json_end(size_t begin);
  std::vector<ToolCall> read_calls(std::string_view json) const;

  ToolFormat format_;
  std::vector<std::string> names_;
  bool parallel_;
  std::string tools_;
  std::string held_;
  size_t taken_ = 0, calls_ = 0;
  bool plain_ = false;              // Llama: the answer is not a call
  struct Scan {
    size_t at = 0;
    int depth = 0;
    bool quoted = false, escaped = false;
  } scan_;                          // how far json_end has come in held_
  struct Marked {
    Phase phase = Phase::kOpen;
    size_t at = 0;                  // read so far, in held_
    size_t searched = 0;            // text_until found nothing before this
    size_t end = 0;                 // of the last whole call
    ToolCall call{};
    std::string key{};
    std::vector<std::pair<std::string, std::string>> values{};
    std::vector<ToolCall> done{};
  } marked_;                        // how far marked_call has come
};

}  // namespace sx::server
