// The five behaviours of splitting, Metaspace and GPT-2's byte alphabet.
#include "text/pretokenizer.h"

#include <array>
#include <algorithm>

#include "text/unicode.h"

namespace sx {
namespace {

using Span = Pieces::Span;

struct Segment {
  size_t begin, end;
  bool is_match;
};

// Cuts the whole subject into alternating matches and gaps.
void find_segments(const SplitStep& step, std::string_view subject, RegexScratch& scratch, std::vector<Segment>& out) {
  out.clear();
  size_t done = 0;
  Regex::Match match{};
  for (size_t end = std::string_view::npos; step.pattern.find_next(subject, end, scratch, match); end = match.end) {
    if (match.begin != done) out.push_back({done, match.begin, step.invert});
    out.push_back({match.begin, match.end, !step.invert});
    done = match.end;
  }
  if (done != subject.size()) out.push_back({done, subject.size(), step.invert});
}

void merge_with_previous(const std::vector<Segment>& segments, std::vector<Span>& out) {
  bool after_match = false;
  for (const Segment& s : segments) {
    if (s.is_match && !after_match && !out.empty()) {
      out.back().end = s.end;
    } else {
      out.push_back({s.begin, s.end});
    }
    after_match = s.is_match;
  }
}

void merge_with_next(const std::vector<Segment>& segments, std::vector<Span>& out) {
  bool before_match = false;
  for (auto s = segments.rbegin(); s != segments.rend(); ++s) {
    if (s->is_match && !before_match && !out.empty()) {
      out.back().begin = s->begin;
    } else {
      out.push_back({s->begin, s->end});
    }
    before_match = s->is_match;
  }
  std::reverse(out.begin(), out.end());
}

void merge_runs(const std::vector<Segment>& segments, std::vector<Span>& out) {
  bool kind = false;
  for (const Segment& s : segments) {
    if (s.is_match == kind && !out.empty()) {
      out.back().end = s.end;
    } else {
      out.push_back({s.begin, s.end});
    }
    kind = s.is_match;
  }
}

void split(Pieces& pieces, const SplitStep& step, RegexScratch& scratch) {
  std::vector<Span> result, cut;
  std::vector<Segment> segments;
  result.reserve(pieces.spans.size());
  for (const Span& span : pieces.spans) {
    const std::string_view subject = std::string_view(pieces.text).substr(span.begin, span.end - span.begin);
    find_segments(step, subject, scratch, segments);
    cut.clear();
    switch (step.behavior) {
      case SplitBehavior::kIsolated:
        for (const Segment& s : segments) cut.push_back({s.begin, s.end});
        break;
      case SplitBehavior::kRemoved:
        for (const Segment& s : segments) {
          if (!s.is_match) cut.push_back({s.begin, s.end});
        }
        break;
      case SplitBehavior::kMergedWithPrevious: merge_with_previous(segments, cut); break;
      case SplitBehavior::kMergedWithNext: merge_with_next(segments, cut); break;
      case SplitBehavior::kContiguous: merge_runs(segments, cut); break;
    }
    for (const Span& c : cut) {
      if (c.begin != c.end) result.push_back({span.begin + c.begin, span.begin + c.end});
    }
  }
  pieces.spans = std::move(result);
}

// Rebuilds the buffer; change(piece, is_first, out) writes each piece anew.
template <class Change>
void rewrite(Pieces& pieces, Change change) {
  Pieces result;
  result.text.reserve(pieces.text.size() + pieces.spans.size());
  result.spans.reserve(pieces.spans.size());
  for (const Span& span : pieces.spans) {
    const size_t begin = result.text.size();
    change(std::string_view(pieces.text).substr(span.begin, span.end - span.begin), span.begin == 0, result.text);
    result.spans.push_back({begin, result.text.size()});
  }
  pieces = std::move(result);
}

// A piece that starts with the replacement after ' ' was replaced is not prefixed again.
void metaspace(Pieces& pieces, const MetaspaceStep& step, bool at_start) {
  rewrite(pieces, [&](std::string_view piece, bool first, std::string& out) {
    const bool marked = piece.substr(0, 1) == " " || piece.substr(0, step.replacement.size()) == step.replacement;
    const bool wanted = step.prepend == MetaspaceStep::Prepend::kAlways ||
                        (step.prepend == MetaspaceStep::Prepend::kFirst && first && at_start);
    if (wanted && !marked) out += step.replacement;
    for (char c : piece) {
      if (c == ' ') {
        out += step.replacement;
      } else {
        out += c;
      }
    }
  });
  if (!step.split) return;
  std::vector<Span> result;
  for (const Span& span : pieces.spans) {  // Cut in front of every replacement.
    size_t begin = span.begin;
    for (;;) {
      const size_t next = pieces.text.find(step.replacement, begin + 1);
      if (next == std::string::npos || next >= span.end) break;
      result.push_back({begin, next});
      begin = next;
    }
    if (begin != span.end) result.push_back({begin, span.end});
  }
  pieces.spans = std::move(result);
}

// Finds the first U+2581 at or after `from` that follows another character; npos if there is none.
size_t next_metaspace_run(std::string_view text, size_t from) {
  for (size_t at = from; (at = text.find(kMetaspace, at)) != std::string_view::npos; at += kMetaspace.size()) {
    if (at >= kMetaspace.size() && text.substr(at - kMetaspace.size(), kMetaspace.size()) != kMetaspace) return at;
    if (at > 0 && at < kMetaspace.size()) return at;
  }
  return std::string_view::npos;
}

void cut_at_metaspace(Pieces& pieces) {
  std::vector<Span> result;
  for (const Span& span : pieces.spans) {
    const std::string_view text = std::string_view(pieces.text).substr(span.begin, span.end - span.begin);
    size_t begin = 0;
    for (size_t at = 0; (at = next_metaspace_run(text, at)) != std::string_view::npos; at += kMetaspace.size()) {
      result.push_back({span.begin + begin, span.begin + at});
      begin = at;
    }
    result.push_back({span.begin + begin, span.end});
  }
  pieces.spans = std::move(result);
}

struct ByteAlphabet {
  std::array<std::string, 256> text;
  std::array<int16_t, 512> byte_of;  // by code point; -1: not in the alphabet
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet = [] {
    ByteAlphabet a;
    a.byte_of.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code = printable ? static_cast<char32_t>(byte) : next++;
      utf8_append(a.text[byte], code);
      a.byte_of[code] = static_cast<int16_t>(byte);
    }
    return a;
  }();
  return alphabet;
}

}  // namespace

