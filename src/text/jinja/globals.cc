// The functions every template can call.
#include "text/jinja/globals.h"

#include <chrono>
#include <ctime>

#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"

namespace sx::jinja {

namespace {

// Jinja2's sandbox rejects a range with more elements.
constexpr int64_t kMaxRange = 100'000;

Value range(Interpreter&, Args& args) {
  auto slots = bind("range", args, {"/start", "/stop", "/step"}, 1);
  int64_t begin = 0, end = need_int(*slots[0], "an argument of range"), step = 1;
  if (slots[1]) {
    begin = end;
    end = need_int(*slots[1], "an argument of range");
  }
  if (slots[2]) step = need_int(*slots[2], "an argument of range");
  if (step == 0) raise("range() arg 3 must not be zero");
  // No later computation with bounds and steps overflows below this width.
  constexpr int64_t kWidest = int64_t{1} << 53;
  for (int64_t v : {begin, end, step})
    if (v > kWidest || v < -kWidest) raise("an argument of range is too large");
  if (RangeObject::count(begin, end, step) > kMaxRange) raise("range too big: at most {} elements", kMaxRange);
  return Value(new RangeObject(begin, end, step));
}

Value dict(Interpreter& interpreter, Args& args) {
  const Value out = Value::dict();
  return find_method(out, "update")->function(interpreter, out, args), out;
}

Value make_namespace(Interpreter& interpreter, Args& args) {
  const Value from = dict(interpreter, args);
  const Value out(new NamespaceObject());
  for (const auto& [key, value] : from.dict_object().entries) {
    if (!key.is_string()) raise("names of a namespace must be strings");
    out.namespace_object().set(key.text(), value);
  }
  return out;
}

Value raise_exception(Interpreter&, Args& args) {
  auto slots = bind("raise_exception", args, {"message"}, 1);
  throw RaisedByTemplate(str(*slots[0]));
}

Value strftime_now(Interpreter& interpreter, Args& args) {
  auto slots = bind("strftime_now", args, {"format"}, 1);
  const std::string& format = need_text(*slots[0], "the format of strftime_now");
  const auto clock = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  const std::time_t now = static_cast<std::time_t>(interpreter.settings().now.value_or(clock));
  std::tm parts{};
  if (format.size() > 1000 || format.find('\0') != std::string::npos || localtime_r(&now, &parts) == nullptr)
    raise("a format strftime_now cannot use");
  // strftime returns 0 for an empty result too; the appended mark makes every result non-empty.
  char buffer[4096];
  const size_t n = std::strftime(buffer, sizeof buffer, (format + "|").c_str(), &parts);
  if (n == 0) raise("the result of strftime_now is too long");
  return Value::string(std::string(buffer, n - 1));
}

}  // namespace

std::vector<std::pair<std::string, FunctionPointer>> global_functions() {
  return {{"range", range},
          {"dict", dict},
          {"namespace", make_namespace},
          {"raise_exception", raise_exception},
          {"strftime_now", strftime_now}};
}

}  // namespace sx::jinja
