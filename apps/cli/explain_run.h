// Continues a prompt and collects what `specextend explain` shows of it.
#pragma once
#include "cli/explain_data.h"

namespace sx::cli {

// `compare`: decodes again without speculation. Callbacks of the options are called as usual. `result`, if any, gets
// the answer itself.
Explanation explain(Engine& engine, Session& session, std::span<const Token> prompt, GenerateOptions options,
                    bool compare, GenerateResult* result = nullptr);

}  // namespace sx::cli
