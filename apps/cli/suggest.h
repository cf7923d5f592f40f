// "Did you mean ...?": the known word that a misspelt one is nearest to.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace sx::cli {

// Letters to insert, drop, replace, or swap with their neighbour, to make `b` of `a`.
int edit_distance(std::string_view a, std::string_view b);
// The nearest of `known`, the first among equals; empty where none is near: more than a third of the letters wrong, at most three.
std::string nearest_word(std::string_view word, std::span<const std::string> known);
// "; did you mean --spec?", or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace sx::cli
