// Opening an engine with a progress line, and the warnings a user should see about a model.
#pragma once
#include <specextend/specextend.h>

#include <memory>
#include <string>

namespace sx::cli {

// Shows progress and what was chosen (a shipped draft, device memory) on standard error unless quiet.
std::unique_ptr<Engine> open_engine(EngineOptions options, const std::string& chat_template_file, bool quiet);
// Prints warnings about the model's vocabulary and chat template to standard error.
void print_warnings(std::span<const std::string> warnings);
// Says on standard error, if the model has no chat template, what is used in its place.
void warn_without_template(const Engine& engine);

}  // namespace sx::cli
