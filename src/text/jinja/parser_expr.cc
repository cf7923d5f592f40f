// Expressions, from the loosest binding (conditional) to the tightest (subscripts, calls, filters, tests).
#include <utility>

#include "text/jinja/parser.h"
#include "text/jinja/value.h"

namespace sx::jinja {

// The longest chain such as a.b[c](d)|e. Rendering recurses one level per link.
constexpr int kMaxLinks = 100;

ExprPtr Parser::expression(bool with_condition) { return with_condition ? parse_condition() : parse_or(); }

ExprPtr Parser::parse_condition() {
  Nesting nesting(*this);
  ExprPtr node = parse_or();
  int links = 0;
  while (is_name("if")) {
    if (++links > kMaxLinks) raise("an expression with too many conditions");
    ExprPtr condition = make(ExprKind::kCondition);
    next();
    condition->items.push_back(std::move(node));
    condition->items.push_back(parse_or());
    condition->items.push_back(skip_name("else") ? parse_condition() : nullptr);
    node = std::move(condition);
  }
  return node;
}

ExprPtr Parser::parse_or() {
  ExprPtr node = parse_and();
  if (!is_name("or")) return node;
  ExprPtr all = make(ExprKind::kOr);
  all->items.push_back(std::move(node));
  while (skip_name("or")) all->items.push_back(parse_and());
  return all;
}

ExprPtr Parser::parse_and() {
  ExprPtr node = parse_not();
  if (!is_name("and")) return node;
  ExprPtr all = make(ExprKind::kAnd);
  all->items.push_back(std::move(node));
  while (skip_name("and")) all->items.push_back(parse_not());
  return all;
}

ExprPtr Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  Nesting nesting(*this);
  ExprPtr node = make(ExprKind::kNot);
  next();
  node->items.push_back(parse_not());
  return node;
}

ExprPtr Parser::parse_compare() {
  static constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                             {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
  ExprPtr first = parse_sum();
  ExprPtr node;
  while (true) {
    int found = -1;
    for (const auto& [text, op] : kOps)
      if (is_op(text)) found = static_cast<int>(op);
    if (is_name("in")) found = static_cast<int>(Op::kIn);
    if (is_name("not") && ahead().kind == Tok::kName && ahead().text == "in") {
      next();
      found = static_cast<int>(Op::kNotIn);
    }
    if (found < 0) return node ? std::move(node) : std::move(first);
    if (!node) {
      node = make(ExprKind::kCompare);
      node->items.push_back(std::move(first));
    }
    next();
    node->ops.push_back(static_cast<Op>(found));
    node->items.push_back(parse_sum());
  }
}

ExprPtr Parser::parse_sum() {
  ExprPtr node = parse_concat();
  if (!is_op("+") && !is_op("-")) return node;
  ExprPtr chain = make(ExprKind::kChain);
  chain->items.push_back(std::move(node));
  while (is_op("+") || is_op("-")) {
    chain->ops.push_back(next().text == "+" ? Op::kAdd : Op::kSub);
    chain->items.push_back(parse_concat());
  }
  return chain;
}

ExprPtr Parser::parse_concat() {
  ExprPtr node = parse_product();
  if (!is_op("~")) return node;
  ExprPtr all = make(ExprKind::kConcat);
  all->items.push_back(std::move(node));
  while (skip_op("~")) all->items.push_back(parse_product());
  return all;
}

ExprPtr Parser::parse_product() {
  ExprPtr node = parse_power();
  ExprPtr chain;
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    if (!chain) {
      chain = make(ExprKind::kChain);
      chain->items.push_back(std::move(node));
    }
    const std::string op = next().text;
    chain->ops.push_back(op == "*" ? Op::kMul : op == "/" ? Op::kDiv : op == "//" ? Op::kFloorDiv : Op::kMod);
    chain->items.push_back(parse_power());
  }
  return chain ? std::move(chain) : std::move(node);
}

// Jinja2 evaluates powers left to right (Python itself right to left).
ExprPtr Parser::parse_power() {
  ExprPtr node = parse_unary();
  if (!is_op("**")) return node;
  ExprPtr chain = make(ExprKind::kChain);
  chain->items.push_back(std::move(node));
  while (skip_op("**")) {
    chain->ops.push_back(Op::kPow);
    chain->items.push_back(parse_unary());
  }
  return chain;
}

