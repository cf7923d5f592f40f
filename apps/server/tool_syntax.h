// How models write tool calls, as data: one row for each format (tool_forms.cc). Marks are as a model writes them, with
// their line breaks; whoever reads calls goes by the marks without white space around them.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/tools.h"

namespace sx::server {

struct CallSyntax {
  enum class Body {
    kJson,        // open {"name": ..., "arguments": {...}} close, or a list of such objects
    kNamed,       // open (each NAME name_end ARGUMENTS each_end)+ close, arguments in the row's notation
    kParameters,  // open (each NAME name_end (key KEY key_end value_begin VALUE value_end)* each_end)+ close
  };
  // How the arguments of kNamed are written.
  enum class Notation {
    kJson,
    kPython,  // (KEY=VALUE, ...), values as Python writes them
    kGemma,   // {KEY:VALUE,...}, keys without quotes, texts between two marks <|"|>
  };
  // kParameters: what stands between key_end and value_begin.
  enum class Kind {
    kNone,
    kIsText,  // true: the value is a text as it is; false: it is JSON
    kType,    // string: the value is a text as it is; number, boolean, null, array, object: it is JSON
  };
  enum class Id {
    kNone,
    kGiven,     // the call's id is what the model writes
    kWithName,  // it is the name, with what stands before it, the mark and the number that the model writes
    kIgnored,   // a number that means nothing beyond this answer
  };
  ToolFormat format;
  Body body;
  std::vector<std::string_view>
      signs{};  // all of them in a template's source, or in what it makes of a call: it writes calls like this
  std::string_view open{}, close{};
  // kJson: a call as the model writes it. Whoever reads takes any white space, and some other names for the keys.
  std::string_view list_begin{}, call = R"({"name": ")", call_arguments = R"(", "arguments": )", call_end = "}",
                                 list_end{};
  bool keyed = false;                                             // kJson: a call is {NAME: ARGUMENTS}
  std::string_view each{}, name_begin{}, name_end{}, each_end{};  // name_begin may be missing in what is read
  std::string_view filler{};     // between the name and name_end; in what is read there may be anything
  std::string_view separator{};  // of calls that have no mark `each`
  Notation notation = Notation::kJson;
  std::string_view key{}, key_end{}, value_begin{}, value_end{};
  Kind kind = Kind::kNone;
  bool breaks = false;  // kParameters: a line break before and after a value is not part of it
  Id id_use = Id::kNone;
  std::string_view
      id{};  // an id may stand behind this mark, before name_end; if id_first, before this mark and the name
  bool id_first = false;
  std::string_view id_form{};  // GBNF of an id as the model writes it; empty: it writes none
  std::vector<std::string_view>
      hidden{};         // control tokens, with the words that belong to them, that are no part of what the model says
  bool control = true;  // its marks are control tokens of the vocabulary, which must be shown
};

std::span<const CallSyntax> call_syntaxes();  // where the signs of several are in a template, the first is meant
const CallSyntax& syntax_of(ToolFormat format);
bool is_name_byte(char c);               // of a function's name
std::string call_id(ToolFormat format);  // a new one

// What stands around the name and the arguments of a call: before NAME between ARGUMENTS after.
struct CallFrame {
  std::string before, between, after;
};
CallFrame frame_of(const CallSyntax& syntax);

}  // namespace sx::server
