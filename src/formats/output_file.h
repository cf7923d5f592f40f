// A file being written, under a temporary name next to its place until it is whole: whoever finds the name finds all of
// the file. A failed write (disk full, a limit) removes what was there and throws, naming the file and the reason.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sx {

class OutputFile {
 public:
  // `size`: bytes the file will have; refused at once if the disk has less. An existing file is refused unless `force`.
  OutputFile(std::string path, uint64_t size, bool force);
  ~OutputFile();  // without finish(): removes what was written
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);  // pages of zeros become holes
  void write_zeros(uint64_t count);              // a hole
  uint64_t position() const { return position_; }
  void finish();  // gives the file its name; exactly `size` bytes must have been written

 private:
  [[noreturn]] void failed(const char* doing);
  void flush(std::span<const std::byte> bytes, uint64_t at);

  std::string path_, temporary_;
  uint64_t size_, position_ = 0;
  int handle_ = -1;
};

// The checks of the constructor, for files that are written later: nothing in the way, room on the disk.
void check_output(const std::string& path, uint64_t size, bool force);
// A small text file, whole or not at all.
void write_text_file(const std::string& path, const std::string& text, bool force);

}  // namespace sx
