// Where a prompt comes from, and what becomes of it before the model reads it.
#pragma once
#include <specextend/specextend.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sx::cli {

struct PromptFlags {
  std::string prompt, file, prefix, suffix, system;
  bool chat = false, escape = false, raw = false;
};
void add_prompt_flags(CLI::App& app, PromptFlags& flags);
std::vector<Token> prompt_tokens(const PromptFlags& flags, const Engine& engine);

// Renders one user message, after a system message unless that is empty, with the chat template.
std::string chat_prompt(const Engine& engine, const std::string& system, const std::string& text);
std::string read_file(const std::string& path);  // "-": standard input
std::string unescape(const std::string& text);   // \n \t \r \" \\ as -e asks

}  // namespace sx::cli
