// Bodies are compiled from their end to their beginning, so that what follows a part is known when its nodes are made.
#include "text/grammar/program.h"

#include <algorithm>
#include <array>
#include <bitset>

#include "base/error.h"
#include "text/unicode.h"

namespace sx {
namespace {

using OpKind = GrammarProgram::Kind;
using Edge = GrammarProgram::Edge;
using Range = GrammarPart::Range;

constexpr size_t kMaxNodes = 1 << 19;

// Characters whose UTF-8 has equal length and whose bytes range freely between low and high.
struct Sequence {
  std::array<uint8_t, 4> low, high;
  int length;
};

// Cuts a range until every piece is one Sequence: at the borders of lengths, then where a tail of bytes is not free.
void cut(Range r, std::vector<Sequence>& out) {
  for (char32_t border : {0x7Fu, 0x7FFu, 0xFFFFu})
    if (r.first <= border && r.last > border) return cut({r.first, border}, out), cut({border + 1, r.last}, out);
  std::string low, high;
  utf8_append(low, r.first), utf8_append(high, r.last);
  for (size_t tail = 1; tail < low.size(); ++tail) {
    const char32_t mask = (char32_t(1) << (6 * tail)) - 1;
    if ((r.first & ~mask) == (r.last & ~mask)) continue;
    if (r.first & mask) return cut({r.first, r.first | mask}, out), cut({(r.first | mask) + 1, r.last}, out);
    if ((r.last & mask) != mask) return cut({r.first, (r.last & ~mask) - 1}, out), cut({r.last & ~mask, r.last}, out);
  }
  Sequence s{{}, {}, int(low.size())};
  for (size_t i = 0; i < low.size(); ++i) s.low[i] = uint8_t(low[i]), s.high[i] = uint8_t(high[i]);
  out.push_back(s);
}

class Compiler {
 public:
  Compiler(const GrammarRules& rules, const std::function<size_t(std::string_view)>& control_at)
      : rules_(rules), control_at_(control_at) {}

  GrammarProgram compile() {
    add({OpKind::kReturn});
    for (size_t i = 0; i < rules_.bodies.size(); ++i) add({OpKind::kCall});  // a place for each rule; set below
    for (size_t i = 0; i < rules_.bodies.size(); ++i) {
      program_.rule_nodes.push_back(uint32_t(program_.nodes.size()));
      const uint32_t body = part(rules_.bodies[i], GrammarProgram::kReturnNode);
      program_.nodes[1 + i] = {OpKind::kCall, body, 0, GrammarProgram::kReturnNode};
    }
    program_.rule_nodes.push_back(uint32_t(program_.nodes.size()));
    program_.rule_names = rules_.names;
    program_.start = rule(rules_.root);
    classify();
    return std::move(program_);
  }

 private:
  static uint32_t rule(int id) { return uint32_t(1 + id); }

  uint32_t add(GrammarProgram::Node node) {
    if (program_.nodes.size() + program_.edges.size() >= kMaxNodes)
      fail("grammar: too large: more than {} symbols", kMaxNodes);
    program_.nodes.push_back(node);
    return uint32_t(program_.nodes.size() - 1);
  }

  uint32_t part(const GrammarPart& p, uint32_t next) {
    switch (p.kind) {
      case GrammarPart::Kind::kLiteral: return literal(p.control ? with_control(p.bytes) : p.bytes, next);
      case GrammarPart::Kind::kClass: return char_class(p.ranges, next);
      case GrammarPart::Kind::kRule: return add({OpKind::kCall, rule(p.rule), 0, next});
      case GrammarPart::Kind::kRepeat: {
        if (p.most == 0) return next;
        const uint32_t body = part(p.parts[0], GrammarProgram::kReturnNode);
        return add({OpKind::kRepeat, body, 0, next, p.least, p.most});
      }
      case GrammarPart::Kind::kSequence:
        for (size_t i = p.parts.size(); i-- > 0;) next = part(p.parts[i], next);
        return next;
      case GrammarPart::Kind::kChoice: break;
    }
    std::vector<uint32_t> targets;
    for (const GrammarPart& one : p.parts) targets.push_back(part(one, next));
    std::sort(targets.begin(), targets.end());  // several may be empty and lead to the same node
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    const auto first = uint32_t(program_.targets.size());
    program_.targets.insert(program_.targets.end(), targets.begin(), targets.end());
    return add({OpKind::kChoice, first, uint32_t(targets.size())});
  }

