// A session's state in other hands: taken over by another session, saved, restored.
//
// Saved: a line that says what it is, the fingerprint of the model, the tokens, their cells, and what each drafter keeps (by its
// preset's name; a preset the restoring engine does not have is passed over).
#include <istream>
#include <ostream>

#include "backend/kv_stream.h"
#include "base/error.h"
#include "engine/session.h"

namespace sx {
namespace {

constexpr std::string_view kMagic = "SpecExtend session 1\n";
constexpr uint32_t kMostName = 256, kMostPresets = 64;

template <class T>
void put(std::ostream& to, const T& value) { write_bytes(to, &value, sizeof value); }

template <class T>
T get(std::istream& from) {
  T value{};
  read_bytes(from, &value, sizeof value);
  return value;
}

void put_text(std::ostream& to, std::string_view text) {
  put(to, uint32_t(text.size()));
  write_bytes(to, text.data(), text.size());
}

std::string get_text(std::istream& from) {
  const auto size = get<uint32_t>(from);
  if (size > kMostName) fail("a saved session is broken: a name of {} bytes", size);
  std::string text(size, '\0');
  read_bytes(from, text.data(), size);
  return text;
}

}  // namespace

void SessionImpl::copy_from(const Session& other, int length) {
  const auto* from = dynamic_cast<const SessionImpl*>(&other);
  if (!from || &from->engine_ != &engine_) fail("a session can only take over from a session of its own engine");
  if (length < 0 || length > from->length()) fail("cannot take over {} tokens of a session that holds {}", length, from->length());
  if (from == this) return truncate(length);
  truncate(0);
  copy_cells(engine_.device(), engine_.kv(), from->seq_, seq_, length);
  engine_.book().append(seq_, length);
  text_.assign(from->text_.begin(), from->text_.begin() + length);
  for (const auto& spec : engine_.speculations())
    if (spec->drafter()) spec->drafter()->copy(from->seq_, seq_, length);
}

size_t SessionImpl::save_bytes() const {
  size_t bytes = kMagic.size() + sizeof(uint32_t) + engine_.fingerprint().size() + sizeof(int64_t) + size_t(length()) * sizeof(Token) +
                 saved_cells_bytes(engine_.device(), engine_.kv(), length()) + sizeof(uint32_t);
  for (const auto& spec : engine_.speculations())
    if (spec->drafter()) bytes += sizeof(uint32_t) + spec->name().size() + sizeof(uint64_t) + spec->drafter()->save_bytes(seq_);
  return bytes;
}

void SessionImpl::save(std::ostream& to) const {
  write_bytes(to, kMagic.data(), kMagic.size());
  put_text(to, engine_.fingerprint());
  put(to, int64_t(length()));
  write_bytes(to, text_.data(), size_t(length()) * sizeof(Token));
  save_cells(engine_.device(), engine_.kv(), seq_, length(), to);
  uint32_t drafters = 0;
  for (const auto& spec : engine_.speculations()) drafters += spec->drafter() != nullptr;
  put(to, drafters);
  for (const auto& spec : engine_.speculations()) {
    if (!spec->drafter()) continue;
    put_text(to, spec->name());
    put(to, uint64_t(spec->drafter()->save_bytes(seq_)));
    spec->drafter()->save(seq_, to);
  }
  if (!to.flush()) fail("saving a session: the file takes no more (disk full?)");
}

void SessionImpl::restore(std::istream& from) {
  truncate(0);
  try {
    std::string magic(kMagic.size(), '\0');
    from.read(magic.data(), std::streamsize(magic.size()));
    if (magic != kMagic) fail("this is not a session saved by SpecExtend");
    if (get_text(from) != engine_.fingerprint()) fail("a session of another model, KV type or device cannot be restored");
    const auto length = get<int64_t>(from);
    if (length < 0 || length > engine_.context()) fail("a saved session of {} tokens does not fit in a context of {}", length, engine_.context());
    std::vector<Token> tokens(static_cast<size_t>(length));
    read_bytes(from, tokens.data(), tokens.size() * sizeof(Token));
    check_tokens(tokens);
    const int cells = restore_cells(engine_.device(), engine_.kv(), seq_, int(length), from);
    if (cells != length) fail("a saved session of {} tokens has {} cells", length, cells);
    engine_.book().append(seq_, cells);
    text_ = std::move(tokens);
    text_.reserve(size_t(engine_.context()) + 1);
    const auto drafters = get<uint32_t>(from);
    if (drafters > kMostPresets) fail("a saved session is broken: {} presets", drafters);
    for (uint32_t i = 0; i < drafters; ++i) {
      const std::string name = get_text(from);
      const auto bytes = get<uint64_t>(from);
      Drafter* drafter = nullptr;
      for (const auto& spec : engine_.speculations())
        if (spec->name() == name) drafter = spec->drafter();
      if (drafter && bytes > 0) drafter->restore(seq_, from, cells);
      else if (!from.ignore(std::streamsize(bytes))) fail("a saved session ends in the middle");
    }
  } catch (...) {
    truncate(0);
    throw;
  }
}

}  // namespace sx
