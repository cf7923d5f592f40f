// Tool calls: what format a model writes them in, how a conversation and its tools are told to it, a grammar that
// forces a call, and how calls are found in its text.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/places.h"

namespace sx::server {

enum class ToolFormat {
  kHermes,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, or a list of calls inside (Hermes, Qwen, SmolLM2)
  kLlama,          // {"name": ..., "parameters": {...}} as the whole answer (Llama 3.1)
  kMistral,        // [TOOL_CALLS] [{"name": ..., "arguments": {...}}] (Mistral up to Small 3.1)
  kMistralNamed,   // [TOOL_CALLS]NAME[ARGS]{...}, once for each call (Devstral, Ministral 3)
  kMistralCallId,  // [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...} (Mistral Small 3.2)
  kQwenCoder,  // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> (Qwen3-Coder, Qwen3.5)
  kGlm,        // <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call> (GLM 4.5, Laguna)
  kMiniMax,  // <minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke></minimax:tool_call>
  kFunctionary,  // <function=NAME>{...}</function> (Functionary 3.1)
  kNemotron,     // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>
  kApriel,       // <tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>
  kKimi,  // <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>... (Kimi K2)
  kKimiTags,  // <|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|>... one tag for each argument (Kimi K3)
  kDeepSeek,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME ```json {...} ```<｜tool▁call▁end｜>... (V3, R1)
  kDeepSeek31,  // the same with NAME<｜tool▁sep｜>{...} (V3.1)
  kDeepSeek32,  // <｜DSML｜function_calls><｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">VALUE... (V3.2)
  kDeepSeek4,  // the same in <｜DSML｜tool_calls>
  kHarmony,    // <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|> (gpt-oss)
  kGemma,      // <|tool_call>call:NAME{KEY:VALUE,...}<tool_call|> (Gemma 4)
  kLfm,        // <|tool_call_start|>[NAME(KEY=VALUE, ...)]<|tool_call_end|> (LFM2)
  kCohere,  // <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|> (Command R7B, A)
  kApertus,   // <|tools_prefix|>[{NAME: {...}}]<|tools_suffix|>
  kSolar,     // <|tool_calls|><|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}<|tool_call:end|>
  kGigaChat,  // <|function_call|>{"name": ..., "arguments": {...}}
};
struct ToolStyle {
  ToolFormat format = ToolFormat::kHermes;
  bool in_template = false;  // the chat template shows tools itself; otherwise they are told in the system message
  bool shows_calls =
      false;  // it shows earlier calls and their results itself; otherwise they are told as text unless it shows tools
  bool null_content = false;  // a message that is nothing but calls has no content for it, not an empty one
  bool text_arguments =
      false;  // it wants the arguments of earlier calls as the text of a JSON object, not as the object
};
// What a template says of tools. `render`, of messages and tools as JSON, is tried: what the template makes of a call
// decides in which form it gets calls. It may throw sx::Error.
using RenderTemplate = std::function<std::string(const std::string& messages, const std::string& tools)>;
ToolStyle tool_style(std::string_view chat_template, const RenderTemplate& render);
bool shows_control_tokens(ToolFormat format);  // the marks of calls are such tokens

// Puts `tools` into `messages` (both as the request has them, checked) for a template that does not show tools. Its
// calls are left to it where it shows calls.
void tell_tools(nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools, const ToolStyle& style = {});

// GBNF of exactly one call of one of the tools (all of them, or those the list was cut to), arguments by their schemas.
// Throws sx::Error when a schema is not supported.
std::string tool_grammar(ToolFormat format, const nlohmann::ordered_json& tools);

struct ToolCall {
  std::string id, name, arguments;  // arguments: the text of a JSON object
};

// A piece of what a model says.
struct AnswerPart {
  enum class Kind {
    kReasoning,
    kContent,
    kCall,       // a call begins: `call` has its arguments as far as they are there
    kArguments,  // `text`: more of the arguments of the last call
  };
  Kind kind = Kind::kContent;
  std::string text{};
  ToolCall call{};
  Places places{};  // of content: where it is in the answer's text without its thoughts
};

// How far a value between brackets has been looked at, in a text that comes in pieces.
struct ValueScan {
  size_t at = 0;
  int depth = 0;
  std::string_view quote{};  // of the text it is in; empty: of none
  bool escaped = false;
};

// Finds calls in a text that comes in pieces. Text that may be the beginning of a call is held back until that is
// decided; what turns out not to be a call of a known tool is content.
class ToolParser {
 public:
  struct Output {
    std::vector<AnswerPart> parts;
    size_t taken = 0;  // bytes of the text that are decided by now, in all
    std::string content() const;
    std::vector<ToolCall> calls() const;
  };
  // `parallel`: false drops calls after the first. `tools`: JSON, as templates take them; formats that write values
  // without quotes tell texts from numbers by their schemas. `in_pieces`: a call is told once its name and the
  // beginning of its arguments are there, and these as they come. What is told cannot be taken back: if such a call
  // turns out broken, or is cut off, its arguments are.
  ToolParser(ToolFormat format, std::vector<std::string> names, bool parallel, std::string tools = {},
             bool in_pieces = false);
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
  Seen read_whole_arguments();
  Seen read_key();
  Seen read_value();
  Seen see(std::string_view mark);
  Seen text_until(std::string_view mark, size_t most, std::string& text);
  size_t next_mark(bool& hidden) const;
  nlohmann::ordered_json parameters() const;
  std::string arguments() const;
  bool known(const std::string& name) const;
  void deliver(Output& out, std::vector<ToolCall> found, size_t end);
  bool refuse(Output& out, size_t size);
  void content(Output& out, size_t size);
  void take(size_t size);
  std::vector<ToolCall> read_calls(std::string_view json) const;