std::string byte_alphabet_encode(std::string_view bytes) {
  const ByteAlphabet& alphabet = byte_alphabet();
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char c : bytes) out += alphabet.text[static_cast<unsigned char>(c)];
  return out;
}

bool byte_alphabet_decode(std::string_view text, std::string& bytes) {
  const ByteAlphabet& alphabet = byte_alphabet();
  bytes.clear();
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid || step.code >= alphabet.byte_of.size() || alphabet.byte_of[step.code] < 0) return false;
    bytes += static_cast<char>(alphabet.byte_of[step.code]);
    at += step.length;
  }
  return true;
}

bool never_crosses_metaspace(std::string_view token_text) {
  return next_metaspace_run(token_text, 0) == std::string_view::npos;
}

void PreTokenizer::add(PreStep step) { steps_.push_back(std::move(step)); }

Pieces PreTokenizer::apply(std::string text, bool at_start, RegexScratch& scratch) const {
  Pieces pieces;
  pieces.text = std::move(text);
  if (!pieces.text.empty()) pieces.spans.push_back({0, pieces.text.size()});
  bool alphabet = false;
  for (const PreStep& step : steps_) {
    if (const auto* s = std::get_if<SplitStep>(&step)) {
      split(pieces, *s, scratch);
    } else if (const auto* m = std::get_if<MetaspaceStep>(&step)) {
      metaspace(pieces, *m, at_start);
    } else if (std::holds_alternative<CutAtMetaspaceStep>(step)) {
      cut_at_metaspace(pieces);
    } else if (std::holds_alternative<PrefixSpaceStep>(step)) {
      rewrite(pieces, [](std::string_view piece, bool, std::string& out) {
        if (piece.substr(0, 1) != " ") out += ' ';
        out += piece;
      });
    } else {
      rewrite(pieces, [](std::string_view piece, bool, std::string& out) { out += byte_alphabet_encode(piece); });
      alphabet = true;
    }
  }
  if (alphabet) {  // The model takes bytes.
    rewrite(pieces, [](std::string_view piece, bool, std::string& out) {
      std::string bytes;
      byte_alphabet_decode(piece, bytes);
      out += bytes;
    });
  }
  return pieces;
}

}  // namespace sx
