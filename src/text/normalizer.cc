// The normalisation steps, one small function each.
#include "text/normalizer.h"

#include "text/piece_normalizer.h"

namespace sx {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string replace_all(const std::string& text, const NormalizeReplace& step, RegexScratch& scratch) {
  std::string out;
  size_t done = 0;
  if (!step.literal.empty()) {
    for (size_t at; (at = text.find(step.literal, done)) != std::string::npos; done = at + step.literal.size()) {
      out.append(text, done, at - done);
      out += step.content;
    }
  } else {
    Regex::Match match{};
    for (size_t end = std::string::npos; step.pattern.find_next(text, end, scratch, match); end = match.end) {
      out.append(text, done, match.begin - done);
      out += step.content;
      done = match.end;
    }
  }
  out.append(text, done);
  return out;
}

}  // namespace

void Normalizer::add(NormalizeStep step) { steps_.push_back(std::move(step)); }

std::string Normalizer::apply(std::string_view valid_utf8, RegexScratch& scratch) const {
  std::string text(valid_utf8);
  for (const NormalizeStep& step : steps_) {
    std::visit(Overloaded{
                   [&](const NormalizeForm& s) { text = normalize(text, s.form); },
                   [&](const NormalizeLower&) { text = lower_case(text); },
                   [&](const NormalizePrepend& s) {
                     if (!text.empty()) text.insert(0, s.text);
                   },
                   [&](const NormalizeReplace& s) { text = replace_all(text, s, scratch); },
                   [&](const NormalizeStrip& s) {
                     if (s.right) text.resize(text.size() - white_space_suffix(text));
                     if (s.left) text.erase(0, white_space_prefix(text));
                   },
                   [&](const NormalizePieces& s) { text = s.how->apply(text); },
               },
               step);
  }
  return text;
}

}  // namespace sx
