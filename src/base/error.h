// The two ways things go wrong. sx::Error: the world is wrong (a file, a model, a flag); it names the culprit and what
// was expected. sx::InternalError: we are wrong (SX_ASSERT). The library throws; it never prints, aborts or exits.
#pragma once
#include <fmt/format.h>

#include <specextend/error.h>

#include <stdexcept>
#include <utility>

namespace sx {

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws sx::Error with a fmt-formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace sx

// Checked in every build: use outside hot loops only.
#define SX_ASSERT(condition) \
  (static_cast<bool>(condition) ? void(0) : ::sx::assertion_failed(#condition, __FILE__, __LINE__))
