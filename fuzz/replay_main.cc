// A driver for the fuzz targets where libFuzzer is not at hand. It replays every file of the corpus folders, then feeds
// inputs mutated from them by a seeded generator, the same ones in every run: bit flips, truncations, splices of two
// seeds, repeated ranges, values that are often mishandled. An input that crashes, leaks an exception or takes too long
// is written to the crash file before the program dies; give that file instead of a folder to see it again.
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kMaxBytes = size_t{1} << 16;
constexpr unsigned kSecondsPerInput = 20;

// What the handlers of last resort need, in plain memory.
const uint8_t* current_data = nullptr;
size_t current_size = 0;
std::string crash_path = "crash-input";

// Only async-signal-safe calls: we may be anywhere.
void save_current() {
  if (!current_data) return;
  const int file = open(crash_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return;
  size_t done = 0;
  while (done < current_size) {
    const ssize_t n = write(file, current_data + done, current_size - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  close(file);
  constexpr std::string_view kNote = "\nfuzz: the input is in ";
  (void)!write(2, kNote.data(), kNote.size());
  (void)!write(2, crash_path.data(), crash_path.size());
  (void)!write(2, "\n", 1);
  current_data = nullptr;
}

void on_signal(int signal) {
  constexpr std::string_view kSlow = "fuzz: one input takes too long\n";
  if (signal == SIGALRM) (void)!write(2, kSlow.data(), kSlow.size());
  save_current();
  _exit(1);
}

// splitmix64: small, and the same everywhere.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(next() % n); }
};

// Counts, sizes and offsets that break arithmetic done without care.
constexpr std::array<uint64_t, 16> kMagicNumbers = {0,
                                                    1,
                                                    2,
                                                    0x7F,
                                                    0x80,
                                                    0xFF,
                                                    0x7FFF,
                                                    0xFFFF,
                                                    0x7FFFFFFF,
                                                    0x80000000,
                                                    0xFFFFFFFF,
                                                    0x100000000,
                                                    0x7FFFFFFFFFFFFFFF,
                                                    0x8000000000000000,
                                                    0xFFFFFFFFFFFFFFF0,
                                                    0xFFFFFFFFFFFFFFFF};
constexpr std::array<std::string_view, 24> kMagicTexts = {
    "{",    "}",      "[",  "]",         "\"",  "\\u0000", "\\ud800",          "null",     "-1",       "1e999",
    "{%",   "%}",     "{{", "}}",        "{%-", "loop.",   "\xF0\x9F\x98\x80", "\xFF\xFE", "\xC0\x80", "\n",
    "%}{%", "[::-1]", "**", "<|im_end|>"};

void put_number(Bytes& bytes, Random& random) {
  const uint64_t value = kMagicNumbers[random.below(kMagicNumbers.size())];
  const size_t width = size_t{1} << random.below(4);
  if (bytes.size() < width) return;
  std::memcpy(bytes.data() + random.below(bytes.size() - width + 1), &value, width);  // little endian, as the formats
}

void insert_text(Bytes& bytes, Random& random) {
  const auto text = kMagicTexts[random.below(kMagicTexts.size())];
  bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(random.below(bytes.size() + 1)), text.begin(), text.end());
}

// A range of `from` put into `bytes` at a random place, over what is there or between.
void copy_range(Bytes& bytes, const Bytes& from, Random& random) {
  if (from.empty()) return;
  const size_t start = random.below(from.size());
  const size_t length = 1 + random.below(std::min<size_t>(from.size() - start, 256));
  const Bytes piece(from.begin() + static_cast<ptrdiff_t>(start),
                    from.begin() + static_cast<ptrdiff_t>(start + length));
  const size_t at = random.below(bytes.size() + 1);
  if (random.below(2)) {
    bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), piece.begin(), piece.end());
  } else {
    std::copy_n(piece.begin(), std::min(piece.size(), bytes.size() - at), bytes.begin() + static_cast<ptrdiff_t>(at));
  }
}

