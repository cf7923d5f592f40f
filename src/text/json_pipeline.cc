// One function per component, one branch per published type. Defaults are those of the `tokenizers` library.
#include "text/json_pipeline.h"

#include <memory>

namespace sx {
namespace {

constexpr int kDeepest = 16;  // nested Sequences

struct SplitPattern {
  Regex regex;
  std::string literal;  // empty for a regular expression
};

SplitPattern read_pattern(const JsonView& view) {
  if (view.has("Regex")) {
    const JsonView regex = view.at("Regex");
    return {Regex(regex.string(), regex.where()), ""};
  }
  if (!view.has("String")) view.wrong("expected {{\"Regex\": ...}} or {{\"String\": ...}}");
  const JsonView text = view.at("String");
  if (text.string().empty()) text.wrong("is empty");
  return {Regex::literal(text.string(), text.where()), text.string()};
}

void check_depth(const JsonView& view, int depth) {
  if (depth > kDeepest) view.wrong("Sequences nest deeper than {}", kDeepest);
}

void normalizer_step(const JsonView& view, Normalizer& out, int depth) {
  check_depth(view, depth);
  const std::string type = view.at("type").string();
  if (type == "Sequence") {
    const JsonView list = view.at("normalizers");
    for (size_t i = 0; i < list.size(); ++i) normalizer_step(list.at(i), out, depth + 1);
  } else if (type == "NFC") {
    out.add(NormalizeForm{NormalForm::kNfc});
  } else if (type == "NFD") {
    out.add(NormalizeForm{NormalForm::kNfd});
  } else if (type == "NFKC") {
    out.add(NormalizeForm{NormalForm::kNfkc});
  } else if (type == "NFKD") {
    out.add(NormalizeForm{NormalForm::kNfkd});
  } else if (type == "Lowercase") {
    out.add(NormalizeLower{});
  } else if (type == "Strip") {
    out.add(NormalizeStrip{view.boolean("strip_left", true), view.boolean("strip_right", true)});
  } else if (type == "Prepend") {
    out.add(NormalizePrepend{view.at("prepend").string()});
  } else if (type == "Replace") {
    SplitPattern pattern = read_pattern(view.at("pattern"));
    out.add(NormalizeReplace{std::move(pattern.regex), view.at("content").string(), pattern.literal});
  } else if (type == "Precompiled") {
    view.wrong("a precompiled character map (T5, XLM-R and the like) is not supported");
  } else {
    view.wrong("normalizer type \"{}\" is not supported", type);
  }
}

SplitBehavior read_behavior(const JsonView& view) {
  const std::string& name = view.string();
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  view.wrong("is \"{}\", expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", name);
}

MetaspaceStep::Prepend read_prepend_scheme(const JsonView& view) {
  const bool said = view.has("prepend_scheme"), prefix = view.boolean("add_prefix_space", true);
  const std::string scheme = view.string("prepend_scheme", prefix ? "always" : "never");
  if (!prefix && scheme != "never") view.wrong("add_prefix_space is false but prepend_scheme is \"{}\"", scheme);
  if (scheme == "always") return MetaspaceStep::Prepend::kAlways;
  if (scheme == "first") return MetaspaceStep::Prepend::kFirst;
  if (scheme == "never") return MetaspaceStep::Prepend::kNever;
  (said ? view.at("prepend_scheme") : view).wrong("is \"{}\", expected always, first or never", scheme);
}

std::string read_replacement(const JsonView& view) {
  std::string replacement = view.string("replacement", std::string(kMetaspace));
  const Utf8Step step = utf8_step(replacement, 0);
  if (replacement.empty() || step.length != replacement.size()) view.wrong("replacement must be one character");
  return replacement;
}

class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(PreTokenizer& out) : out_(out) {}

