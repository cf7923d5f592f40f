// The page at `/`: the files of apps/server/page, which the build puts into the program (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace sx::server {

struct PageAsset {
  std::string_view path, content_type, body;  // the path begins with '/'; index.html is "/"
};

std::span<const PageAsset> page_assets();

// For the header Content-Security-Policy of every asset. The page asks for the same of itself; a header also forbids
// frames.
inline constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

}  // namespace sx::server
