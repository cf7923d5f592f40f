// A grammar as a machine over bytes with a stack: each rule is a small graph of nodes. Characters are spelled out in
// UTF-8, so that a token may end anywhere inside one. Repetitions are counted on the stack and cost the same whatever
// their limits.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "text/grammar/gbnf.h"

namespace sx {

struct GrammarProgram {
  enum class Kind : uint8_t {
    kBytes,   // one byte of the edges [first, first + count), each with its next node
    kChoice,  // any of the targets [first, first + count)
    kCall,    // node `first`, then `next`
    kRepeat,  // node `first`, least to most times, then `next`
    kReturn,
  };
  struct Node {
    Kind kind;
    uint32_t first = 0, count = 0, next = 0;
    uint32_t least = 0, most = 0;
  };
  struct Edge {
    uint8_t low, high;  // ascending and apart within a node
    uint32_t next;
  };
  static constexpr uint32_t kReturnNode = 0;

  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<uint32_t> targets;
  uint32_t start = 0;
  // Bytes that no edge tells apart are one class.
  std::array<uint8_t, 256> class_of{};
  int classes = 1;
  // The nodes made for each rule are neighbours: those of rule i are [rule_nodes[i], rule_nodes[i + 1]).
  std::vector<std::string> rule_names;
  std::vector<uint32_t> rule_nodes;

  std::span<const Edge> edges_of(const Node& node) const { return {edges.data() + node.first, node.count}; }
  // The edge that takes a byte; null: none does.
  const Edge* edge(const Node& node, uint8_t byte) const;
  // The rule whose body a node was made for.
  size_t rule_of(uint32_t node) const;
};

// In the machine's bytes a control token is its text between two of these. UTF-8 has no such byte, so nothing else can
// be meant.
inline constexpr char kControlByte = '\xFF';

// `control_at`: the length of the longest control token's text that a text begins with, 0: it begins with none.
// Throws sx::Error when the program becomes too large.
GrammarProgram compile_grammar(const GrammarRules& rules,
                               const std::function<size_t(std::string_view)>& control_at = {});

}  // namespace sx