  void read(const JsonView& view, int depth) {
    check_depth(view, depth);
    const std::string type = view.at("type").string();
    const std::string& where = view.where();
    if (type == "Sequence") {
      const JsonView list = view.at("pretokenizers");
      for (size_t i = 0; i < list.size(); ++i) read(list.at(i), depth + 1);
    } else if (type == "Split") {
      SplitPattern pattern = read_pattern(view.at("pattern"));
      add(SplitStep{std::move(pattern.regex), read_behavior(view.at("behavior")), view.boolean("invert", false)});
    } else if (type == "ByteLevel") {
      if (info.byte_level) view.wrong("a second ByteLevel");
      if (view.boolean("add_prefix_space", true)) add(PrefixSpaceStep{});
      if (view.boolean("use_regex", true)) add(SplitStep{Regex(kGpt2Pattern, where)});
      info.byte_level = info.any = true;
    } else if (type == "Digits") {
      const bool single = view.boolean("individual_digits", false);
      add(SplitStep{Regex(R"(\p{N})", where), single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
    } else if (type == "Punctuation") {
      const SplitBehavior behavior =
          view.has("behavior") ? read_behavior(view.at("behavior")) : SplitBehavior::kIsolated;
      add(SplitStep{Regex(R"([!-/:-@\[-`{-~\p{P}])", where), behavior});
    } else if (type == "Whitespace") {
      // The words of another regex engine than the patterns': joiners count, numbers such as U+00B2 do not.
      constexpr std::string_view kWords =
          R"((?:[\x{200c}\x{200d}]|(?![\xb2\xb3\xb9\xbc-\xbe])\w)+|(?:[\xb2\xb3\xb9\xbc-\xbe]|[^\w\s\x{200c}\x{200d}])+)";
      add(SplitStep{Regex(kWords, where), SplitBehavior::kRemoved, true});
    } else if (type == "WhitespaceSplit") {
      add(SplitStep{Regex(R"(\s)", where), SplitBehavior::kRemoved});
    } else if (type == "Metaspace") {
      add(MetaspaceStep{read_replacement(view), read_prepend_scheme(view), view.boolean("split", true)});
    } else {
      view.wrong("pre_tokenizer type \"{}\" is not supported", type);
    }
  }

  PreTokenizerInfo info;

 private:
  void add(PreStep step) {
    if (info.byte_level && !spelled_) {  // Steps behind ByteLevel see its alphabet.
      out_.add(ByteAlphabetStep{});
      spelled_ = true;
    }
    out_.add(std::move(step));
    info.any = true;
  }
  PreTokenizer& out_;
  bool spelled_ = false;
};

void template_side(const JsonView& view, int64_t vocab, std::vector<Token>& prefix, std::vector<Token>& suffix) {
  const JsonView single = view.at("single");
  std::vector<Token> before, after;
  bool seen = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonView piece = single.at(i);
    if (piece.has("Sequence")) {
      if (seen) piece.wrong("the sequence occurs twice");
      seen = true;
      continue;
    }
    const JsonView name = piece.at("SpecialToken").at("id");
    const JsonView ids = view.at("special_tokens").at(name.string().c_str()).at("ids");
    for (size_t k = 0; k < ids.size(); ++k) (seen ? after : before).push_back(ids.at(k).index(vocab));
  }
  if (!seen) single.wrong("holds no sequence");
  prefix.insert(prefix.begin(), before.begin(), before.end());
  suffix.insert(suffix.end(), after.begin(), after.end());
}

void post_step(const JsonView& view, int64_t vocab, std::vector<Token>& prefix, std::vector<Token>& suffix, int depth) {
  check_depth(view, depth);
  const std::string type = view.at("type").string();
  if (type == "Sequence") {
    const JsonView list = view.at("processors");
    for (size_t i = 0; i < list.size(); ++i) post_step(list.at(i), vocab, prefix, suffix, depth + 1);
  } else if (type == "TemplateProcessing") {
    template_side(view, vocab, prefix, suffix);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    prefix.insert(prefix.begin(), view.at("cls").at(size_t{1}).index(vocab));
    suffix.push_back(view.at("sep").at(size_t{1}).index(vocab));
  } else if (type != "ByteLevel") {  // ByteLevel only trims offsets, which are not kept.
    view.wrong("post_processor type \"{}\" is not supported", type);
  }
}

std::string replace_text(const std::string& text, const SplitPattern& pattern, const std::string& content) {
  std::string out;
  size_t done = 0;
  RegexScratch scratch;
  Regex::Match match{};
  for (size_t end = std::string::npos; pattern.regex.find_next(text, end, scratch, match); end = match.end) {
    out.append(text, done, match.begin - done).append(content);
    done = match.end;
  }
  return out.append(text, done);
}

std::string strip_text(std::string text, const std::string& content, int64_t start, int64_t stop) {
  for (; start > 0 && text.compare(0, content.size(), content) == 0; --start) text.erase(0, content.size());
  for (; stop > 0 && text.size() >= content.size() && text.ends_with(content); --stop)
    text.resize(text.size() - content.size());
  return text;
}

void decoder_step(const JsonView& view, DecoderSteps& out, bool& fused, int depth) {
  check_depth(view, depth);
  const std::string type = view.at("type").string();
  const bool joined = fused || out.byte_fallback;  // Single tokens need not be valid text.
  if (type == "Sequence") {
    const JsonView list = view.at("decoders");
    for (size_t i = 0; i < list.size(); ++i) decoder_step(list.at(i), out, fused, depth + 1);
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "ByteLevel") {
    if (joined) view.wrong("ByteLevel behind Fuse or ByteFallback is not supported");
    out.each.push_back([](std::string text, bool) {
      std::string bytes;
      return byte_alphabet_decode(text, bytes) ? bytes : text;
    });
    out.byte_fallback = true;
  } else if (type == "ByteFallback") {
    if (joined) view.wrong("ByteFallback behind Fuse or ByteLevel is not supported");
    out.each.push_back([](std::string text, bool) {
      const int byte = parse_byte_token(text);
      return byte < 0 ? text : std::string(1, static_cast<char>(byte));
    });
    out.byte_fallback = true;
  } else if (type == "Metaspace") {
    if (joined) view.wrong("Metaspace behind Fuse or ByteFallback is not supported");
    const bool drops = read_prepend_scheme(view) != MetaspaceStep::Prepend::kNever;
    const std::string mark = read_replacement(view);
    out.first_differs = out.first_differs || drops;
    out.each.push_back([mark, drops](std::string text, bool first) {
      for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;) {
        text.replace(at, mark.size(), first && drops ? "" : " ");
      }
      return text;
    });
  } else if (type == "Replace") {
    if (joined) view.wrong("Replace behind Fuse or ByteFallback is not supported");
    auto pattern = std::make_shared<SplitPattern>(read_pattern(view.at("pattern")));
    out.each.push_back([pattern, content = view.at("content").string()](std::string text, bool) {
      return replace_text(text, *pattern, content);
    });
  } else if (type == "Strip") {
    const std::string content = view.at("content").string();
    if (content.empty() || utf8_step(content, 0).length != content.size())
      view.at("content").wrong("must be one character");
    const int32_t start = view.at("start").index(1 << 20), stop = view.at("stop").index(1 << 20);
    if (!fused) {
      if (out.byte_fallback) view.wrong("Strip between ByteFallback and Fuse is not supported");
      out.each.push_back([=](std::string text, bool) { return strip_text(std::move(text), content, start, stop); });
    } else if (stop != 0) {
      view.wrong("stop is {}: stripping the end of the whole text is not supported", stop);
    } else if (start > 0) {
      if (out.rule.strip_count > 0) view.wrong("a second Strip behind Fuse is not supported");
      out.rule.strip = content, out.rule.strip_count = start;
    }
  } else {
    view.wrong("decoder type \"{}\" is not supported", type);
  }
}

}  // namespace

void read_normalizer(const JsonView& view, Normalizer& out) { normalizer_step(view, out, 0); }

PreTokenizerInfo read_pre_tokenizer(const JsonView& view, PreTokenizer& out) {
  PreTokenizerReader reader(out);
  reader.read(view, 0);
  return reader.info;
}

void read_post_processor(const JsonView& view, int64_t vocab, std::vector<Token>& prefix, std::vector<Token>& suffix) {
  post_step(view, vocab, prefix, suffix, 0);
}

std::string DecoderSteps::apply(std::string text, bool first) const {
  for (const auto& step : each) text = step(std::move(text), first);
  return text;
}

DecoderSteps read_decoder(const JsonView& view) {
  DecoderSteps steps;
  bool fused = false;
  decoder_step(view, steps, fused, 0);
  return steps;
}

}  // namespace sx
