// Flags that several commands share: the model and where it runs, and sampling. The spellings are llama.cpp's.
#pragma once
#include <specextend/specextend.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sx::cli {

void add_model_flag(CLI::App& app, std::string& model);
void add_engine_flags(CLI::App& app, EngineOptions& options, std::string& chat_template_file);
// The options of the command that was given --split, and null if none was.
const EngineOptions* split_options();
void add_sampling_flags(CLI::App& app, GenerateOptions& options, std::vector<std::string>& bias);
// A flag of llama.cpp that is taken and has no effect; `why` is what its help says.
void ignore(CLI::App& app, const char* spellings, const char* why);
// Parses "--logit-bias TOKEN+VALUE" (or -VALUE) into the options.
void apply_bias(GenerateOptions& options, const std::vector<std::string>& bias);

}  // namespace sx::cli
