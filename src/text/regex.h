// Pre-tokeniser patterns, run by PCRE2 with Unicode properties and JIT. The patterns are published for Oniguruma; the
// few classes that the two engines define differently (\s, \w and their complements) are rewritten before compiling.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace sx {

// Match memory of one call of encode. Threads share patterns, but not this.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Regex {
 public:
  struct Match {
    size_t begin, end;
  };

  // `where` (file and key) appears in the error for a pattern that does not compile.
  Regex(std::string_view pattern, const std::string& where);
  static Regex literal(std::string_view text, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) = delete;

  // Finds the first match in valid UTF-8 that starts at or after `from`. It may be empty.
  bool find(std::string_view subject, size_t from, RegexScratch& scratch, Match& match) const;
  // Finds the next match of a scan over the whole subject. Unlike find, it skips an empty match directly behind the
  // previous match (previous_end; npos at the start) and searches on from the next character.
  bool find_next(std::string_view subject, size_t previous_end, RegexScratch& scratch, Match& match) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sx
