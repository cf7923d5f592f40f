// Formatted text behind a string: pages and tables are put together piece by piece.
#pragma once
#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace sx::cli {

template <typename... Args>
void put(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

}  // namespace sx::cli
