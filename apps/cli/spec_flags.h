// The flags of speculation: a preset, one flag per setting of the library, and the spellings of llama.cpp and vLLM.
#pragma once
#include <specextend/specextend.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace sx::cli {

// As given on the command line.
struct SpecFlags {
  std::string spec;                             // preset, or llama.cpp's word for one; empty: not given
  std::string json;                             // vLLM's configuration
  std::map<std::string, std::string> settings;  // by name; only those given
  std::string value_type;                       // -ctvd
  bool allow_lossy = false;
};

void add_spec_flags(CLI::App& app, SpecFlags& flags);
// What they ask for together; throws on flags that do not go together. Values are checked by the library.
SpecOptions resolve(const SpecFlags& flags);

// Whether the text of such a request has the bytes of plain decoding.
bool promises_bytes(const SpecRule& rule, const SamplingOptions& sampling);

}  // namespace sx::cli
