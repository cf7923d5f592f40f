// What quantize and convert share: flags for the output, a progress line, and the report at the end.
#pragma once
#include <specextend/convert.h>

#include <functional>
#include <string>

#include "cli/commands.h"

namespace sx::cli {

struct OutputFlags {
  bool force = false, dry_run = false, quiet = false;
  int threads = 0;
};
void add_output_flags(CLI::App& app, OutputFlags& flags);

// Runs `work` with a progress callback and prints its result. Ctrl-C cancels it and leaves no partial file.
int run_conversion(const char* label, const OutputFlags& flags,
                   const std::function<ConvertResult(std::function<void(double)>)>& work);

}  // namespace sx::cli
