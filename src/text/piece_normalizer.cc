// The compiled map is a double-array trie: the child of a node for a byte stands at (offset of the node) ^ byte and
// stores that byte.
#include "text/piece_normalizer.h"

#include "base/error.h"
#include "text/unicode.h"

namespace sx {
namespace {

constexpr uint32_t kTop = uint32_t{1} << 31;

uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & (1u << 9)) >> 6); }
bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t label_of(uint32_t unit) { return unit & (kTop | 0xFF); }

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

}  // namespace

PieceNormalizer::PieceNormalizer(const SentencePieceModel& model, bool dummy_prefix, const std::string& file)
    : dummy_prefix_(dummy_prefix), remove_extra_(model.remove_extra_spaces), escape_(model.escape_spaces) {
  const std::string_view map = model.character_map;
  if (!map.empty()) {
    const size_t size = map.size() < 4 ? SIZE_MAX : little_endian(map, 0);
    if (size % 4 != 0 || size == 0 || size > map.size() - 4) fail("{}: the compiled character map is malformed", file);
    for (size_t at = 4; at < 4 + size; at += 4) map_.push_back(little_endian(map, at));
    replacements_ = map.substr(4 + size);
    if (replacements_.empty() || replacements_.back() != '\0') replacements_ += '\0';
    if (!utf8_is_valid(replacements_)) fail("{}: the compiled character map gives malformed text", file);
  }
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type != TokenType::kUserDefined) continue;
    untouched_.insert(model.pieces[i].text, static_cast<int32_t>(i));
    any_untouched_ = true;
  }
}

PieceNormalizer::Step PieceNormalizer::longest_in_map(std::string_view text) const {
  Step best{{}, 0};
  if (map_.empty()) return best;
  uint32_t at = offset_of(map_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (at >= map_.size() || label_of(map_[at]) != byte) break;
    const uint32_t unit = map_[at];
    at ^= offset_of(unit);
    if (!has_value(unit)) continue;
    if (at >= map_.size()) break;
    const size_t value = map_[at] & ~kTop;
    if (value >= replacements_.size()) break;
    best = {std::string_view(replacements_.c_str() + value), i + 1};
  }
  return best;
}

PieceNormalizer::Step PieceNormalizer::step(std::string_view text) const {
  if (any_untouched_) {
    size_t longest = 0;
    uint32_t node = ByteTrie::kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      node = untouched_.child(node, static_cast<unsigned char>(text[i]));
      if (node == ByteTrie::kNone) break;
      if (untouched_.value(node) >= 0) longest = i + 1;
    }
    if (longest > 0) return {text.substr(0, longest), longest};
  }
  const Step mapped = longest_in_map(text);
  if (mapped.length > 0) return mapped;
  const size_t length = utf8_step(text, 0).length;
  return {text.substr(0, length), length};
}

std::string PieceNormalizer::apply(std::string_view valid_utf8) const {
  std::string_view rest = valid_utf8;
  const std::string_view space = escape_ ? kMetaspace : std::string_view(" ");
  std::string out;
  if (remove_extra_) {
    while (!rest.empty()) {
      const Step first = step(rest);
      if (first.text != " ") break;
      rest.remove_prefix(first.length);
    }
  }
  if (rest.empty()) return out;
  if (dummy_prefix_) out += space;
  bool behind_space = remove_extra_;
  while (!rest.empty()) {
    const Step next = step(rest);
    std::string_view text = next.text;
    while (behind_space && text.starts_with(' ')) text.remove_prefix(1);
    for (char c : text) {
      if (c == ' ') out += space;
      else out += c;
    }
    if (!text.empty()) behind_space = remove_extra_ && text.ends_with(' ');
    rest.remove_prefix(next.length);
  }
  while (remove_extra_ && out.ends_with(space)) out.resize(out.size() - space.size());
  // A map may cut through characters; the later steps need valid UTF-8.
  return map_.empty() || utf8_is_valid(out) ? out : utf8_lossy(out);
}

}  // namespace sx
