// Summarize a file with the library: summarize MODEL [FILE [TOKENS]]. It needs nothing but the public header and an
// installed libspecextend; without FILE it summarizes one sentence, which is enough to see that everything works.
#include <specextend/specextend.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kSentence = "The ship left the harbour at dawn, and by noon the coast was out of sight.";

std::string read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw sx::Error(std::string(path) + ": cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

// The text as a JSON string, for the message list that apply_template takes.
std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: summarize MODEL [FILE [TOKENS]]\n";
    return 2;
  }
  const std::string document = argc > 2 ? read_file(argv[2]) : std::string(kSentence);
  const int tokens = argc > 3 ? std::atoi(argv[3]) : 16;

  sx::EngineOptions settings;
  settings.model = argv[1];
  auto engine = sx::Engine::open(settings);
  const std::string prompt = engine->apply_template(
      R"([{"role": "user", "content": )" + json_string("Summarize the following document.\n\n" + document) + "}]");

  sx::GenerateOptions options;
  options.max_tokens = tokens;
  options.on_text = [](std::string_view text) {
    std::cout << text << std::flush;
    return true;
  };
  const auto result = engine->start()->generate(engine->tokenize(prompt), options);
  std::cout << '\n';
  std::cerr << result.timings.prompt_tokens << " tokens read, " << result.timings.generated_tokens << " written ("
            << sx::finish_reason_name(result.reason) << ")\n";
  return result.timings.generated_tokens > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "summarize: " << error.what() << '\n';
    return 1;
  }
}
