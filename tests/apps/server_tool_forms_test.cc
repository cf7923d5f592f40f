// The forms in which models write calls: what a template makes of a message with calls is read back as the same calls,
// cut anywhere; what a grammar forces is read, too.
#include <gtest/gtest.h>
#include <specextend/specextend.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "server/tool_syntax.h"
#include "server/tool_values.h"
#include "server/tools.h"
#include "text/chat.h"
#include "text/grammar_support.h"

namespace sx::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "get_it", "description": "Gets it.", "parameters": {"type": "object",
  "properties": {"s": {"type": "string", "description": "A text."}, "i": {"type": "integer", "description": "A number."},
  "b": {"type": "boolean", "description": "Or not."}, "l": {"type": "array", "items": {"type": "integer"}, "description": "Some."},
  "o": {"type": "object", "properties": {"k": {"type": "string"}}, "description": "One."}}, "required": ["s"]}}},
  {"type": "function", "function": {"name": "f.g-2", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}}])";

std::string text_of(const std::vector<ToolCall>& calls) {
  std::string out;
  for (const ToolCall& call : calls) {
    const nlohmann::json sorted = nlohmann::json::parse(call.arguments);  // Gemma's template sorts them
    out += call.name + "(" + sorted.dump() + ")";
  }
  return out;
}

struct Heard {
  std::string content;
  std::vector<ToolCall> calls;
};

Heard hear(ToolFormat format, const std::string& text, size_t piece) {
  ToolParser parser(format, {"get_it", "f.g-2"}, true, kTools);
  Heard heard;
  const auto take = [&](ToolParser::Output out) {
    heard.content += out.content();
    for (const ToolCall& call : out.calls()) heard.calls.push_back(call);
  };
  for (size_t i = 0; i < text.size(); i += piece) take(parser.add(text.substr(i, piece)));
  take(parser.finish());
  return heard;
}