  // Calls in pieces (tool_pieces.cc).
  bool begin_telling(const ToolCall& call, size_t arguments);
  void tell(std::string text);
  void tell_json_call(size_t value);
  bool find_arguments(size_t value, ToolCall& call, size_t& arguments) const;
  void tell_json();
  void begin_value();
  void tell_value();
  void end_value(const std::string& text, const nlohmann::ordered_json& value);
  void flush(Output& out);

  ToolFormat format_;
  std::vector<std::string> names_;
  bool parallel_;
  std::string tools_;
  std::string held_;
  size_t taken_ = 0, calls_ = 0;
  bool plain_ = false;  // Llama: the answer is not a call
  ValueScan scan_;      // how far a value has been looked at in held_
  struct Marked {
    Phase phase = Phase::kOpen;
    size_t at = 0;        // read so far, in held_
    size_t searched = 0;  // text_until found nothing before this
    size_t end = 0;       // of the last whole call
    ToolCall call{};
    std::string written{};  // the name, with what stood before it
    std::string key{}, kind{};
    struct Value {
      std::string key, kind, text;
    };
    std::vector<Value> values{};
    std::vector<ToolCall> done{};
  };
  static nlohmann::ordered_json value_of(const Marked::Value& value, const nlohmann::ordered_json& parameters);
  Marked marked_{};  // how far marked_call has come
  const bool in_pieces_;
  struct Telling {
    bool on = false;                            // the call that is being read has been told
    size_t at = 0;                              // told up to here, in held_: JSON
    int depth = 0;                              // of the brackets that are open there
    bool in_text = false, escaped = false;      // it is in a text, behind a backslash
    bool some = false;                          // an argument has been told: between marks
    bool is_text = false, value_begun = false;  // of the value that is being read: it is a text, which has begun
    size_t value_told = 0;                      // bytes of it
  } telling_;
  std::vector<bool> told_{};          // of the calls of a block, those that have been told
  std::vector<AnswerPart> pieces_{};  // that have not been given out
};

}  // namespace sx::server
