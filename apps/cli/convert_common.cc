#include "cli/convert_common.h"

#include <fmt/format.h>

#include <csignal>

#include "cli/progress.h"
#include "cli/terminal.h"

namespace sx::cli {

void add_output_flags(CLI::App& app, OutputFlags& flags) {
  app.add_flag("-f,--force", flags.force, "overwrite what is there");
  app.add_flag("--dry-run", flags.dry_run, "only say what would be written");
  app.add_flag("-q,--quiet", flags.quiet, "no progress, no report");
  app.add_option("-t,--threads", flags.threads, "CPU threads; 0: one per core within the CPU quota")
      ->check(CLI::NonNegativeNumber);
}

int run_conversion(const char* label, const OutputFlags& flags,
                   const std::function<ConvertResult(std::function<void(double)>)>& work) {
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes shows up as a failed write
  watch_interrupt();
  ProgressLine line(label, flags.quiet);
  const ConvertResult result = work([&](double done) {
    if (interrupted()) throw Error("interrupted; nothing was written");
    line.update(done, "");
  });
  line.clear();
  if (flags.quiet) return 0;
  fmt::print(stderr, "{} {}: {:.3f} GB, {:.1f} M parameters ({})\n", flags.dry_run ? "would write" : "wrote",
             result.path, static_cast<double>(result.bytes) / 1e9, static_cast<double>(result.parameters) / 1e6,
             result.types);
  for (const auto& note : result.notes) fmt::print(stderr, "note: {}\n", note);
  return 0;
}

}  // namespace sx::cli
