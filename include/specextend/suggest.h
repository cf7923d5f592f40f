// "Did you mean ...?": finds the known word nearest to a misspelt one.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace sx {

// The number of letters to insert, drop, replace, or swap with their neighbour, to turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);
// Returns the nearest of `known`, the first among equals; nothing where more than a third of the letters (at most
// three) differ.
std::string nearest_word(std::string_view word, std::span<const std::string> known);
// "; did you mean --spec?", or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace sx
