// Decimal numbers between bounds, digit by digit.
#include <algorithm>

#include "base/error.h"
#include "text/grammar/schema_parts.h"

namespace sx {
namespace {

constexpr int kMostDigits = 16;  // of a number without a bound
constexpr const char* kFraction = R"(("." [0-9]{1,16})?)";

void add(std::string& alternatives, const std::string& one) {
  alternatives += (alternatives.empty() ? "" : " | ") + one;
}

std::string digit(char low, char high) {
  return low == high ? fmt::format("\"{}\"", low) : fmt::format("[{}-{}]", low, high);
}
std::string any_digits(size_t count) { return count == 0 ? "" : fmt::format(" [0-9]{{{}}}", count); }

// Strings of digits of the same length between low and high, as alternatives.
std::string between(const std::string& low, const std::string& high) {
  if (low.empty()) return "\"\"";
  const size_t rest = low.size() - 1;
  if (low.find_first_not_of('0', 1) == std::string::npos && high.find_first_not_of('9', 1) == std::string::npos)
    return digit(low[0], high[0]) + any_digits(rest);
  if (low[0] == high[0]) return digit(low[0], low[0]) + " (" + between(low.substr(1), high.substr(1)) + ")";
  std::string out;
  char first = low[0], last = high[0];
  if (low.find_first_not_of('0', 1) != std::string::npos) {
    add(out, digit(first, first) + " (" + between(low.substr(1), std::string(rest, '9')) + ")");
    ++first;
  }
  std::string top;
  if (high.find_first_not_of('9', 1) != std::string::npos) {
    top = digit(last, last) + " (" + between(std::string(rest, '0'), high.substr(1)) + ")";
    --last;
  }
  if (first <= last) add(out, digit(first, last) + any_digits(rest));
  if (!top.empty()) add(out, top);
  return out;
}

// Whole numbers from low on, without sign and leading zeros; empty: there are none.
std::string naturals(uint64_t low, std::optional<uint64_t> high) {
  std::string out;
  if (high && low > *high) return out;
  std::string from = std::to_string(low);
  const std::string to = high ? std::to_string(*high) : std::string();
  for (;;) {
    const bool last = high && from.size() == to.size();
    add(out, between(from, last ? to : std::string(from.size(), '9')));
    if (last) break;
    if (!high) {  // any longer one
      const int more = std::max(kMostDigits - 1, int(from.size()) + 1);
      add(out, fmt::format("[1-9] [0-9]{{{},{}}}", from.size(), more));
      break;
    }
    from = "1" + std::string(from.size(), '0');
  }
  return "(" + out + ")";
}

uint64_t size_of(int64_t negative) { return uint64_t(0) - uint64_t(negative); }

// Magnitudes of one sign, with a fraction. The bounds are whole numbers.
std::string magnitudes(uint64_t low, bool above_low, std::optional<uint64_t> high, bool below_high) {
  std::string out;
  if (above_low) {
    if (!high || low < *high) add(out, naturals(low, low) + R"( "." "0"{0,8} [1-9] [0-9]{0,8})");
    ++low;
  }
  if (high && *high > 0 && low < *high) add(out, naturals(low, *high - 1) + " " + kFraction);
  if (!high) add(out, naturals(low, std::nullopt) + " " + kFraction);
  if (high && low <= *high && !below_high) add(out, naturals(*high, *high) + R"( ("." "0"{1,8})?)");
  return out;
}

}  // namespace

std::string gbnf_of_integers(const NumberBounds& b) {
  std::string out;
  if (!b.least || *b.least < 0) {  // negative ones
    const uint64_t low = b.most && *b.most < 0 ? size_of(*b.most) : 1;
    const auto high = b.least ? std::optional(size_of(*b.least)) : std::nullopt;
    if (const std::string some = naturals(low, high); !some.empty()) add(out, "\"-\" " + some);
  }
  if (!b.most || *b.most >= 0) {
    const uint64_t low = b.least && *b.least > 0 ? uint64_t(*b.least) : 0;
    const auto high = b.most ? std::optional(uint64_t(*b.most)) : std::nullopt;
    if (const std::string some = naturals(low, high); !some.empty()) add(out, some);
  }
  return out.empty() ? out : "(" + out + ")";
}

std::string gbnf_of_numbers(const NumberBounds& b) {
  std::string out;
  if (!b.least || *b.least < 0) {  // minus zero is a way to write zero; it is left to the other side
    const bool bounded = b.most && *b.most < 0;
    const auto high = b.least ? std::optional(size_of(*b.least)) : std::nullopt;
    const std::string some =
        magnitudes(bounded ? size_of(*b.most) : 0, bounded ? b.below_most : true, high, b.above_least);
    if (!some.empty()) add(out, "\"-\" (" + some + ")");
  }
  if (!b.most || *b.most >= 0) {
    const bool bounded = b.least && *b.least >= 0;
    const auto high = b.most ? std::optional(uint64_t(*b.most)) : std::nullopt;
    const std::string some = magnitudes(bounded ? uint64_t(*b.least) : 0, bounded && b.above_least, high, b.below_most);
    if (!some.empty()) add(out, "(" + some + ")");
  }
  return out.empty() ? out : "(" + out + ")";
}

}  // namespace sx