void erase_range(Bytes& bytes, Random& random) {
  const size_t start = random.below(bytes.size());
  const size_t length = 1 + random.below(std::min<size_t>(bytes.size() - start, 64));
  bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(start), bytes.begin() + static_cast<ptrdiff_t>(start + length));
}

void mutate_once(Bytes& bytes, const std::vector<Bytes>& seeds, Random& random) {
  if (bytes.empty()) return insert_text(bytes, random);
  switch (random.below(9)) {
    case 0: bytes[random.below(bytes.size())] ^= static_cast<uint8_t>(1u << random.below(8)); break;
    case 1: bytes[random.below(bytes.size())] = static_cast<uint8_t>(random.next()); break;
    case 2: bytes[random.below(bytes.size())] += static_cast<uint8_t>(random.below(2) ? 1 : 255); break;
    case 3: put_number(bytes, random); break;
    case 4: insert_text(bytes, random); break;
    case 5: copy_range(bytes, seeds[random.below(seeds.size())], random); break;
    case 6: copy_range(bytes, Bytes(bytes), random); break;
    case 7: erase_range(bytes, random); break;
    default:
      if (random.below(4) == 0) bytes.resize(random.below(bytes.size()));  // truncation ends most inputs: keep it rare
  }
}

Bytes mutated(const std::vector<Bytes>& seeds, Random& random) {
  Bytes bytes = seeds[random.below(seeds.size())];
  const size_t changes = 1 + random.below(random.below(4) == 0 ? 16 : 3);
  for (size_t i = 0; i < changes; ++i) mutate_once(bytes, seeds, random);
  if (bytes.size() > kMaxBytes) bytes.resize(kMaxBytes);
  return bytes;
}

// A copy of exactly the right size, so that the sanitizer sees a read past its end.
void run_one(const Bytes& input) {
  const Bytes exact(input.begin(), input.end());
  static const uint8_t kEmpty = 0;
  current_size = exact.size();
  current_data = exact.empty() ? &kEmpty : exact.data();
  alarm(kSecondsPerInput);
  try {
    LLVMFuzzerTestOneInput(current_data, current_size);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: an exception left the target: %s\n", error.what());
    save_current();
    _exit(1);
  }
  alarm(0);
  current_data = nullptr;
}

void read_seeds(const std::filesystem::path& path, std::vector<Bytes>& seeds) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());  // the order of a folder is not fixed, ours is
  } else if (std::filesystem::exists(path)) {
    files.push_back(path);
  }
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
}

struct Options {
  uint64_t runs = 20000;
  double seconds = 5;
  uint64_t seed = 1;
  std::vector<std::string> paths;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const bool has_value = i + 1 < argc;
    if (name == "--runs" && has_value) options.runs = std::strtoull(argv[++i], nullptr, 10);
    else if (name == "--seconds" && has_value) options.seconds = std::strtod(argv[++i], nullptr);
    else if (name == "--seed" && has_value) options.seed = std::strtoull(argv[++i], nullptr, 10);
    else if (name == "--crash" && has_value) crash_path = argv[++i];
    else options.paths.emplace_back(name);
  }
  return options;
}

}  // namespace

// Hooks of the sanitizers: keep our file when they end the program, and treat a huge allocation as a finding.
extern "C" void __sanitizer_set_death_callback(void (*callback)());
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=1024:allocator_may_return_null=0"; }

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  __sanitizer_set_death_callback(save_current);
  for (int signal : {SIGABRT, SIGALRM}) std::signal(signal, on_signal);

  std::vector<Bytes> seeds;
  for (const auto& path : options.paths) read_seeds(path, seeds);
  const size_t files = seeds.size();
  if (seeds.empty()) seeds.push_back({});  // from nothing, by inserted texts
  for (const auto& seed : seeds) run_one(seed);

  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  Random random{options.seed};
  uint64_t done = 0;
  while (done < options.runs && elapsed() < options.seconds) {
    run_one(mutated(seeds, random));
    ++done;
  }
  std::printf("fuzz: %zu corpus files, %llu mutated inputs in %.1f s, nothing found\n", files,
              static_cast<unsigned long long>(done), elapsed());
}
