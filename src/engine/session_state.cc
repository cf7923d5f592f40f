// A session's state in other hands: taken over by another session, saved, restored.
//
// Saved: a line that says what it is, where it comes from (SessionOrigin), the tokens, their cells, and what each
// drafter keeps (by its preset's name and draft; what the restoring engine does not have is passed over). Nothing may
// follow.
#include <algorithm>
#include <istream>
#include <limits>
#include <ostream>
#include <streambuf>

#include "backend/kv_stream.h"
#include "base/error.h"
#include "engine/session.h"
#include "specextend/no_memory.h"

namespace sx {
namespace {

constexpr std::string_view kMagic = "SpecExtend session 2\n";
constexpr uint32_t kMostName = 256, kMostPresets = 64;

template <class T>
void put(std::ostream& to, const T& value) {
  write_bytes(to, &value, sizeof value);
}

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

size_t text_bytes(std::string_view text) { return sizeof(uint32_t) + text.size(); }

// The fields of an origin in the order of the file; the context follows them.
template <class Origin, class Body>
void each_field(Origin& origin, Body body) {
  for (auto* field : {&origin.model, &origin.version, &origin.device, &origin.kv_type, &origin.rope}) body(*field);
}

// A part of a stream, and no byte more. What its reader leaves is counted.
class PartReader final : public std::streambuf {
 public:
  PartReader(std::istream& from, uint64_t bytes) : from_(*from.rdbuf()), left_(bytes) {}
  uint64_t left() const { return left_; }

 protected:
  std::streamsize xsgetn(char* to, std::streamsize count) override {
    const auto most = std::streamsize(std::min<uint64_t>(left_, uint64_t(count)));
    const std::streamsize got = from_.sgetn(to, most);
    left_ -= uint64_t(got);
    return got;
  }
  int_type uflow() override {
    char c;
    return xsgetn(&c, 1) == 1 ? traits_type::to_int_type(c) : traits_type::eof();
  }

