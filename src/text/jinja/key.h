// Filters that take an `attribute` look into their items by a Key: a dotted path of names and numbers.
#pragma once
#include <optional>

#include "text/jinja/value.h"

namespace sx::jinja {

class Key {
 public:
  // `attribute` is absent or none (the item itself), an integer, or a path such as "function.name".
  Key(Interpreter& interpreter, const std::optional<Value>& attribute, bool fold_case = false,
      std::optional<Value> fallback = std::nullopt);
  Value operator()(const Value& item) const;

 private:
  Interpreter& interpreter_;
  std::vector<Value> path_;
  bool fold_case_;
  std::optional<Value> fallback_;  // instead of undefined
};

}  // namespace sx::jinja
