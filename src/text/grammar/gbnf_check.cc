#include "text/grammar/gbnf_check.h"

#include "base/error.h"

namespace sx {
namespace {

using Kind = GrammarPart::Kind;

// Whether a part holds, given of which rules it is known: that it can be empty, or that it has an end at all.
bool holds(const GrammarPart& part, const std::vector<bool>& rules, bool empty) {
  switch (part.kind) {
    case Kind::kLiteral: return !empty || part.bytes.empty();
    case Kind::kClass: return !empty;
    case Kind::kRule: return rules[size_t(part.rule)];
    case Kind::kRepeat: return part.least == 0 || holds(part.parts[0], rules, empty);
    case Kind::kSequence:
      for (const GrammarPart& p : part.parts)
        if (!holds(p, rules, empty)) return false;
      return true;
    case Kind::kChoice: break;
  }
  for (const GrammarPart& p : part.parts)
    if (holds(p, rules, empty)) return true;
  return false;
}

// Rules a part may begin with.
void add_first(const GrammarPart& part, const std::vector<bool>& empty, std::vector<int>& first) {
  if (part.kind == Kind::kRule) first.push_back(part.rule);
  if (part.kind == Kind::kRepeat && part.most == 0) return;
  for (const GrammarPart& p : part.parts) {
    add_first(p, empty, first);
    if (part.kind == Kind::kSequence && !holds(p, empty, true)) return;
  }
}

void add_rules(const GrammarPart& part, std::vector<int>& used) {
  if (part.kind == Kind::kRule) used.push_back(part.rule);
  for (const GrammarPart& p : part.parts) add_rules(p, used);
}

// The rules of which it holds: each is looked at again when a rule it uses has changed.
std::vector<bool> fixpoint(const GrammarRules& rules, bool empty) {
  const size_t n = rules.bodies.size();
  std::vector<std::vector<int>> users(n);
  std::vector<int> used, todo;
  for (size_t i = 0; i < n; ++i) {
    used.clear();
    add_rules(rules.bodies[i], used);
    for (int u : used)
      if (users[size_t(u)].empty() || users[size_t(u)].back() != int(i)) users[size_t(u)].push_back(int(i));
    todo.push_back(int(i));
  }
  std::vector<bool> known(n, false);
  while (!todo.empty()) {
    const size_t i = size_t(todo.back());
    todo.pop_back();
    if (known[i] || !holds(rules.bodies[i], known, empty)) continue;
    known[i] = true;
    todo.insert(todo.end(), users[i].begin(), users[i].end());
  }
  return known;
}

// Depth first with a stack of our own: chains of rules may be long.
void refuse_left_recursion(const GrammarRules& rules) {
  const std::vector<bool> empty = fixpoint(rules, true);
  struct Visit {
    int rule;
    std::vector<int> first;
    size_t next;
  };
  enum { kNew, kOpen, kDone };
  std::vector<char> state(rules.bodies.size(), kNew);
  std::vector<Visit> path;
  const auto open = [&](int rule) {
    state[size_t(rule)] = kOpen;
    path.push_back({rule, {}, 0});
    add_first(rules.bodies[size_t(rule)], empty, path.back().first);
  };
  for (size_t start = 0; start < rules.bodies.size(); ++start) {
    if (state[start] == kNew) open(int(start));
    while (!path.empty()) {
      Visit& top = path.back();
      if (top.next == top.first.size()) {
        state[size_t(top.rule)] = kDone;
        path.pop_back();
        continue;
      }
      const int rule = top.first[top.next++];
      if (state[size_t(rule)] == kNew) open(rule);
      else if (state[size_t(rule)] == kOpen) {
        size_t from = path.size();
        while (path[from - 1].rule != rule) --from;
        std::string circle;
        constexpr size_t kShown = 16;
        for (size_t i = from - 1; i < path.size() && i < from - 1 + kShown; ++i)
          circle += rules.names[size_t(path[i].rule)] + " -> ";
        if (path.size() - (from - 1) > kShown) circle += "... -> ";
        fail("grammar: a rule may not begin with itself: {}{}", circle, rules.names[size_t(rule)]);
      }
    }
  }
}

}  // namespace

void check_grammar(const GrammarRules& rules) {
  refuse_left_recursion(rules);
  if (!fixpoint(rules, false)[size_t(rules.root)]) fail("grammar: no text of the rule root ever ends");
}

}  // namespace sx
