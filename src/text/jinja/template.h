// A parsed template of the Jinja2 language, ready to be rendered any number of times, from any number of threads.
// Errors are sx::Error, "NAME:LINE: what went wrong"; no template and no input can crash, hang or exhaust memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace sx::jinja {

struct Program;

struct RenderLimits {
  size_t max_output_bytes = 64 << 20;   // of the output, and of any single text
  size_t max_steps = 50'000'000;        // evaluated nodes plus work proportional to sizes
  int max_depth = 200;                  // macro calls and recursive loops inside each other
  size_t max_memory_bytes = 512 << 20;  // of all live values
};

struct RenderSettings {
  // Rejects what transformers rejects: methods that change a list or dict, and filters that only other engines have.
  bool read_only = false;
  // strftime_now() shows these seconds since 1970 (in local time) instead of the clock.
  std::optional<int64_t> now;
};

class Template {
 public:
  static Template parse(std::string source, std::string name);
  std::string render(const nlohmann::ordered_json& context, const RenderLimits& limits = {},
                     const RenderSettings& settings = {}) const;
  const std::string& name() const { return name_; }

 private:
  Template(std::shared_ptr<const Program> program, std::string name);
  std::shared_ptr<const Program> program_;
  std::string name_;
};

}  // namespace sx::jinja
