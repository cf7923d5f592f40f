// What a grammar must be for the matcher: no rule may begin with itself, and its root must describe some finite text.
#pragma once
#include "text/grammar/gbnf.h"

namespace sx {

void check_grammar(const GrammarRules& rules);  // throws sx::Error naming the rules

}  // namespace sx