ExprPtr Parser::parse_unary(bool with_filter) {
  Nesting nesting(*this);
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    node = make(is_op("-") ? ExprKind::kNegative : ExprKind::kPositive);
    next();
    node->items.push_back(parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filter_expr(std::move(node)) : std::move(node);
}

void Parser::note_name(const std::string& name) {
  for (MacroCode* macro : macros_) {
    if (name == "caller") macro->uses_caller = true;
    if (name == "varargs") macro->uses_varargs = true;
    if (name == "kwargs") macro->uses_kwargs = true;
  }
}

ExprPtr Parser::parse_primary() {
  const Token& token = current();
  if (token.kind == Tok::kName) {
    ExprPtr node = make(ExprKind::kName);
    node->name = next().text;
    const std::string& name = node->name;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node->kind = ExprKind::kBool;
      node->flag = name[0] == 't' || name[0] == 'T';
    } else if (name == "none" || name == "None") {
      node->kind = ExprKind::kNone;
    } else {
      node->symbol = symbol(name);
      note_name(name);
    }
    return node;
  }
  if (token.kind == Tok::kString) {
    ExprPtr node = make(ExprKind::kString);
    node->symbol = program_->constants++;
    while (current().kind == Tok::kString) node->name += next().text;
    return node;
  }
  if (token.kind == Tok::kInteger || token.kind == Tok::kFloat) {
    ExprPtr node = make(token.kind == Tok::kInteger ? ExprKind::kInt : ExprKind::kFloat);
    node->integer = token.integer;
    node->real = token.real;
    next();
    return node;
  }
  if (skip_op("(")) {
    ExprPtr node = tuple({.parentheses = true});
    expect_op(")");
    return node;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  unexpected("an expression");
}

ExprPtr Parser::parse_list() {
  ExprPtr node = make(ExprKind::kList);
  next();
  while (!is_op("]")) {
    if (!node->items.empty()) expect_op(",");
    if (is_op("]")) break;
    node->items.push_back(expression());
  }
  expect_op("]");
  return node;
}

ExprPtr Parser::parse_dict() {
  ExprPtr node = make(ExprKind::kDict);
  next();
  while (!is_op("}")) {
    if (!node->items.empty()) expect_op(",");
    if (is_op("}")) break;
    node->items.push_back(expression());
    expect_op(":");
    node->items.push_back(expression());
  }
  expect_op("}");
  return node;
}

bool Parser::tuple_end(std::string_view end_word) const {
  const Tok kind = current().kind;
  if (kind == Tok::kVariableEnd || kind == Tok::kBlockEnd || is_op(")")) return true;
  return !end_word.empty() && is_name(end_word);
}

// One expression, or several with commas between them: a tuple.
ExprPtr Parser::tuple(const TupleRules& rules) {
  Nesting nesting(*this);
  ExprPtr node = make(ExprKind::kTuple);
  bool is_tuple = false;
  while (true) {
    if (!node->items.empty()) expect_op(",");
    if (tuple_end(rules.end_word)) break;
    node->items.push_back(rules.simplified ? parse_primary() : expression(rules.with_condition));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (!node->items.empty()) return std::move(node->items[0]);
  if (!rules.parentheses) unexpected("an expression");
  return node;
}

ExprPtr Parser::parse_postfix(ExprPtr node) {
  for (int links = 0;; ++links) {
    if (links > kMaxLinks) raise("an expression with too many links");
    if (is_op(".") || is_op("[")) node = parse_subscript(std::move(node));
    else if (is_op("(")) node = parse_call(std::move(node));
    else return node;
  }
}

ExprPtr Parser::parse_filter_expr(ExprPtr node) {
  for (int links = 0;; ++links) {
    if (links > kMaxLinks) raise("an expression with too many links");
    if (is_op("|")) node = parse_filter(std::move(node));
    else if (is_name("is")) node = parse_test(std::move(node));
    else if (is_op("(")) node = parse_call(std::move(node));
    else return node;
  }
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  if (is_op(".")) {
    ExprPtr node = make(ExprKind::kAttribute);
    next();
    if (current().kind == Tok::kName) {
      node->name = next().text;
      node->symbol = program_->constants++;
      node->items.push_back(std::move(object));
      return node;
    }
    if (current().kind != Tok::kInteger) unexpected("a name or a number");
    node->kind = ExprKind::kItem;
    ExprPtr index = make(ExprKind::kInt);
    index->integer = next().integer;
    node->items.push_back(std::move(object));
    node->items.push_back(std::move(index));
    return node;
  }
  ExprPtr node = make(ExprKind::kItem);
  next();
  node->items.push_back(std::move(object));
  ExprPtr bounds[3];
  int parts = 0;
  for (; parts < 3; ++parts) {
    if (!is_op(":") && !is_op("]") && !is_op(",")) bounds[parts] = expression();
    if (!skip_op(":")) break;
    node->kind = ExprKind::kSlice;
  }
  if (node->kind == ExprKind::kSlice) {
    if (parts == 3) unexpected("']'");
    for (ExprPtr& bound : bounds) node->items.push_back(std::move(bound));
  } else if (!bounds[0]) {
    if (!is_op("]")) unexpected("an expression");
    node->items.push_back(make(ExprKind::kTuple));  // x[] is x[()]
  } else if (is_op(",")) {
    ExprPtr key = make(ExprKind::kTuple);
    key->items.push_back(std::move(bounds[0]));
    while (skip_op(",")) key->items.push_back(expression());
    node->items.push_back(std::move(key));
  } else {
    node->items.push_back(std::move(bounds[0]));
  }
  expect_op("]");
  return node;
}

ExprPtr Parser::parse_filter(ExprPtr node, bool start_inline) {
  for (int links = 0; start_inline || is_op("|"); ++links) {
    if (links > kMaxLinks) raise("an expression with too many links");
    if (!start_inline) next();
    start_inline = false;
    ExprPtr filter = make(ExprKind::kFilter);
    filter->name = expect_name();
    while (skip_op(".")) filter->name += "." + expect_name();
    filter->items.push_back(std::move(node));
    filter->arguments = is_op("(") ? call_arguments() : std::make_unique<Arguments>();
    node = std::move(filter);
  }
  return node;
}

ExprPtr Parser::parse_test(ExprPtr node) {
  ExprPtr test = make(ExprKind::kTest);
  next();
  test->flag = skip_name("not");
  test->name = expect_name();
  while (skip_op(".")) test->name += "." + expect_name();
  test->items.push_back(std::move(node));
  test->arguments = std::make_unique<Arguments>();
  const Tok kind = current().kind;
  if (is_op("(")) {
    test->arguments = call_arguments();
  } else if ((kind == Tok::kName && !is_name("else") && !is_name("or") && !is_name("and")) || kind == Tok::kString ||
             kind == Tok::kInteger || kind == Tok::kFloat || is_op("[") || is_op("{")) {
    if (is_name("is")) raise("tests cannot be chained with 'is'");
    Nesting nesting(*this);
    test->arguments->positional.push_back(parse_postfix(parse_primary()));
  }
  return test;
}

ExprPtr Parser::parse_call(ExprPtr node) {
  ExprPtr call = make(ExprKind::kCall);
  call->items.push_back(std::move(node));
  call->arguments = call_arguments();
  return call;
}

std::unique_ptr<Arguments> Parser::call_arguments() {
  auto out = std::make_unique<Arguments>();
  expect_op("(");
  bool comma = false;
  while (!is_op(")")) {
    if (comma) {
      expect_op(",");
      if (is_op(")")) break;
    }
    comma = true;
    if (is_op("*") || is_op("**")) {
      const bool twice = next().text == "**";
      ExprPtr& slot = twice ? out->double_star : out->star;
      if (slot || (!twice && out->double_star)) raise("invalid syntax for a call");
      slot = expression();
    } else if (current().kind == Tok::kName && ahead().kind == Tok::kOperator && ahead().text == "=") {
      if (out->double_star) raise("invalid syntax for a call");
      const std::string name = next().text;
      next();
      out->named.emplace_back(name, expression());
    } else {
      if (!out->named.empty() || out->star || out->double_star) raise("invalid syntax for a call");
      out->positional.push_back(expression());
    }
  }
  expect_op(")");
  return out;
}

}  // namespace sx::jinja
