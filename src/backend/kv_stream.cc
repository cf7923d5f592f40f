#include "backend/kv_stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <istream>
#include <ostream>
#include <vector>

#include "backend/kv_sharing.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr int kPiece = 128;  // cells read at once

struct Header {
  int64_t count;
  uint64_t cell_bytes;
};

// Told apart by chance only: 64 bits over all cells. A cell that lost a bit would change the text.
class Checksum {
 public:
  void add(const std::byte* bytes, size_t count) {
    for (; count >= sizeof(uint64_t); bytes += sizeof(uint64_t), count -= sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, bytes, sizeof word);
      mix(word);
    }
    for (; count > 0; ++bytes, --count) mix(uint64_t(*bytes));
  }
  uint64_t value() const { return value_; }

 private:
  void mix(uint64_t word) {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15;
    value_ ^= value_ >> 32;
  }
  uint64_t value_ = 1;
};

}  // namespace

bool copy_cells(Backend& backend, KvStore& kv, int from_slot, int to_slot, int count) {
  if (count == 0) return true;
  if (auto* sharing = dynamic_cast<KvSharing*>(&kv); sharing && sharing->share(from_slot, to_slot, count)) return true;
  if (!hold_cells(kv, to_slot, 0, count)) return false;
  constexpr int kMoves = 512;  // at once
  std::vector<KvMove> moves;
  for (int first = 0; first < count; first += kMoves) {
    moves.clear();
    for (int i = first; i < std::min(count, first + kMoves); ++i) moves.push_back({i, i, 0});
    backend.kv_move({&kv, &kv, from_slot, to_slot, moves});
  }
  return true;
}

bool hold_cells(KvStore& kv, int slot, int first, int end) {
  auto* sharing = dynamic_cast<KvSharing*>(&kv);
  return !sharing || sharing->hold(slot, first, end);
}

void forget_cells(Backend& backend, KvStore& kv, int slot, int length, int held) {
  constexpr int kKept = 1024;  // cells behind the text that it may soon need again
  if (held - length > kKept && backend.traits().releases_cells) {
    const KvGeometry& g = kv.geometry();
    const int first = length == 0 ? 0 : length + kKept;
    backend.kv_release(kv, {.slot = slot, .first_layer = 0, .layers = g.layers, .first = first, .end = g.capacity});
  }
  auto* sharing = dynamic_cast<KvSharing*>(&kv);
  if (sharing && length == 0) sharing->leave(slot);
  else if (sharing && held - length > kKept) sharing->cut(slot, length + kKept);
}

void write_bytes(std::ostream& to, const void* bytes, size_t count) {
  if (!to.write(static_cast<const char*>(bytes), std::streamsize(count)))
    fail("saving a session: the file takes no more (disk full?)");
}

void read_bytes(std::istream& from, void* bytes, size_t count) {
  from.read(static_cast<char*>(bytes), std::streamsize(count));
  if (size_t(from.gcount()) != count) fail("a saved session ends in the middle");
}

size_t saved_cells_bytes(const Backend& backend, const KvStore& kv, int count) {
  return sizeof(Header) + sizeof(uint64_t) + size_t(count) * backend.kv_cell_bytes(kv);
}

void save_cells(Backend& backend, const KvStore& kv, int slot, int count, std::ostream& to) {
  const Header header{count, backend.kv_cell_bytes(kv)};
  write_bytes(to, &header, sizeof header);
  std::vector<std::byte> piece(size_t(std::min(count, kPiece)) * header.cell_bytes);
  Checksum sum;
  for (int first = 0; first < count; first += kPiece) {
    const int n = std::min(kPiece, count - first);
    backend.kv_read(kv, {slot, first, n}, piece.data());
    write_bytes(to, piece.data(), size_t(n) * header.cell_bytes);
    sum.add(piece.data(), size_t(n) * header.cell_bytes);
  }
  const uint64_t value = sum.value();
  write_bytes(to, &value, sizeof value);
}

int restore_cells(Backend& backend, KvStore& kv, int slot, int most, std::istream& from) {
  Header header{};
  read_bytes(from, &header, sizeof header);
  if (header.cell_bytes != backend.kv_cell_bytes(kv))
    fail("a saved session has cells of {} bytes, this engine's have {}: another model, draft or KV type",
         header.cell_bytes, backend.kv_cell_bytes(kv));
  if (header.count < 0 || header.count > std::min(most, kv.geometry().capacity))
    fail("a saved session has {} cells, there is room for {}", header.count, std::min(most, kv.geometry().capacity));
  const int count = int(header.count);
  std::vector<std::byte> piece(size_t(std::min(count, kPiece)) * header.cell_bytes);
  Checksum sum;
  for (int first = 0; first < count; first += kPiece) {
    const int n = std::min(kPiece, count - first);
    read_bytes(from, piece.data(), size_t(n) * header.cell_bytes);
    backend.kv_write(kv, {slot, first, n}, piece.data());
    sum.add(piece.data(), size_t(n) * header.cell_bytes);
  }
  uint64_t value = 0;
  read_bytes(from, &value, sizeof value);
  if (value != sum.value()) fail("a saved session is damaged: its cells do not have the checksum they were saved with");
  return count;
}

}  // namespace sx
