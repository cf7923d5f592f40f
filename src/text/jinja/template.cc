// Parsing and rendering as seen from outside: sets up the heap and turns every failure into sx::Error.
#include "text/jinja/template.h"

#include <new>

#include "base/error.h"
#include "text/jinja/convert.h"
#include "text/jinja/globals.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace sx::jinja {

constexpr int kMaxJsonDepth = 190;

Value value_from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxJsonDepth) raise("JSON nested deeper than {} levels", kMaxJsonDepth);
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean: return Value::boolean(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer: return Value::integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned: {
      const auto u = json.get<uint64_t>();
      if (u > static_cast<uint64_t>(INT64_MAX)) raise("the integer {} does not fit 64 signed bits", u);
      return Value::integer(static_cast<int64_t>(u));
    }
    case nlohmann::ordered_json::value_t::number_float: return Value::real(json.get<double>());
    case nlohmann::ordered_json::value_t::string: return Value::string(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(value_from_json(item, depth + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      const Value dict = Value::dict();
      for (const auto& [key, value] : json.items()) dict.dict_object().set(key, value_from_json(value, depth + 1));
      return dict;
    }
    default: return Value::none();
  }
}

Template::Template(std::shared_ptr<const Program> program, std::string name)
    : program_(std::move(program)), name_(std::move(name)) {}

Template Template::parse(std::string source, std::string name) {
  int line = 1;
  try {
    std::shared_ptr<const Program> program = Parser(tokenize(source, line), line).parse();
    check_names(*program, line);
    return Template(std::move(program), std::move(name));
  } catch (const Failure& failure) { fail("{}:{}: {}", name, line, failure.what()); }
}

std::string Template::render(const nlohmann::ordered_json& context, const RenderLimits& limits,
                             const RenderSettings& settings) const {
  if (!context.is_object()) fail("{}: the variables of a template must be a JSON object", name_);
  Heap heap(limits.max_steps, limits.max_memory_bytes, limits.max_output_bytes);
  int line = 0;
  try {
    Interpreter interpreter(*program_, limits, settings);
    try {
      for (const auto& [name, value] : context.items()) interpreter.define(name, value_from_json(value));
      return interpreter.run();
    } catch (...) {
      line = interpreter.line();
      throw;
    }
  } catch (const RaisedByTemplate& error) {
    fail("{}:{}: the template rejects this input: {}", name_, line, error.what());
  } catch (const Failure& failure) { fail("{}:{}: {}", name_, line, failure.what()); } catch (const std::bad_alloc&) {
    fail("{}:{}: out of memory", name_, line);
  }
}

}  // namespace sx::jinja