 private:
  std::streambuf& from_;
  uint64_t left_;
};

// istream::ignore() does not say that a stream was too short.
void pass_over(std::istream& from, uint64_t bytes) {
  if (bytes > uint64_t(std::numeric_limits<std::streamsize>::max()))
    fail("a saved session is broken: a part of {} bytes", bytes);
  from.ignore(std::streamsize(bytes));
  if (uint64_t(from.gcount()) != bytes) fail("a saved session ends in the middle");
}

// A drafter without memory goes without what was saved.
void restore_drafter(Drafter& drafter, SeqId seq, int cells, std::istream& from, uint64_t bytes) {
  if (!drafter.hold(seq, cells)) return drafter.truncate(seq, 0), pass_over(from, bytes);
  PartReader part(from, bytes);
  std::istream in(&part);
  drafter.state().restore(seq, in, cells);
  if (part.left() != 0) fail("a saved session is broken: {} bytes of a drafter's part are left over", part.left());
}

}  // namespace

void SessionImpl::make_room(int length) {
  if (engine_.make_room && engine_.make_room()) return;
  throw NoMemory(
      fmt::format("the device's memory is full: beside other texts there is no room for one of {} tokens", length));
}

void SessionImpl::copy_from(const Session& other, int length) {
  const auto* from = dynamic_cast<const SessionImpl*>(&other);
  if (!from || &from->engine_ != &engine_) fail("a session can only take over from a session of its own engine");
  if (length < 0 || length > from->length())
    fail("cannot take over {} tokens of a session that holds {}", length, from->length());
  if (from == this) return truncate(length);
  if (!from->text_.can_return(length)) return read_again(from->text().first(size_t(length)));
  truncate(0);
  const SeqId other_seq = from->text_.seq(), seq = text_.seq();
  while (!copy_cells(engine_.device(), engine_.kv(), other_seq, seq, length)) {
    make_room(length);
    if (from->length() < length) throw NoMemory("the text to take over has been forgotten to make room");
  }
  text_.adopt(from->text().first(size_t(length)));
  if (WindowMemory* windows = engine_.parts().windows) windows->copied(seq, other_seq);
  for (const auto& spec : engine_.speculations())
    if (spec->drafter()) spec->drafter()->state().copy(other_seq, seq, length);
}

size_t SessionImpl::save_bytes() const {
  size_t bytes = kMagic.size() + sizeof(int64_t) + sizeof(int64_t) + size_t(length()) * sizeof(Token) +
                 saved_cells_bytes(engine_.device(), engine_.kv(), length()) + sizeof(uint32_t);
  each_field(engine_.origin(), [&](const std::string& field) { bytes += text_bytes(field); });
  for (const auto& spec : engine_.speculations())
    if (spec->drafter())
      bytes += text_bytes(spec->name()) + text_bytes(spec->draft_fingerprint()) + sizeof(uint64_t) +
               spec->drafter()->state().save_bytes(text_.seq());
  return bytes;
}

void SessionImpl::save(std::ostream& to) const {
  write_bytes(to, kMagic.data(), kMagic.size());
  each_field(engine_.origin(), [&](const std::string& field) { put_text(to, field); });
  put(to, int64_t(engine_.origin().context));
  put(to, int64_t(length()));
  write_bytes(to, text().data(), size_t(length()) * sizeof(Token));
  save_cells(engine_.device(), engine_.kv(), text_.seq(), length(), to);
  uint32_t drafters = 0;
  for (const auto& spec : engine_.speculations()) drafters += spec->drafter() != nullptr;
  put(to, drafters);
  for (const auto& spec : engine_.speculations()) {
    if (!spec->drafter()) continue;
    put_text(to, spec->name());
    put_text(to, spec->draft_fingerprint());
    put(to, uint64_t(spec->drafter()->state().save_bytes(text_.seq())));
    spec->drafter()->state().save(text_.seq(), to);
  }
  if (!to.flush()) fail("saving a session: the file takes no more (disk full?)");
}

void SessionImpl::restore(std::istream& from) {
  truncate(0);
  try {
    std::string magic(kMagic.size(), '\0');
    from.read(magic.data(), std::streamsize(magic.size()));
    if (!magic.starts_with(kMagic.substr(0, kMagic.size() - 2))) fail("this is not a session saved by SpecExtend");
    if (magic != kMagic) fail("this session was saved in another format: by an older or newer version of SpecExtend");
    SessionOrigin origin;
    each_field(origin, [&](std::string& field) { field = get_text(from); });
    origin.context = int(get<int64_t>(from));
    check_origin(origin, engine_.origin());
    const auto length = get<int64_t>(from);
    if (length < 0 || length > engine_.context())
      fail("a saved session of {} tokens does not fit in a context of {}", length, engine_.context());
    std::vector<Token> tokens(static_cast<size_t>(length));
    read_bytes(from, tokens.data(), tokens.size() * sizeof(Token));
    check_tokens(tokens, engine_.vocab());
    while (!hold_cells(engine_.kv(), text_.seq(), 0, int(length))) make_room(int(length));
    const int cells = restore_cells(engine_.device(), engine_.kv(), text_.seq(), int(length), from);
    if (cells != length) fail("a saved session of {} tokens has {} cells", length, cells);
    text_.adopt(tokens);
    if (WindowMemory* windows = engine_.parts().windows) windows->restored(text_.seq(), cells);
    const auto drafters = get<uint32_t>(from);
    if (drafters > kMostPresets) fail("a saved session is broken: {} presets", drafters);
    for (uint32_t i = 0; i < drafters; ++i) {
      const std::string name = get_text(from), draft = get_text(from);
      const auto bytes = get<uint64_t>(from);
      Drafter* drafter = nullptr;
      for (const auto& spec : engine_.speculations())
        if (spec->name() == name && spec->draft_fingerprint() == draft) drafter = spec->drafter();
      if (drafter && bytes > 0) restore_drafter(*drafter, text_.seq(), cells, from, bytes);
      else pass_over(from, bytes);
    }
    if (from.peek() != std::istream::traits_type::eof()) fail("a saved session is broken: something follows its end");
  } catch (...) {
    truncate(0);
    throw;
  }
}

}  // namespace sx