Json call_json(const std::string& name, const Json& arguments, const ToolStyle& style, const std::string& id) {
  return {{"id", id},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", style.text_arguments ? Json(arguments.dump()) : arguments}}}};
}

// A conversation with these calls through a template, and what the parser reads of what the template has written behind
// the prompt.
Heard through(const ChatTemplate& chat, const ToolStyle& style, const std::vector<std::pair<std::string, Json>>& calls,
              size_t piece) {
  Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  const Json tools = style.in_template ? Json::parse(kTools) : Json(nullptr);
  const std::string prompt = chat.render(messages, tools, true);
  Json list = Json::array();
  for (size_t i = 0; i < calls.size(); ++i)
    list.push_back(call_json(calls[i].first, calls[i].second, style, "a1b2c3d4" + std::to_string(i)));
  messages.push_back(
      {{"role", "assistant"}, {"content", style.null_content ? Json(nullptr) : Json("")}, {"tool_calls", list}});
  std::string text = chat.render(messages, tools, false);
  size_t shared = 0;
  while (shared < std::min(text.size(), prompt.size()) && text[shared] == prompt[shared]) ++shared;
  while (shared > 0 && (uint8_t(text[shared]) & 0xC0) == 0x80) --shared;  // a whole character
  // The text of an answer has no prompt before it: a mark that both begin with is whole again.
  if (const size_t mark = text.rfind('<', shared); mark != std::string::npos && text.find('>', mark) >= shared)
    shared = mark;
  return hear(style.format, text.substr(shared), piece);
}

ToolStyle style_of(const std::string& source, const ChatTemplate& chat) {
  return tool_style(source, [&](const std::string& messages, const std::string& tools) {
    return chat.render(Json::parse(messages), Json::parse(tools), true);
  });
}

const std::vector<std::vector<std::pair<std::string, Json>>>& conversations() {
  static const std::vector<std::vector<std::pair<std::string, Json>>> kAll = {
      {{"f.g-2", Json::object()}},
      {{"get_it",
        Json::parse(R"({"s": "x \"y\"\n< é </b> it's 5", "i": 12, "b": true, "l": [1, 2], "o": {"k": "v, }w"}})")}},
      {{"get_it", Json::parse(R"({"s": ""})")},
       {"f.g-2", Json::object()},
       {"get_it", Json::parse(R"({"s": "12", "b": false, "i": -3})")}}};
  return kAll;
}

std::string expected_of(const std::vector<std::pair<std::string, Json>>& calls) {
  std::vector<ToolCall> all;
  for (const auto& [name, arguments] : calls) all.push_back({"", name, arguments.dump()});
  return text_of(all);
}

// Small templates in the forms of models, and one call as a grammar forces it.
struct Form {
  ToolFormat format;
  std::string calls;   // what the template makes of m.tool_calls
  std::string forced;  // get_it with s = "a" and i = 5
};

const std::vector<Form>& forms() {
  const auto each = [](const std::string& open, const std::string& one, const std::string& close,
                       const std::string& between = "") {
    return open + "{% for c in m.tool_calls %}" + one +
           (between.empty() ? "" : "{% if not loop.last %}" + between + "{% endif %}") + "{% endfor %}" + close;
  };
  const auto tags = [](const std::string& one) {
    return "{% for k, v in c.function.arguments.items() %}" + one + "{% endfor %}";
  };
  const std::string json = "{{ c.function.arguments | tojson }}", name = "{{ c.function.name }}",
                    text = "{{ v if v is string else v | tojson }}";
  const std::string python = tags(
      "{{ k }}={{ v | tojson if v is mapping else \"'\" + v + \"'\" if v is string else v }}{% if not loop.last %}, {% endif %}");
  const std::string gemma =
      "{%- macro value(v) -%}{% if v is string %}<|\"|>{{ v }}<|\"|>{% elif v is mapping %}{{ '{' }}{% for k, w in v.items() %}{{ k }}:{{ value(w) }}{% if "
      "not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% else %}{{ v | tojson }}{% endif %}{%- endmacro -%}";
  const std::string dsml = "<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">" +
                           text + "</｜DSML｜parameter>\n";
  const auto dsml_calls = [&](const std::string& block) {
    return each("\n\n<｜DSML｜" + block + ">\n",
                "<｜DSML｜invoke name=\"" + name + "\">\n" + tags(dsml) + "</｜DSML｜invoke>\n",
                "</｜DSML｜" + block + ">");
  };
  const auto dsml_forced = [&](const std::string& block) {
    return "<｜DSML｜" + block +
           ">\n<｜DSML｜invoke name=\"get_it\">\n<｜DSML｜parameter name=\"s\" string=\"true\">a</｜DSML｜parameter>\n<｜DSML｜parameter name=\"i\" "
           "string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜" +
           block + ">";
  };
  const std::string types =
      "{{ 'string' if v is string else 'boolean' if v is boolean else 'number' if v is number else 'object' if v is mapping else 'array' }}";
  static const std::vector<Form> kForms = {
      {ToolFormat::kKimi,
       each("<|tool_calls_section_begin|>",
            "<|tool_call_begin|>functions." + name + ":{{ loop.index0 }}<|tool_call_argument_begin|>" + json +
                "<|tool_call_end|>",
            "<|tool_calls_section_end|>"),
       R"(<|tool_calls_section_begin|><|tool_call_begin|>functions.get_it:0<|tool_call_argument_begin|>{"s": "a", "i": 5}<|tool_call_end|><|tool_calls_section_end|>)"},
      {ToolFormat::kKimiTags,
       each("{% set open, close, sep = '<|open|>', '<|close|>', '<|sep|>' %}{{ open }}tools{{ sep }}",
            "{{ open }}call tool=\"" + name + "\" index=\"{{ loop.index }}\"{{ sep }}" +
                tags("{{ open }}argument key=\"{{ k }}\" type=\"" + types + "\"{{ sep }}" + text +
                     "{{ close }}argument{{ sep }}") +
                "{{ close }}call{{ sep }}",
            "{{ close }}tools{{ sep }}"),
       R"(<|open|>tools<|sep|><|open|>call tool="get_it" index="1"<|sep|><|open|>argument key="s" type="string"<|sep|>a<|close|>argument<|sep|>)"
       R"(<|open|>argument key="i" type="number"<|sep|>5<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>)"},
      {ToolFormat::kDeepSeek,
       each(
           "<｜tool▁calls▁begin｜>",
           "<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>" + name + "\n```json\n" + json + "\n```<｜tool▁call▁end｜>",
           "<｜tool▁calls▁end｜>", "\n"),
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_it\n```json\n{\"s\": \"a\", \"i\": 5}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {ToolFormat::kDeepSeek31,
       each(
           "<｜tool▁calls▁begin｜>",
           "{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>' }}",
           "<｜tool▁calls▁end｜>"),
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_it<｜tool▁sep｜>{\"s\": \"a\", \"i\": 5}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {ToolFormat::kDeepSeek32, dsml_calls("function_calls"), dsml_forced("function_calls")},
      {ToolFormat::kDeepSeek4, dsml_calls("tool_calls"), dsml_forced("tool_calls")},
      {ToolFormat::kHarmony,
       each("",
            "<|start|>assistant<|channel|>commentary to=functions." + name + " <|constrain|>json<|message|>" + json +
                "<|call|>",
            ""),
       R"(<|channel|>commentary to=functions.get_it <|constrain|>json<|message|>{"s": "a", "i": 5})"},
      {ToolFormat::kGemma,
       gemma + each("",
                    "<|tool_call>call:" + name + "{{ '{' }}" +
                        tags("{{ k }}:{{ value(v) }}{% if not loop.last %},{% endif %}") + "{{ '}' }}<tool_call|>",
                    ""),
       R"(<|tool_call>call:get_it{s:<|"|>a<|"|>,i:5}<tool_call|>)"},
      {ToolFormat::kLfm, each("<|tool_call_start|>[", name + "(" + python + ")", "]<|tool_call_end|>", ", "),
       R"(<|tool_call_start|>[get_it(s='a', i=5)]<|tool_call_end|>)"},
      {ToolFormat::kCohere,
       each("<|START_ACTION|>[\n",
            "    {\"tool_call_id\": \"{{ loop.index0 }}\", \"tool_name\": \"" + name + "\", \"parameters\": " + json +
                "}",
            "\n]<|END_ACTION|>", ",\n"),
       "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_it\", \"parameters\": {\"s\": \"a\", \"i\": 5}}\n]<|END_ACTION|>"},
      {ToolFormat::kApertus, each("<|tools_prefix|>[", "{\"" + name + "\": " + json + "}", "]<|tools_suffix|>", ", "),
       R"(<|tools_prefix|>[{"get_it": {"s": "a", "i": 5}}]<|tools_suffix|>)"},
      {ToolFormat::kSolar,
       each(
           "<|tool_calls|>",
           "<|tool_call:begin|>{{ c.id }}<|tool_call:name|>" + name + "<|tool_call:args|>" + json + "<|tool_call:end|>",
           "<|calls|>"),
       R"(<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_it<|tool_call:args|>{"s": "a", "i": 5}<|tool_call:end|>)"},
      {ToolFormat::kGigaChat,
       each("", "<|function_call|>{\"name\": \"" + name + "\", \"arguments\": " + json + "}", "<|message_sep|>"),
       R"(<|function_call|>{"name": "get_it", "arguments": {"s": "a", "i": 5}})"},
  };
  return kForms;
}

std::string template_of(const Form& form, bool tools) {
  return (tools ? "{% if tools %}{{ tools | tojson }}{% endif %}" : "") +
         std::string("{% for m in messages %}({{ m.role }}){{ m.content or '' }}{% if m.tool_calls %}") + form.calls +
         "{% endif %}{% endfor %}{% if add_generation_prompt %}(assistant){% endif %}";
}

TEST(ToolForms, WhatATemplateWritesIsReadBack) {
  for (const Form& form : forms())
    for (const bool tools : {true, false}) {
      const std::string source = template_of(form, tools);
      const ChatTemplate chat(source);
      const ToolStyle style = style_of(source, chat);
      EXPECT_EQ(int(style.format), int(form.format));
      EXPECT_EQ(style.in_template, tools) << form.forced;
      EXPECT_TRUE(style.shows_calls) << form.forced;
      EXPECT_EQ(style.text_arguments, form.format == ToolFormat::kDeepSeek31);
      for (const auto& calls : conversations())
        for (const size_t piece : {size_t(1), size_t(2), size_t(5), size_t(1) << 20}) {
          const Heard heard = through(chat, style, calls, piece);
          EXPECT_EQ(text_of(heard.calls), expected_of(calls)) << form.forced << " in pieces of " << piece;
          EXPECT_EQ(heard.content, "") << form.forced;
        }
    }
}

TEST(ToolForms, IdsThatModelsGive) {
  const auto ids = [](ToolFormat format, const std::string& text) {
    std::string out;
    for (const ToolCall& call : hear(format, text, 3).calls) out += call.id + " ";
    return out;
  };
  const std::string kimi =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_it:4<|tool_call_argument_begin|>{}<|tool_call_end|>"
      "<|tool_call_begin|>f.g-2:5<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
  EXPECT_EQ(ids(ToolFormat::kKimi, kimi), "functions.get_it:4 f.g-2:5 ");
  EXPECT_EQ(
      ids(ToolFormat::kSolar,
          "<|tool_calls|><|tool_call:begin|>abcdefghi0<|tool_call:name|>get_it<|tool_call:args|>{}<|tool_call:end|>"),
      "abcdefghi0 ");
  for (const Form& form : forms()) {
    const Heard heard = hear(form.format, form.forced, 4);
    ASSERT_EQ(heard.calls.size(), 1u) << form.forced;
    const bool own = form.format == ToolFormat::kKimi || form.format == ToolFormat::kSolar;
    EXPECT_EQ(heard.calls[0].id.starts_with("call_"), !own) << form.forced;
  }
}

TEST(ToolForms, TheWaysOfHarmony) {
  for (const char* text :
       {"<|channel|>commentary to=functions.get_it <|constrain|>json<|message|>{\"s\": \"a\"}<|call|>",
        " to=functions.get_it<|channel|>commentary json<|message|>{\"s\": \"a\"}<|call|>",
        "<|channel|>commentary to=functions.get_it<|message|>{\"s\": \"a\"}"})
    for (const size_t piece : {1, 3, 1000}) {
      const Heard heard = hear(ToolFormat::kHarmony, text, piece);
      EXPECT_EQ(text_of(heard.calls), R"(get_it({"s":"a"}))") << text;
      EXPECT_EQ(heard.content, "") << text;
    }
  const Heard both = hear(
      ToolFormat::kHarmony,
      "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see. <|end|>"
      "<|start|>assistant<|channel|>commentary to=functions.get_it <|constrain|>json<|message|>{\"s\": \"a\"}<|call|>",
      1);
  EXPECT_EQ(text_of(both.calls), R"(get_it({"s":"a"}))");
  EXPECT_EQ(both.content, "I think.Let me see. ");
  EXPECT_EQ(
      hear(ToolFormat::kHarmony, "<|channel|>final<|message|>Write to=functions.x or to=functions.get_it.<|return|>", 1)
          .content,
      "Write to=functions.x or to=functions.get_it.");
}

TEST(ToolForms, MarksOfTurnsAreNoContent) {
  EXPECT_EQ(hear(ToolFormat::kCohere,
                 "<|START_THINKING|>So. <|END_THINKING|><|START_RESPONSE|>Yes <|no|>.<|END_RESPONSE|>", 1)
                .content,
            "So. Yes <|no|>.");
  EXPECT_EQ(hear(ToolFormat::kSolar, "<|think|>So.<|end|><|begin|>assistant<|content|>Yes.<|end|>", 2).content,
            "So.Yes.");
  EXPECT_EQ(
      hear(
          ToolFormat::kKimiTags,
          "So.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
          1)
          .content,
      "So.Yes.");
}

TEST(ToolForms, ValuesAsPythonWritesThem) {
  const auto python = [](const std::string& arguments) {
    const Heard heard = hear(ToolFormat::kLfm, "<|tool_call_start|>[get_it(" + arguments + ")]<|tool_call_end|>", 1);
    return heard.calls.empty() ? "no call" : heard.calls[0].arguments;
  };
  EXPECT_EQ(python(R"(s="it's", i=-1.5e3, b=False, l=[1, 'two', None, (3,)], o={'k': "v", "w": [True]})"),
            R"({"s":"it's","i":-1500.0,"b":false,"l":[1,"two",null,[3]],"o":{"k":"v","w":[true]}})");
  EXPECT_EQ(python(R"(s='a\'b\n\\ \x41\u00e9 \d', t="\t\"")"), R"({"s":"a'b\n\\ Aé \\d","t":"\t\""})");
  EXPECT_EQ(python("s='it's, or )', l=[]"), R"-({"s":"it's, or )","l":[]})-");  // as templates write it
  EXPECT_EQ(python("s = 'a' , "), R"({"s":"a"})");
  for (const char* wrong : {"5", "'a'", "s", "s=", "s=a", "s='a", "s=[1", "s=1 i=2", "s={'a'}", "s=len('a')"})
    EXPECT_EQ(python(wrong), "no call") << wrong;
  EXPECT_EQ(python("s=" + std::string(100, '[') + std::string(100, ']')), "no call");
}

TEST(ToolForms, ValuesAsGemmaWritesThem) {
  const auto gemma = [](const std::string& arguments) {
    const Heard heard = hear(ToolFormat::kGemma, "<|tool_call>call:get_it{" + arguments + "}<tool_call|>", 1);
    return heard.calls.empty() ? "no call" : heard.calls[0].arguments;
  };
  EXPECT_EQ(gemma(R"(s:<|"|>a "b" } <|" \n<|"|>,i:5,b:true,l:[1,<|"|>x<|"|>],o:{k:<|"|>v<|"|>,n:null})"),
            R"({"s":"a \"b\" } <|\" \\n","i":5,"b":true,"l":[1,"x"],"o":{"k":"v","n":null}})");
  EXPECT_EQ(gemma(R"("s":"a")"), R"({"s":"a"})");
  EXPECT_EQ(gemma(""), "{}");
  for (const char* wrong : {"s", "s:", "s:a", R"(s:<|"|>a)", "s:5 i:6", "s:[5", ":5"})
    EXPECT_EQ(gemma(wrong), "no call") << wrong;
}

TEST(ToolForms, WhatIsNoCallIsContent) {
  for (const Form& form : forms()) {
    std::string unknown = form.forced, cut = form.forced.substr(0, form.forced.find("get_it") + 6);
    unknown.replace(unknown.find("get_it"), 6, "get_at");
    for (const std::string& text : {unknown, cut, "See " + cut + " there"})
      for (const size_t piece : {size_t(1), size_t(4), size_t(1) << 20}) {
        const Heard heard = hear(form.format, text, piece);
        EXPECT_TRUE(heard.calls.empty()) << text;
        EXPECT_TRUE(heard.content == text || !syntax_of(form.format).hidden.empty()) << heard.content;
        EXPECT_NE(heard.content.find(text == unknown ? "get_at" : "get_it"), std::string::npos) << heard.content;
      }
  }
}

// A long text in small pieces is looked at once, not once for each piece, whatever the form.
TEST(ToolForms, LongTextsAreReadOnce) {
  const std::string code(1 << 19, '<');
  for (const Form& form : forms()) {
    std::string text = form.forced;
    const size_t at = text.find(form.format == ToolFormat::kGemma      ? ">a<"
                                : form.format == ToolFormat::kLfm      ? "'a'"
                                : form.format == ToolFormat::kKimiTags ? ">a<"
                                : text.find("\"a\"") != text.npos      ? "\"a\""
                                                                       : ">a<");
    ASSERT_NE(at, std::string::npos) << text;
    text.replace(at + 1, 1, code);
    const Heard heard = hear(form.format, text, 4);
    ASSERT_EQ(heard.calls.size(), 1u) << form.forced;
    EXPECT_EQ(Json::parse(heard.calls[0].arguments)["s"].get_ref<const std::string&>().size(), code.size());
  }
}

// Pieces of calls in any order: however the text is cut the same is found.
TEST(ToolForms, AnyTextInAnyPieces) {
  std::mt19937 random(7);
  for (const Form& form : forms()) {
    std::vector<std::string> pieces = {"get_it", "{}", "{\"s\": \"a\"}", "(",    ")", "[",  "]",    ",",
                                       " ",      "\n", "s='a'",          "text", "<", "<|", "f.g-2"};
    const CallSyntax& syntax = syntax_of(form.format);
    for (const std::string_view mark :
         {syntax.open, syntax.close, syntax.each, syntax.name_end, syntax.each_end, syntax.key, syntax.key_end,
          syntax.value_begin, syntax.value_end, syntax.id, syntax.filler, syntax.call, syntax.call_arguments})
      for (int weight = 0; weight < 2 && !mark.empty(); ++weight) pieces.emplace_back(mark);
    for (const std::string_view mark : syntax.hidden) pieces.emplace_back(mark);
    for (int trial = 0; trial < 300; ++trial) {
      std::string text = trial % 3 == 0 ? form.forced : "";
      for (unsigned n = random() % 14; n > 0; --n) text += pieces[random() % pieces.size()];
      const Heard whole = hear(form.format, text, text.size() + 1);
      for (const size_t piece : {1, 2, 3, 7}) {
        const Heard heard = hear(form.format, text, piece);
        EXPECT_EQ(heard.content, whole.content) << text;
        EXPECT_EQ(text_of(heard.calls), text_of(whole.calls)) << text;
      }
    }
  }
}

// The characters of which forced texts are made, in a vocabulary that has them only: random texts end soon.
struct FewLetters {
  std::vector<std::string> bytes;
  Token end;
  std::shared_ptr<const TokenTrie> trie;
  FewLetters() {
    for (char c = ' '; c < 0x7F; ++c) bytes.emplace_back(1, c);
    for (const char* more : {"\n", "é", "｜", "▁"}) bytes.emplace_back(more);
    end = Token(bytes.size());
    bytes.emplace_back("</s>");
    trie = std::make_shared<const TokenTrie>(bytes, std::span(&end, 1), int(bytes.size()));
  }
};

TEST(ToolForms, WhatIsForcedIsRead) {
  static const FewLetters kLetters;
  const Json tools = Json::parse(
      R"([{"type": "function", "function": {"name": "get_it", "parameters": {"type": "object", "properties": {
      "s": {"type": "string"}, "i": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "boolean"}, "c": {"enum": ["x y", "it's \"q\""]},
      "l": {"type": "array", "items": {"type": "integer", "maximum": 9, "minimum": 1}, "minItems": 1, "maxItems": 3},
      "m": {"type": ["string", "null"]}, "o": {"type": "object", "properties": {"k": {"type": "string"}, "n": {"type": ["boolean", "null"]}},
      "required": ["n"]}}, "required": ["i", "l"]}}},
      {"type": "function", "function": {"name": "f.g-2", "parameters": {"type": "object", "properties": {}}}}])");
  std::mt19937 random(3);
  for (const Form& form : forms()) {
    const std::string grammar = tool_grammar(form.format, Json::parse(kTools));
    GrammarMatcher fixed(grammar, kLetters.trie);
    EXPECT_TRUE(matches(fixed, form.forced)) << form.forced << "\n" << grammar;
    EXPECT_FALSE(matches(fixed, form.forced + form.forced));
    EXPECT_FALSE(matches(fixed, ""));
    GrammarMatcher matcher(tool_grammar(form.format, tools), kLetters.trie);
    int ended = 0;
    for (int walk = 0; walk < 40; ++walk) {
      std::string text;
      auto state = matcher.start();
      for (int step = 0; step < 1500 && !matcher.must_end(state); ++step) {
        const GrammarMask mask = matcher.mask(state);
        std::vector<Token> allowed, closing;
        for (Token t = 0; t < kLetters.end; ++t)
          if (allows(mask, t))
            (std::string_view("<>|/\"'}])").find(kLetters.bytes[size_t(t)]) != std::string_view::npos ? closing
                                                                                                      : allowed)
                .push_back(t);
        if (allowed.empty() || (!closing.empty() && random() % 3 == 0)) allowed = closing;
        ASSERT_FALSE(allowed.empty()) << text;
        const Token chosen = allowed[random() % allowed.size()];
        text += kLetters.bytes[size_t(chosen)];
        state = matcher.advance(state, chosen);
      }
      if (!matcher.must_end(state)) continue;
      ++ended;
      const Heard heard = hear(form.format, text, 1 + random() % 9);
      ASSERT_EQ(heard.calls.size(), 1u) << text;
      EXPECT_EQ(heard.content, "") << text;
      const Json found = Json::parse(heard.calls[0].arguments);
      if (heard.calls[0].name != "get_it") continue;
      EXPECT_TRUE(found.at("i").is_number_integer() && found["i"] >= 0 && found["i"] <= 99) << text;
      EXPECT_TRUE(found.at("l").is_array() && found["l"].size() >= 1 && found["l"].size() <= 3) << text;
      EXPECT_TRUE(!found.contains("s") || found["s"].is_string()) << text;
      EXPECT_TRUE(!found.contains("m") || found["m"].is_string() || found["m"].is_null()) << text;
      EXPECT_TRUE(!found.contains("c") || found["c"] == "x y" || found["c"] == "it's \"q\"") << text;
      EXPECT_TRUE(!found.contains("o") ||
                  (found["o"].is_object() && (found["o"].at("n").is_boolean() || found["o"]["n"].is_null())))
          << text;
    }
    EXPECT_GT(ended, 20) << form.forced;
  }
}

TEST(ToolForms, WhatCannotBeForcedIsNamed) {
  const auto tool = [](const std::string& parameters) {
    return Json::array(
        {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Json::parse(parameters)}}}}});
  };
  for (const ToolFormat format : {ToolFormat::kGemma, ToolFormat::kLfm, ToolFormat::kDeepSeek32, ToolFormat::kKimiTags})
    for (const char* wrong :
         {R"({"type": "object", "properties": {"s": {"type": "string", "pattern": "a"}}})", R"({"type": "array"})",
          R"({"type": "object", "properties": {"s": {"$ref": "#/nowhere"}}})",
          R"({"type": "object", "properties": {"a>b": {"type": "string"}}})", R"({"anyOf": [{"type": "object"}]})"})
      EXPECT_THROW(tool_grammar(format, tool(wrong)), Error) << wrong;
  const char* recursive =
      R"({"type": "object", "properties": {"o": {"$ref": "#/$defs/O"}}, "$defs": {"O": {"type": "object", "properties": {"o": {"$ref": "#/$defs/O"}}}}})";
  for (const ToolFormat format : {ToolFormat::kGemma, ToolFormat::kLfm})
    EXPECT_THROW(tool_grammar(format, tool(recursive)), Error);
}

// Marks that the vocabulary has as control tokens are forced as such, in every form.
TEST(ToolForms, ForcedMarksAreControlTokens) {
  for (const Form& form : forms()) {
    const CallSyntax& syntax = syntax_of(form.format);
    std::string mark(syntax.open.empty() ? syntax.each : syntax.open);
    mark = mark.substr(0, mark.find('>') + 1);
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, char(b));
    const Token end = 256, control = 257;
    bytes.resize(258);
    GrammarMatcher matcher(tool_grammar(form.format, Json::parse(kTools)),
                           std::make_shared<const TokenTrie>(bytes, std::span(&end, 1), 258, TokenTrie::Encode(),
                                                             TokenTrie::Control{{control, mark}}));
    const GrammarMask mask = matcher.mask(matcher.start());
    EXPECT_TRUE(allows(mask, control)) << mark;
    EXPECT_FALSE(allows(mask, Token(uint8_t(mark[0])))) << mark;
  }
}

TEST(ToolForms, StylesOfOddTemplates) {
  const std::string calls = forms()[3].calls;  // with the arguments as text
  const auto style = [&](const std::string& before, const std::string& around) {
    const std::string source =
        before + "{% for m in messages %}({{ m.role }}){% if m.tool_calls %}" + around + "{% endif %}{% endfor %}";
    return style_of(source, ChatTemplate(source));
  };
  // It fails with tools and works without: they are told.
  ToolStyle found = style("{% if tools %}{{ raise_exception('no') }}{% endif %}", calls);
  EXPECT_TRUE(found.format == ToolFormat::kDeepSeek31 && !found.in_template && found.shows_calls &&
              found.text_arguments);
  // It always fails: it is taken at its word.
  found = style("{{ raise_exception('no') if messages }}{{ tools }}", calls);
  EXPECT_TRUE(found.format == ToolFormat::kDeepSeek31 && found.in_template && !found.shows_calls);
  // It names the marks and shows neither tools nor calls: both are told, in the form of Hermes.
  found = style("", "<｜tool▁calls▁begin｜>");
  EXPECT_TRUE(found.format == ToolFormat::kHermes && !found.in_template && !found.shows_calls);
  // An empty content would be another turn.
  EXPECT_TRUE(
      style("", calls + "{% if m.content is not none %}<end>(assistant){{ m.content }}{% endif %}").null_content);
  EXPECT_FALSE(style("", calls + "{{ m.content }}").null_content);  // would show None
}

TEST(ToolForms, ToldInTheModelsForm) {
  // The template shows calls but no tools: they are told in the system message with the form that the model knows.
  for (const Form& form : forms()) {
    const std::string source = template_of(form, false);
    const ToolStyle style = style_of(source, ChatTemplate(source));
    Json messages = Json::parse(
        R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": []}, {"role": "tool", "content": "42"}])");
    tell_tools(messages, Json::parse(kTools), style);
    ASSERT_EQ(messages.size(), 4u);
    EXPECT_EQ(messages[2]["role"], "assistant");
    EXPECT_EQ(messages[3]["role"], "tool");  // left to the template
    const std::string text = messages[0]["content"];
    const size_t at = text.find("in this form:\n");
    ASSERT_NE(at, std::string::npos);
    ToolParser parser(form.format, {"NAME"}, true);
    ToolParser::Output out = parser.add(text.substr(at + 14)), rest = parser.finish();
    out.parts.insert(out.parts.end(), rest.parts.begin(), rest.parts.end());
    ASSERT_EQ(out.calls().size(), 1u) << text;
    EXPECT_EQ(out.calls()[0].arguments, R"({"ARGUMENT":"VALUE"})");
  }
}

// Every template that is given in a folder, for those who have published ones: each is read back, or is known to have
// no form of its own.
TEST(ToolForms, PublishedTemplates) {
  const char* shared = std::getenv("SPECEXTEND_SHARED");
  const std::filesystem::path folder =
      (shared ? std::filesystem::path(shared) : std::filesystem::path(SX_SOURCE_DIR).parent_path() / "shared") /
      "data/chat_templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string name = entry.path().filename().string();
    std::stringstream source;
    source << std::ifstream(entry.path()).rdbuf();
    const ChatTemplate chat(source.str(), {"<s>", "</s>"});
    const ToolStyle style = style_of(source.str(), chat);
    if (std::getenv("SX_SHOW_FORMS"))
      std::printf("%-60s form %2d, shows tools %d, calls %d, text arguments %d, null content %d\n", name.c_str(),
                  int(style.format), style.in_template, style.shows_calls, style.text_arguments, style.null_content);
    if (!style.in_template && !style.shows_calls) {
      EXPECT_EQ(name, "google-gemma-2-2b-it.jinja");
      continue;
    }
    for (const auto& calls : conversations()) {
      // Some show one call only, or refuse several.
      std::vector<std::vector<std::pair<std::string, Json>>> tried = {calls};
      if (name.find("gpt-oss") != name.npos || name.find("GigaChat") != name.npos ||
          name.find("meta-llama") != name.npos)
        tried = {{calls[0]}};
      for (const auto& some : tried)
        for (const size_t piece : {size_t(1), size_t(1) << 20}) {
          try {
            const Heard heard = through(chat, style, some, piece);
            EXPECT_EQ(text_of(heard.calls), expected_of(some)) << name << " in pieces of " << piece;
            if (std::getenv("SX_SHOW_FORMS")) std::printf("  content %s\n", Json(heard.content).dump().c_str());
          } catch (const Error& e) { ADD_FAILURE() << name << ": " << e.what(); }
        }
    }
  }
}

}  // namespace
}  // namespace sx::server