  uint32_t literal(const std::string& text, uint32_t next) {
    for (size_t i = text.size(); i-- > 0;) {
      const Edge edge{uint8_t(text[i]), uint8_t(text[i]), next};
      next = bytes({&edge, 1});
    }
    return next;
  }

  // A text as the machine's bytes, its control tokens marked as such.
  std::string with_control(std::string_view text) const {
    std::string out;
    while (!text.empty()) {
      const size_t length = control_at_ ? control_at_(text) : 0;
      const std::string_view part = text.substr(0, std::max<size_t>(length, 1));
      if (length > 0) out += kControlByte;
      out += part;
      if (length > 0) out += kControlByte;
      text.remove_prefix(part.size());
    }
    return out;
  }

  uint32_t bytes(std::span<const Edge> edges) {
    const auto first = uint32_t(program_.edges.size());
    program_.edges.insert(program_.edges.end(), edges.begin(), edges.end());
    return add({OpKind::kBytes, first, uint32_t(edges.size())});
  }

  uint32_t char_class(const std::vector<Range>& ranges, uint32_t next) {
    std::vector<Sequence> sequences;
    for (Range r : ranges) cut(r, sequences);
    return tails(sequences, 0, next);
  }

  // Sequences that agree in their first `at` bytes. They ascend, and where two share part of a byte's range they share
  // all of it.
  uint32_t tails(std::span<const Sequence> sequences, size_t at, uint32_t next) {
    std::vector<Edge> edges;
    while (!sequences.empty()) {
      const Sequence& s = sequences[0];
      size_t same = 1;
      while (same < sequences.size() && sequences[same].low[at] == s.low[at]) ++same;
      const uint32_t to = size_t(s.length) == at + 1 ? next : tails(sequences.first(same), at + 1, next);
      edges.push_back({s.low[at], s.high[at], to});
      sequences = sequences.subspan(same);
    }
    return bytes(edges);
  }

  // Each range of an edge splits the classes it cuts through.
  void classify() {
    std::bitset<256 * 256> known;
    for (const Edge& edge : program_.edges) {
      if (program_.classes == 256) break;
      const size_t range = size_t(edge.low) * 256 + edge.high;
      if (known[range]) continue;
      known[range] = true;
      std::array<bool, 256> outside{};
      std::array<int, 256> split;
      split.fill(-1);
      for (int b = 0; b < 256; ++b)
        if (b < edge.low || b > edge.high) outside[program_.class_of[size_t(b)]] = true;
      for (int b = edge.low; b <= edge.high; ++b) {
        uint8_t& own = program_.class_of[size_t(b)];
        if (!outside[own]) continue;
        int& inside = split[own];
        if (inside < 0) inside = program_.classes++;
        own = uint8_t(inside);
      }
    }
  }

  const GrammarRules& rules_;
  const std::function<size_t(std::string_view)>& control_at_;
  GrammarProgram program_;
};

}  // namespace

const GrammarProgram::Edge* GrammarProgram::edge(const Node& node, uint8_t byte) const {
  const auto all = edges_of(node);
  const auto found = std::partition_point(all.begin(), all.end(), [&](const Edge& e) { return e.high < byte; });
  return found != all.end() && found->low <= byte ? &*found : nullptr;
}

size_t GrammarProgram::rule_of(uint32_t node) const {
  if (node < rule_nodes[0]) return node > 0 ? node - 1 : 0;  // a rule's own place
  return size_t(std::upper_bound(rule_nodes.begin(), rule_nodes.end(), node) - rule_nodes.begin()) - 1;
}

GrammarProgram compile_grammar(const GrammarRules& rules, const std::function<size_t(std::string_view)>& control_at) {
  return Compiler(rules, control_at).compile();
}

}  // namespace sx
