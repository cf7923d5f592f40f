#include "formats/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace sx {
namespace {

constexpr size_t kPage = 4096;

bool all_zeros(std::span<const std::byte> bytes) {
  return bytes.empty() ||
         (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

std::filesystem::path folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

}  // namespace

void check_output(const std::string& path, uint64_t size, bool force) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status)) {
    if (!std::filesystem::is_regular_file(status)) fail("'{}' exists and is no regular file", path);
    if (!force) fail("'{}' exists; --force overwrites it", path);
  }
  const auto folder = folder_of(path);
  if (!std::filesystem::is_directory(folder, error))
    fail("cannot write '{}': there is no folder '{}'", path, folder.string());
  const auto space = std::filesystem::space(folder, error);
  if (error) return;  // the write will tell
  if (space.available < size) {
    fail("cannot write '{}': it takes {:.1f} GB, and the disk has {:.1f} GB left", path,
         static_cast<double>(size) / 1e9, static_cast<double>(space.available) / 1e9);
  }
}

OutputFile::OutputFile(std::string path, uint64_t size, bool force)
    : path_(std::move(path)), temporary_(path_ + ".partial"), size_(size) {
  check_output(path_, size_, force);
  handle_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (handle_ < 0) fail("cannot write '{}': {}", temporary_, std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (handle_ < 0) return;
  ::close(handle_);
  ::unlink(temporary_.c_str());
}

void OutputFile::failed(const char* doing) {
  const int reason = errno;
  ::close(handle_);
  handle_ = -1;
  ::unlink(temporary_.c_str());
  fail("{} '{}' failed after {} of {} bytes: {}; the incomplete file was removed", doing, path_, position_, size_,
       std::strerror(reason));
}

void OutputFile::flush(std::span<const std::byte> bytes, uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(handle_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) errno = ENOSPC;
    if (done <= 0) failed("writing");
    bytes = bytes.subspan(static_cast<size_t>(done));
    at += static_cast<uint64_t>(done);
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  SX_ASSERT(handle_ >= 0 && bytes.size() <= size_ - position_);
  // Runs of pages, at the file's own page borders, that are all written or all left out.
  while (!bytes.empty()) {
    const auto piece = [&](size_t from) {
      const uint64_t at = position_ + from;
      return std::min<size_t>(bytes.size() - from, static_cast<size_t>(kPage - at % kPage));
    };
    size_t run = piece(0);
    const bool hole = all_zeros(bytes.first(run));
    while (run < bytes.size() && all_zeros(bytes.subspan(run, piece(run))) == hole) run += piece(run);
    if (!hole) flush(bytes.first(run), position_);
    position_ += run;
    bytes = bytes.subspan(run);
  }
}

void OutputFile::write_zeros(uint64_t count) {
  SX_ASSERT(handle_ >= 0 && count <= size_ - position_);
  position_ += count;
}

void OutputFile::finish() {
  SX_ASSERT(handle_ >= 0 && position_ == size_);
  if (::ftruncate(handle_, static_cast<off_t>(size_)) != 0) failed("extending");  // holes at the end
  if (::fsync(handle_) != 0) failed("writing");                                   // late errors of the disk
  const int handle = std::exchange(handle_, -1);
  if (::close(handle) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    fail("cannot finish '{}': {}; the incomplete file was removed", path_, std::strerror(reason));
  }
}

void write_text_file(const std::string& path, const std::string& text, bool force) {
  OutputFile out(path, text.size(), force);
  out.write(std::as_bytes(std::span(text)));
  out.finish();
}

}  // namespace sx
