// How models write tool calls, as data: one row for each format. Marks are as a model writes them, with their line breaks; whoever reads
// calls goes by the marks without white space around them.
#pragma once
#include <string_view>
#include <vector>

#include "server/tools.h"

namespace sx::server {

struct CallSyntax {
  enum class Body {
    kJson,        // open {"name": ..., "arguments": {...}} close, or a list of such objects
    kNamed,       // open (each NAME name_end {...} each_end)+ close
    kParameters,  // open (each NAME name_end (key KEY key_end value_begin VALUE value_end)* each_end)+ close
  };
  ToolFormat format;
  Body body;
  std::vector<std::string_view> signs{};  // all of them in a template's source: it writes calls like this
  std::string_view open{}, close{};
  bool list = false;                      // kJson: a call stands in a list
  std::string_view each{}, name_end{}, each_end{};
  std::string_view key{}, key_end{}, value_begin{}, value_end{};
  bool breaks = false;                    // kParameters: a line break before and after a value is not part of it
  std::string_view id{};                  // kNamed: an id may stand behind this mark, before name_end
  bool writes_id = false;                 // and the model writes one
  bool control = true;                    // its marks are control tokens of the vocabulary, which must be shown
};

const CallSyntax& syntax_of(ToolFormat format);
bool is_name_byte(char c);  // of a function's name

}  // namespace sx::server
