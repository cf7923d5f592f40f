// The style and the script of the page of `specextend explain`.
#pragma once

namespace sx::cli {

extern const char* const kExplainStyle;
extern const char* const kExplainScript;

}  // namespace sx::cli
