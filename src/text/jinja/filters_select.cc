// Lazy filters that apply other filters and tests (map, select ...), and the lookup of filters by name.
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/jinja/key.h"
#include "text/jinja/ops.h"

namespace sx::jinja {

namespace {

using Next = IteratorObject::Next;

// For a falsy input (none, an empty list, undefined) Jinja2 does not look at the arguments.
Next nothing() {
  return [](Value&) { return false; };
}

Next map_items(Interpreter& interpreter, const Value& input, Args args) {
  if (!truth(input)) return nothing();
  if (args.positional.empty()) {
    auto slots = bind("map", args, {"attribute", "default"});
    if (!slots[0]) raise("map requires a filter argument");
    const Key key(interpreter, slots[0], false, slots[1]);
    return [next = iterate(input), key](Value& out) {
      if (!next(out)) return false;
      out = key(out);
      return true;
    };
  }
  const std::string name = need_text(args.positional[0], "the filter name of map");
  args.positional.erase(args.positional.begin());
  return [next = iterate(input), &interpreter, name, args](Value& out) {
    if (!next(out)) return false;
    Args copy = args;
    out = interpreter.apply_filter(name, out, copy);
    return true;
  };
}

Value map(Interpreter& interpreter, const Value& input, Args& args) {
  return make_generator([&interpreter, input, args] { return map_items(interpreter, input, args); });
}

// select, reject, selectattr and rejectattr: `wanted` is the outcome that keeps an item.
Next choose_items(Interpreter& interpreter, const Value& input, Args args, bool wanted, bool by_attribute) {
  if (!truth(input)) return nothing();
  std::optional<Value> attribute;
  if (by_attribute) {
    if (args.positional.empty()) raise("missing parameter for attribute name");
    attribute = args.positional[0];
    args.positional.erase(args.positional.begin());
  }
  std::string test;
  if (!args.positional.empty()) {
    test = need_text(args.positional[0], "the name of a test");
    args.positional.erase(args.positional.begin());
  }
  const Key key(interpreter, attribute);
  return [next = iterate(input), key, &interpreter, test, args, wanted](Value& out) {
    while (next(out)) {
      Args copy = args;
      const Value v = key(out);
      if ((test.empty() ? truth(v) : interpreter.apply_test(test, v, copy)) == wanted) return true;
    }
    return false;
  };
}

template <bool kWanted, bool kAttribute>
Value choose(Interpreter& interpreter, const Value& input, Args& args) {
  return make_generator(
      [&interpreter, input, args] { return choose_items(interpreter, input, args, kWanted, kAttribute); });
}

}  // namespace

const FilterTable& selection_filters() {
  static const FilterTable table = {
      {"map", map},
      {"select", choose<true, false>},
      {"reject", choose<false, false>},
      {"selectattr", choose<true, true>},
      {"rejectattr", choose<false, true>},
  };
  return table;
}

FilterPointer find_filter(std::string_view name) {
  static const auto all = [] {
    std::unordered_map<std::string_view, FilterPointer> map_of_all;
    for (const FilterTable* table : {&text_filters(), &sequence_filters(), &selection_filters()})
      map_of_all.insert(table->begin(), table->end());
    return map_of_all;
  }();
  const auto it = all.find(name);
  return it == all.end() ? nullptr : it->second;
}

}  // namespace sx::jinja
