// Arguments that a model writes all at once: in JSON, as Python would, or in Gemma's notation. Where they end in a text
// that comes in pieces, what they are, and how a value is written.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/tool_syntax.h"

namespace sx::server {

// The mark before and after a text in Gemma's notation.
inline constexpr std::string_view kGemmaQuote = "<|\"|>";

// Where the value between brackets that begins at `begin` ends; npos: not yet. Goes on where it stopped the last time.
size_t scan_value(std::string_view text, size_t begin, CallSyntax::Notation notation, ValueScan& scan);

// The arguments that scan_value has found, as an object; discarded where they are broken.
nlohmann::ordered_json read_arguments(std::string_view text, CallSyntax::Notation notation);

// A value, or a key, as a model would write it.
std::string write_value(const nlohmann::ordered_json& value, CallSyntax::Notation notation);
// What stands before the value of `key`; `top`: of an argument, not of a value's member.
std::string write_key(const std::string& key, CallSyntax::Notation notation, bool top);

}  // namespace sx::server
