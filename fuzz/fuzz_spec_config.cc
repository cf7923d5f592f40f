// Fuzzes vLLM's speculative configuration and the settings: any text either yields a configuration whose settings can
// be written and read back, or throws sx::Error. The text is also tried as the value of one of the settings.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "speculative/config/config.h"

namespace {

void expect_round_trip(const sx::SpecConfig& config) {
  sx::SpecConfig copy = config;
  for (const auto& info : sx::setting_infos()) {
    const std::string value = sx::setting_value(config, info.name);
    sx::apply_setting(copy, info.name, value);
    if (sx::setting_value(copy, info.name) != value) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  bool read = false;
  try {
    const sx::SpecConfig config = sx::config_from_json(text);
    read = true;
    expect_round_trip(config);
    read = false;
    sx::check_config(config);
  } catch (const sx::Error&) {
    if (read) __builtin_trap();  // what was read must be writable
  }
  const auto settings = sx::setting_infos();
  const char* name = settings[(size + (size ? data[0] : 0)) % settings.size()].name;
  sx::SpecConfig config = sx::preset_config("specinfer");
  try {
    sx::apply_setting(config, name, text);
  } catch (const sx::Error&) { return 0; }
  expect_round_trip(config);
  return 0;
}
