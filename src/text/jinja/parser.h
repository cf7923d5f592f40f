// Recursive descent over the tokens, with Jinja2's grammar: the precedence of its operators, what may follow `is`,
// where a tuple needs no parentheses. Nesting is bounded, so hostile templates cannot exhaust the stack.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace sx::jinja {

class Parser {
 public:
  // `line` follows the parser and names the culprit's line when a Failure is thrown.
  Parser(std::vector<Token> tokens, int& line);
  std::shared_ptr<const Program> parse();

 private:
  using Words = std::initializer_list<std::string_view>;
  struct Nesting {
    explicit Nesting(Parser& p);
    ~Nesting() { --parser.depth_; }
    Parser& parser;
  };

  // tokens
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token next();
  bool is_op(std::string_view op) const { return current().kind == Tok::kOperator && current().text == op; }
  bool is_name(std::string_view name) const { return current().kind == Tok::kName && current().text == name; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect(Tok kind);
  std::string expect_name();
  [[noreturn]] void unexpected(std::string_view wanted) const;
  int symbol(const std::string& name);

  // statements (parser.cc)
  Body statements(Words ends, bool drop_end);
  Body block_body(Words ends);
  void statement(Body& out);
  StmtPtr parse_if();
  StmtPtr parse_for();
  StmtPtr parse_set();
  StmtPtr parse_macro();
  StmtPtr parse_call_block();
  StmtPtr parse_filter_block();
  StmtPtr parse_with();
  StmtPtr parse_block();
  StmtPtr parse_autoescape();
  StmtPtr parse_generation();
  StmtPtr parse_loop_control(StmtKind kind);
  void signature(MacroCode& macro);
  void macro_body(MacroCode& macro, std::string_view end);
  ExprPtr assign_target(bool with_namespace, std::string_view end_word);
  void check_target(const Expr& target);

  // expressions (parser_expr.cc)
  ExprPtr make(ExprKind kind) const { return std::make_unique<Expr>(kind, current().line); }
  ExprPtr expression(bool with_condition = true);
  ExprPtr parse_condition();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter = true);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filter_expr(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_filter(ExprPtr node, bool start_inline = false);
  ExprPtr parse_test(ExprPtr node);
  ExprPtr parse_call(ExprPtr node);
  std::unique_ptr<Arguments> call_arguments();
  struct TupleRules {
    bool simplified = false, with_condition = true, parentheses = false;
    std::string_view end_word = {};
  };
  ExprPtr tuple(const TupleRules& rules);
  bool tuple_end(std::string_view end_word) const;
  void note_name(const std::string& name);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int& line_;
  int depth_ = 0;
  int loops_ = 0;                   // loops around the current statement, within the current macro
  std::vector<MacroCode*> macros_;  // macros around the current statement
  std::unordered_map<std::string, int> symbols_;
  std::shared_ptr<Program> program_;
};

// Fails for filters and tests that do not exist where Jinja2 would notice at once: outside `if` and conditional
// expressions, which templates use to guard optional ones. `line` names the culprit's line.
void check_names(const Program& program, int& line);

}  // namespace sx::jinja
