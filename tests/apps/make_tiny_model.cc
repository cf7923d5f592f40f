// Writes a tiny random model for tests of the program: make_tiny_model FILE.gguf | make_tiny_model FOLDER --hf
#include <filesystem>

#include "support/model_writer.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  sx::testing::TinySpec spec;
  spec.gain = 3;
  if (argc > 2) {
    std::filesystem::create_directories(argv[1]);
    sx::testing::write_tiny_hf(argv[1], spec);
  } else {
    sx::testing::write_tiny_gguf(argv[1], spec);
  }
  return 0;
}
