// The syntax tree of a template: immutable after parsing, shared by all renderings. Chains of operators of one
// precedence level are flat lists, so long expressions need no deep recursion.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sx::jinja {

enum class ExprKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,  // literals
  kName,
  kList,
  kTuple,
  kDict,       // kDict: items alternate key, value
  kAttribute,  // items[0] . name
  kItem,       // items[0] [ items[1] ]
  kSlice,      // items[0] [ items[1] : items[2] : items[3] ], each bound may be null
  kCall,       // items[0] ( arguments )
  kFilter,     // items[0] | name ( arguments ); items[0] null inside a filter block
  kTest,       // items[0] is name ( arguments )
  kChain,      // items[0] ops[0] items[1] ops[1] ...: + - or * / // % or **
  kCompare,    // the same with comparisons, Python's chaining
  kConcat,
  kAnd,
  kOr,
  kNot,
  kNegative,
  kPositive,
  kCondition,  // items[0] if items[1] else items[2] (may be null)
};

enum class Op : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;  // *list and **dict
};

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}
  ExprKind kind;
  bool flag = false;  // kBool: the value; kTest: negated
  int line;
  int symbol = -1;  // kName: number of the variable's name; kString, kAttribute: number of the constant
  int64_t integer = 0;
  double real = 0;
  std::string name;  // variable, attribute, filter or test name; text of a string
  std::vector<ExprPtr> items;
  std::vector<Op> ops;
  std::unique_ptr<Arguments> arguments;
};

enum class StmtKind : uint8_t {
  kData,
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kBlock,
  kScoped,
  kBreak,
  kContinue,
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Parameter {
  int symbol;
  std::string name;
  ExprPtr fallback;  // null: required
};

// A macro, or the body of a call block.
struct MacroCode {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Stmt {
  Stmt(StmtKind k, int l) : kind(k), line(l) {}
  StmtKind kind;
  bool recursive = false;  // kFor
  int line;
  int symbol = -1;   // kMacro: where the macro is stored
  std::string text;  // kData
  // kOutput: the value. kIf: conditions, one per body. kFor: target, iterable, filter (may be null).
  // kSet: target, value. kSetBlock: target, filter (may be null). kCallBlock: the call. kFilterBlock: the filter.
  // kWith: target, value, target, value ...
  std::vector<ExprPtr> exprs;
  std::vector<Body> bodies;  // kIf may have one more than conditions (else); kFor: body, else
  std::unique_ptr<MacroCode> macro;
};

struct Program {
  Body body;
  std::vector<std::string> symbols;  // names of variables
  int constants = 0;                 // string literals and attribute names, cached once per rendering
};

// Names every program knows by fixed numbers.
enum KnownSymbol : int { kLoopSymbol = 0, kCallerSymbol, kVarargsSymbol, kKwargsSymbol, kKnownSymbols };

}  // namespace sx::jinja
