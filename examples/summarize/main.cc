// Summarize a file with the library: summarize MODEL [FILE [TOKENS]]. It needs nothing but the public header and an
// installed libspecextend; without FILE it summarizes one sentence, which is enough to see that everything works.
#include <specextend/specextend.h>

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

int run(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: summarize MODEL [FILE [TOKENS]]\n";
    return 2;
  }
  const std::string document = argc > 2 ? read_file(argv[2]) : std::string(kSentence);

  sx::GenerateOptions options;
  options.max_tokens = argc > 3 ? std::atoi(argv[3]) : 16;
  options.on_text = [](std::string_view text) { std::cout << text << std::flush; };

  const auto engine = sx::Engine::open({.model = argv[1]});
  const auto result = engine->chat({{"user", "Summarize the following document.\n\n" + document}}, options);
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
