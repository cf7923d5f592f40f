// The style of the report of `specextend eval`. The page has no script.
#pragma once

namespace sx::cli {

extern const char* const kEvalStyle;

}  // namespace sx::cli
