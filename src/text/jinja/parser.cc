// Statements: everything between {% and %}, and the text and outputs around them.
#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/value.h"

namespace sx::jinja {

constexpr int kMaxNesting = 200;

Parser::Nesting::Nesting(Parser& p) : parser(p) {
  if (++parser.depth_ > kMaxNesting) {
    --parser.depth_;
    raise("nested too deeply");
  }
}

Parser::Parser(std::vector<Token> tokens, int& line)
    : tokens_(std::move(tokens)), line_(line), program_(std::make_shared<Program>()) {
  for (const char* name : {"loop", "caller", "varargs", "kwargs"}) symbol(name);
}

std::shared_ptr<const Program> Parser::parse() {
  program_->body = statements({}, false);
  if (current().kind != Tok::kEnd) unexpected("the end of the template");
  return program_;
}

Token Parser::next() {
  Token token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  line_ = token.line;
  return token;
}

bool Parser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  next();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

void Parser::unexpected(std::string_view wanted) const {
  const Token& t = current();
  line_ = t.line;
  static constexpr const char* kNames[] = {"text",
                                           "begin of print statement",
                                           "end of print statement",
                                           "begin of statement block",
                                           "end of statement block",
                                           "name",
                                           "string",
                                           "integer",
                                           "float",
                                           "operator",
                                           "end of template"};
  const char* kind = kNames[static_cast<int>(t.kind)];
  if (t.kind == Tok::kName || t.kind == Tok::kOperator) raise("expected {}, got '{}'", wanted, t.text);
  raise("expected {}, got {}", wanted, kind);
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
}

void Parser::expect(Tok kind) {
  if (current().kind != kind) unexpected(kind == Tok::kBlockEnd ? "end of statement block" : "end of print statement");
  next();
}

std::string Parser::expect_name() {
  if (current().kind != Tok::kName) unexpected("a name");
  return next().text;
}

int Parser::symbol(const std::string& name) {
  const auto [it, fresh] = symbols_.emplace(name, static_cast<int>(program_->symbols.size()));
  if (fresh) program_->symbols.push_back(name);
  return it->second;
}

// Parses until one of the end words opens a tag (or the template ends, when there are none); `drop_end` also eats the
// word. The current token is then the one behind {%.
Body Parser::statements(Words ends, bool drop_end) {
  Nesting nesting(*this);
  Body out;
  while (true) {
    const Token& token = current();
    if (token.kind == Tok::kEnd) {
      if (ends.size() != 0) unexpected(fmt::format("'{}'", *ends.begin()));
      return out;
    }
    if (token.kind == Tok::kData) {
      out.push_back(std::make_unique<Stmt>(StmtKind::kData, token.line));
      out.back()->text = next().text;
    } else if (token.kind == Tok::kVariableBegin) {
      next();
      auto output = std::make_unique<Stmt>(StmtKind::kOutput, token.line);
      output->exprs.push_back(tuple({}));
      out.push_back(std::move(output));
      expect(Tok::kVariableEnd);
    } else if (token.kind == Tok::kBlockBegin) {
      next();
      if (current().kind == Tok::kName && std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
        if (drop_end) next();
        return out;
      }
      statement(out);
      expect(Tok::kBlockEnd);
    } else {
      unexpected("text or a tag");
    }
  }
}

// The body of a block tag: "%}" (a colon may precede it), then statements up to one of `ends`, which is not eaten.
Body Parser::block_body(Words ends) {
  skip_op(":");
  expect(Tok::kBlockEnd);
  return statements(ends, false);
}

void Parser::statement(Body& out) {
  const int line = current().line;
  const std::string word = expect_name();
  StmtPtr made;
  if (word == "if") made = parse_if();
  else if (word == "for") made = parse_for();
  else if (word == "set") made = parse_set();
  else if (word == "macro") made = parse_macro();
  else if (word == "call") made = parse_call_block();
  else if (word == "filter") made = parse_filter_block();
  else if (word == "with") made = parse_with();
  else if (word == "block") made = parse_block();
  else if (word == "autoescape") made = parse_autoescape();
  else if (word == "generation") made = parse_generation();
  else if (word == "break") made = parse_loop_control(StmtKind::kBreak);
  else if (word == "continue") made = parse_loop_control(StmtKind::kContinue);
  else if (word == "print") {
    while (true) {
      made = std::make_unique<Stmt>(StmtKind::kOutput, line);
      made->exprs.push_back(expression());
      if (!skip_op(",")) break;
      out.push_back(std::move(made));
    }
  } else if (word == "include" || word == "import" || word == "from" || word == "extends") {
    line_ = line;
    raise("'{}' is not allowed: a chat template may not read other files", word);
  } else {
    line_ = line;
    raise("unknown tag '{}'", word);
  }
  made->line = line;
  out.push_back(std::move(made));
}

StmtPtr Parser::parse_if() {
  auto node = std::make_unique<Stmt>(StmtKind::kIf, line_);
  while (true) {
    node->exprs.push_back(tuple({.with_condition = false}));
    node->bodies.push_back(block_body({"endif", "elif", "else"}));
    const std::string word = next().text;
    if (word == "elif") continue;
    if (word == "else") {
      node->bodies.push_back(block_body({"endif"}));
      next();
    }
    return node;
  }
}

static void reject_loop(const Expr& target) {
  if (target.kind == ExprKind::kName && target.symbol == kLoopSymbol)
    raise("'loop' cannot be the target of a for loop");
  for (const ExprPtr& item : target.items) reject_loop(*item);
}

StmtPtr Parser::parse_for() {
  auto node = std::make_unique<Stmt>(StmtKind::kFor, line_);
  node->exprs.push_back(assign_target(false, "in"));
  reject_loop(*node->exprs[0]);
  if (!skip_name("in")) unexpected("'in'");
  node->exprs.push_back(tuple({.with_condition = false, .end_word = "recursive"}));
  node->exprs.push_back(skip_name("if") ? expression() : nullptr);
  node->recursive = skip_name("recursive");
  ++loops_;
  node->bodies.push_back(block_body({"endfor", "else"}));
  --loops_;
  node->bodies.emplace_back();
  if (next().text == "else") {
    node->bodies.back() = block_body({"endfor"});
    next();
  }
  return node;
}

StmtPtr Parser::parse_set() {
  auto node = std::make_unique<Stmt>(StmtKind::kSet, line_);
  node->exprs.push_back(assign_target(true, {}));
  if (skip_op("=")) {
    node->exprs.push_back(tuple({}));
    return node;
  }
  node->kind = StmtKind::kSetBlock;
  node->exprs.push_back(parse_filter(nullptr));
  node->bodies.push_back(block_body({"endset"}));
  next();
  return node;
}

void Parser::signature(MacroCode& macro) {
  expect_op("(");
  while (!is_op(")")) {
    if (!macro.parameters.empty()) expect_op(",");
    Parameter parameter;
    parameter.name = expect_name();
    parameter.symbol = symbol(parameter.name);
    for (const char* word : {"true", "false", "none", "True", "False", "None"})
      if (parameter.name == word) raise("'{}' cannot be a parameter", word);
    if (skip_op("=")) parameter.fallback = expression();
    else if (!macro.parameters.empty() && macro.parameters.back().fallback)
      raise("a parameter without default follows one with a default");
    macro.parameters.push_back(std::move(parameter));
  }
  expect_op(")");
}

void Parser::macro_body(MacroCode& macro, std::string_view end) {
  const int loops = loops_;
  loops_ = 0;
  macros_.push_back(&macro);
  macro.body = block_body({end});
  macros_.pop_back();
  loops_ = loops;
  next();
  // A parameter of one of the special names is an ordinary variable.
  for (const Parameter& p : macro.parameters) {
    if (p.symbol == kCallerSymbol && !p.fallback) raise("the parameter 'caller' needs a default");
    if (p.symbol == kVarargsSymbol) macro.uses_varargs = false;
    if (p.symbol == kKwargsSymbol) macro.uses_kwargs = false;
    if (p.symbol == kCallerSymbol) macro.uses_caller = false;
  }
}

StmtPtr Parser::parse_macro() {
  auto node = std::make_unique<Stmt>(StmtKind::kMacro, line_);
  node->macro = std::make_unique<MacroCode>();
  node->macro->name = expect_name();
  node->symbol = symbol(node->macro->name);
  signature(*node->macro);
  macro_body(*node->macro, "endmacro");
  return node;
}

StmtPtr Parser::parse_call_block() {
  auto node = std::make_unique<Stmt>(StmtKind::kCallBlock, line_);
  node->macro = std::make_unique<MacroCode>();
  node->macro->name = "caller";
  if (is_op("(")) signature(*node->macro);
  node->exprs.push_back(expression());
  if (node->exprs[0]->kind != ExprKind::kCall) raise("expected a call");
  macro_body(*node->macro, "endcall");
  return node;
}

StmtPtr Parser::parse_filter_block() {
  auto node = std::make_unique<Stmt>(StmtKind::kFilterBlock, line_);
  node->exprs.push_back(parse_filter(nullptr, true));
  node->bodies.push_back(block_body({"endfilter"}));
  next();
  return node;
}

StmtPtr Parser::parse_with() {
  auto node = std::make_unique<Stmt>(StmtKind::kWith, line_);
  while (current().kind != Tok::kBlockEnd) {
    if (!node->exprs.empty()) expect_op(",");
    node->exprs.push_back(assign_target(false, {}));
    expect_op("=");
    node->exprs.push_back(expression());
  }
  node->bodies.push_back(block_body({"endwith"}));
  next();
  return node;
}

StmtPtr Parser::parse_block() {
  auto node = std::make_unique<Stmt>(StmtKind::kBlock, line_);
  node->text = expect_name();
  skip_name("scoped");
  skip_name("required");
  const int loops = loops_;
  loops_ = 0;
  node->bodies.push_back(block_body({"endblock"}));
  loops_ = loops;
  next();
  skip_name(node->text);
  return node;
}

StmtPtr Parser::parse_autoescape() {
  auto node = std::make_unique<Stmt>(StmtKind::kScoped, line_);
  const ExprPtr value = expression();
  if (value->kind != ExprKind::kBool || value->flag) raise("only 'autoescape false' is supported");
  node->bodies.push_back(block_body({"endautoescape"}));
  next();
  return node;
}

// The tag by which transformers marks what the assistant wrote. Only its body matters here; it has its own variables.
StmtPtr Parser::parse_generation() {
  auto node = std::make_unique<Stmt>(StmtKind::kScoped, line_);
  const int loops = loops_;
  loops_ = 0;
  node->bodies.push_back(block_body({"endgeneration"}));
  loops_ = loops;
  next();
  return node;
}

StmtPtr Parser::parse_loop_control(StmtKind kind) {
  if (loops_ == 0) raise("'{}' outside of a loop", kind == StmtKind::kBreak ? "break" : "continue");
  return std::make_unique<Stmt>(kind, line_);
}

void Parser::check_target(const Expr& target) {
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& item : target.items) check_target(*item);
    return;
  }
  if (target.kind != ExprKind::kName) raise("cannot assign to this expression");
}

ExprPtr Parser::assign_target(bool with_namespace, std::string_view end_word) {
  if (with_namespace && current().kind == Tok::kName && ahead().kind == Tok::kOperator && ahead().text == ".") {
    ExprPtr object = make(ExprKind::kName);
    object->name = expect_name();
    object->symbol = symbol(object->name);
    next();
    ExprPtr target = make(ExprKind::kAttribute);
    target->name = expect_name();
    target->items.push_back(std::move(object));
    return target;
  }
  ExprPtr target = tuple({.simplified = true, .end_word = end_word});
  check_target(*target);
  return target;
}

}  // namespace sx::jinja
