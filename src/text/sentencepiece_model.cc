// Reads protocol buffers as far as this message needs it: fields by number; unknown fields are skipped.
#include "text/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <unordered_set>

#include "base/error.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

namespace sx {
namespace {

struct Field {
  uint32_t number = 0;
  uint32_t wire = 0;       // 0: varint, 1: eight bytes, 2: bytes, 5: four bytes
  uint64_t value = 0;      // for wire types 0, 1 and 5
  std::string_view bytes;  // for wire type 2
};

class Fields {
 public:
  Fields(std::string_view bytes, const std::string& file, const char* what) : rest_(bytes), file_(file), what_(what) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    if (key >> 3 == 0 || key >> 3 > (1u << 29)) wrong("a field has a bad number");
    field = {static_cast<uint32_t>(key >> 3), static_cast<uint32_t>(key & 7), 0, {}};
    switch (field.wire) {
      case 0: field.value = varint(); break;
      case 1: field.value = fixed(8); break;
      case 2: {
        const uint64_t length = varint();
        if (length > rest_.size()) wrong("a field is longer than what holds it");
        field.bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        break;
      }
      case 5: field.value = fixed(4); break;
      default: wrong("a field has a bad type");
    }
    return true;
  }

  // Returns the value of a field, if its wire type is the one its definition has.
  std::string_view text(const Field& field) const {
    if (field.wire != 2) wrong("a field that holds bytes holds a number");
    return field.bytes;
  }
  uint64_t number(const Field& field) const {
    if (field.wire != 0) wrong("a field that holds a number holds something else");
    return field.value;
  }
  float real(const Field& field) const {
    if (field.wire != 5) wrong("a score is not a 32-bit number");
    return std::bit_cast<float>(static_cast<uint32_t>(field.value));
  }
  [[noreturn]] void wrong(const char* why) const { fail("{}: not a SentencePiece model: {}: {}", file_, what_, why); }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) wrong("it ends inside a number");
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    wrong("a number is too long");
  }
  uint64_t fixed(size_t size) {
    if (rest_.size() < size) wrong("it ends inside a number");
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    rest_.remove_prefix(size);
    return value;
  }

  std::string_view rest_;
  const std::string& file_;
  const char* what_;
};

SentencePieceModel::Piece read_piece(std::string_view bytes, const std::string& file, size_t id) {
  SentencePieceModel::Piece piece;
  Fields fields(bytes, file, "a piece");
  for (Field field; fields.next(field);) {
    if (field.number == 1) piece.text = fields.text(field);
    if (field.number == 2) piece.score = fields.real(field);
    if (field.number == 3) {
      const uint64_t type = fields.number(field);
      if (type < 1 || type > 6) fail("{}: piece {} has type {}, expected 1 to 6", file, id, type);
      piece.type = static_cast<TokenType>(type);
    }
  }
  if (piece.text.empty()) fail("{}: piece {} is empty", file, id);
  if (!utf8_is_valid(piece.text)) fail("{}: piece {} is not valid UTF-8", file, id);
  if (!std::isfinite(piece.score)) fail("{}: the score of piece {} is not a finite number", file, id);
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& file, SentencePieceModel& model) {
  Fields fields(bytes, file, "how it was trained");
  for (Field field; fields.next(field);) {
    switch (field.number) {
      case 3: {
        const uint64_t type = fields.number(field);
        if (type != 1 && type != 2) fail("{}: model type {} is not supported; 1 (Unigram) and 2 (BPE) are", file, type);
        model.unigram = type == 1;
        break;
      }
      case 24:
        if (fields.number(field) != 0)
          fail("{}: white space behind words (treat_whitespace_as_suffix) is not supported", file);
        break;
      case 35: model.byte_fallback = fields.number(field) != 0; break;
      case 46: model.bos_piece = fields.text(field); break;
      case 47: model.eos_piece = fields.text(field); break;
      case 48: model.pad_piece = fields.text(field); break;
      default: break;
    }
  }
}

void read_normalizer(std::string_view bytes, const std::string& file, SentencePieceModel& model) {
  Fields fields(bytes, file, "how text is normalised");
  for (Field field; fields.next(field);) {
    switch (field.number) {
      case 2: model.character_map = fields.text(field); break;
      case 3: model.dummy_prefix = fields.number(field) != 0; break;
      case 4: model.remove_extra_spaces = fields.number(field) != 0; break;
      case 5: model.escape_spaces = fields.number(field) != 0; break;
      default: break;
    }
  }
}

void check(const SentencePieceModel& model, const std::string& file) {
  if (model.pieces.empty()) fail("{}: not a SentencePiece model: it has no pieces", file);
  std::unordered_set<std::string_view> seen;
  const auto unknown = std::count_if(model.pieces.begin(), model.pieces.end(),
                                     [](const auto& piece) { return piece.type == TokenType::kUnknown; });
  if (unknown != 1) fail("{}: {} pieces are of the unknown kind, expected one", file, unknown);
  for (const auto& piece : model.pieces) {
    if (!seen.insert(piece.text).second) fail("{}: the piece \"{}\" occurs twice", file, piece.text);
  }
}

}  // namespace

SentencePieceModel read_sentencepiece(std::string_view bytes, const std::string& file) {
  SentencePieceModel model;
  Fields fields(bytes, file, "the file");
  for (Field field; fields.next(field);) {
    if (field.number == 1) {
      if (model.pieces.size() == size_t{kMostTokens}) fail("{}: more than {} pieces", file, kMostTokens);
      model.pieces.push_back(read_piece(fields.text(field), file, model.pieces.size()));
    }
    if (field.number == 2) read_trainer(fields.text(field), file, model);
    if (field.number == 3) read_normalizer(fields.text(field), file, model);
  }
  check(model, file);
  return model;
}

}  // namespace sx
