#include "engine/convert_vocabulary.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "engine/sha256.h"
#include "text/json_view.h"
#include "text/pre_names.h"
#include "text/pretokenizer.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

namespace sx {
namespace {

using OrderedJson = nlohmann::ordered_json;

// One name per family of patterns; the first that fits is written.
constexpr const char* kPreNames[] = {
    "gpt-2",          "smollm",      "llama-bpe", "dbrx",   "qwen2",    "stablelm2",  "qwen35", "deepseek-llm",
    "deepseek-coder", "deepseek-v3", "falcon",    "tekken", "gpt-4o",   "bloom",      "viking", "superbpe",
    "bailingmoe",     "seed-coder",  "command-r", "olmo",   "tiny_aya", "exaone-moe", "jais-2", "laguna",
    "spark2_5",       "minicpm5",    "ufakzeka",  "youtu",  "hunyuan",  "default"};

// Words, numbers, spaces, code, scripts and signs on which pre-tokenisers differ.
constexpr const char* kSamples[] = {"Hello, world! It's 3.14159 o'clock; we'll DON'T 1234567 times.",
                                    "  two  spaces\n\n\tand tabs \r\n end ",
                                    "for (int i = 0; i < 10; ++i) { x[i] += \"a_b\"; }  // 100%",
                                    "Ünïcödé: naïve façade, straße, ελληνικά, русский, हिन्दी",
                                    "中文字符和日本語のテキスト、한국어 문장입니다。",
                                    "emoji 😀👩‍👩‍👧 and\u00a0no-break, \u200bzero width…",
                                    "e\u0301 a\u0308 <|im_start|>user</s><s> x"};

// The patterns by which a tokenizer.json cuts text, if it cuts as GGUF's byte-level vocabularies do.
struct Cutter {
  std::vector<std::string> patterns;
  bool byte_level = false, prefix_space = false;

  void read(const JsonView& view) {
    const std::string type = view.at("type").string();
    if (type == "Sequence") {
      const JsonView list = view.at("pretokenizers");
      for (size_t i = 0; i < list.size(); ++i) read(list.at(i));
    } else if (type == "Split" && view.at("pattern").has("Regex") && view.at("behavior").string() == "Isolated" &&
               !view.boolean("invert", false)) {
      patterns.push_back(view.at("pattern").at("Regex").string());
    } else if (type == "Digits" && view.boolean("individual_digits", false)) {
      patterns.emplace_back(R"(\p{N})");
    } else if (type == "ByteLevel") {
      byte_level = true;
      prefix_space = view.boolean("add_prefix_space", true);
      if (view.boolean("use_regex", true)) patterns.emplace_back(kGpt2Pattern);
    } else {
      patterns.push_back(type);  // fits no name, and shows up in the message
    }
  }
};

bool holds_type(const nlohmann::json& node, const char* type) {
  if (node.is_array())
    return std::any_of(node.begin(), node.end(), [&](const auto& child) { return holds_type(child, type); });
  if (!node.is_object()) return false;
  if (node.contains("type") && node["type"] == type) return true;
  return std::any_of(node.begin(), node.end(), [&](const auto& child) { return holds_type(child, type); });
}

// One spelling of a pattern for the many there are: published files have line ends and letters as themselves where we
// write escapes, or the other way round.
std::string spelt_out(std::string_view pattern) {
  std::string out;
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '\\' || at + 1 == pattern.size()) {
      out += pattern[at];
      continue;
    }
    const char next = pattern[++at];
    const size_t end = pattern.substr(at).starts_with("x{") ? pattern.find('}', at) : std::string_view::npos;
    unsigned code = 0;
    const bool number =
        end != std::string_view::npos &&
        std::from_chars(pattern.data() + at + 2, pattern.data() + end, code, 16).ptr == pattern.data() + end;
    if (number && code >= 0x80 && code <= 0x10FFFF) {
      utf8_append(out, code);
      at = end;
    } else if (next == 'r' || next == 'n' || next == 't') {
      out += next == 'r' ? '\r' : next == 'n' ? '\n' : '\t';
    } else {
      out += '\\', out += next;
    }
  }
  return out;
}

std::string find_pre_name(const Cutter& cutter, bool nfc, bool ignore_merges, const std::string& file) {
  for (const char* name : kPreNames) {
    const NamedPreTokenizer* pre = find_pre_tokenizer(name);
    if (pre && pre->nfc == nfc && pre->ignore_merges == ignore_merges && !cutter.prefix_space &&
        std::equal(pre->patterns.begin(), pre->patterns.end(), cutter.patterns.begin(), cutter.patterns.end(),
                   [](std::string_view a, std::string_view b) { return spelt_out(a) == spelt_out(b); })) {
      return name;
    }
  }
  std::string patterns;
  for (const auto& pattern : cutter.patterns) patterns += " '" + pattern + "'";
  fail("{}: GGUF has no name for this pre-tokeniser (patterns{}{}{}); --pre NAME gives the nearest one", file, patterns,
       nfc ? ", NFC" : "", cutter.prefix_space ? ", prefix space" : "");
}

std::vector<std::string> read_merges(const JsonView& model) {
  std::vector<std::string> out;
  const JsonView list = model.at("merges");
  out.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const auto& node = list.node()[i];
    if (!node.is_string()) {
      const JsonView pair = list.at(i);
      out.push_back(pair.at(size_t{0}).string() + " " + pair.at(1).string());
    } else if (const auto& text = node.get_ref<const std::string&>(); i > 0 || !text.starts_with("#version")) {
      out.push_back(text);
    }
  }
  return out;
}

// SentencePiece's scores: what merges earlier scores higher; what no merge makes comes last.
std::vector<float> scores_from_merges(const std::vector<std::string>& tokens, const std::vector<std::string>& merges) {
  std::unordered_map<std::string, float> rank;
  for (size_t i = 0; i < merges.size(); ++i) {
    std::string joined = merges[i];
    joined.erase(joined.find(' ', 1), 1);
    rank.emplace(std::move(joined), -static_cast<float>(i));
  }
  std::vector<float> out;
  for (const auto& token : tokens) {
    const auto found = rank.find(token);
    out.push_back(found == rank.end() ? -static_cast<float>(merges.size()) : found->second);
  }
  return out;
}

bool adds_space(const nlohmann::json& root) {
  if (root.contains("normalizer") && holds_type(root["normalizer"], "Prepend")) return true;
  if (!root.contains("pre_tokenizer") || !holds_type(root["pre_tokenizer"], "Metaspace")) return false;
  const std::string text = root["pre_tokenizer"].dump();
  return text.find(R"("prepend_scheme":"never")") == std::string::npos &&
         text.find(R"("add_prefix_space":false)") == std::string::npos;
}

void fill_tokens(const TokenizerParts& parts, int vocab, TokenizerData& out) {
  out.tokens = parts.vocabulary.text;
  out.types = parts.vocabulary.type;
  const size_t known = out.tokens.size();
  out.tokens.resize(std::max(known, static_cast<size_t>(vocab)));
  out.types.resize(out.tokens.size(), TokenType::kUnused);
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    const bool hole = i >= known || (out.types[i] == TokenType::kUnused && out.tokens[i].empty());
    if (hole) out.tokens[i] = fmt::format("[PAD{}]", i), out.types[i] = TokenType::kUnused;
  }
}

void compare(const TokenizerData& from, const TokenizerData& to, std::vector<std::string>& notes) {
  const auto before = TokenCodec::create(from), after = TokenCodec::create(to);
  for (const char* sample : kSamples) {
    for (const bool special : {false, true}) {
      const auto a = before->encode(sample, special, special), b = after->encode(sample, special, special);
      if (a == b && before->decode(a) == after->decode(a)) continue;
      notes.push_back(
          fmt::format("the converted vocabulary treats some texts differently, e.g. \"{}\": {} tokens before, {} after",
                      sample, a.size(), b.size()));
      return;
    }
  }
}

TokenizerData ids_of(const TokenizerData& from) {
  TokenizerData out;
  out.file = from.file;
  out.name = from.name;
  out.vocab = from.vocab;
  out.bos = from.bos, out.eos = from.eos, out.eot = from.eot, out.unk = from.unk, out.pad = from.pad;
  out.add_bos = from.add_bos, out.add_eos = from.add_eos;
  out.chat_template = from.chat_template;
  return out;
}

// What is added around a text.
OrderedJson post_processor(const TokenizerParts& parts) {
  if (parts.prefix.empty() && parts.suffix.empty()) return nullptr;
  OrderedJson single = OrderedJson::array(), pair = OrderedJson::array(), special = OrderedJson::object();
  const auto token = [&](Token id, int type) {
    const std::string& text = parts.vocabulary.text[static_cast<size_t>(id)];
    special[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    return OrderedJson{{"SpecialToken", {{"id", text}, {"type_id", type}}}};
  };
  for (const int type : {0, 1}) {
    OrderedJson side = OrderedJson::array();
    for (const Token id : parts.prefix) side.push_back(token(id, type));
    side.push_back({{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}});
    for (const Token id : parts.suffix) side.push_back(token(id, type));
    for (const auto& piece : side) pair.push_back(piece);
    if (type == 0) single = side;
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

OrderedJson split_step(std::string_view pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

OrderedJson byte_level(bool trim) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", trim}, {"use_regex", false}};
}

void byte_level_pipeline(const TokenizerData& gguf, const TokenTable& words, OrderedJson& out, OrderedJson& model) {
  const NamedPreTokenizer* pre = find_pre_tokenizer(gguf.pre);
  SX_ASSERT(pre);  // the tokenizer was made with it
  if (pre->nfc) out["normalizer"] = {{"type", "NFC"}};
  OrderedJson steps = OrderedJson::array();
  for (const auto pattern : pre->patterns) steps.push_back(split_step(pattern));
  steps.push_back(byte_level(true));
  out["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  out["decoder"] = byte_level(true);
  model["ignore_merges"] = pre->ignore_merges;
  model["merges"] = OrderedJson::array();
  // Merges of what is no token can never show, and readers of tokenizer.json refuse them.
  const auto known = [&](const std::string& text) { return words.find(text) != kNoToken; };
  for (const auto& merge : gguf.merges) {
    const size_t space = merge.find(' ', 1);
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    if (known(left) && known(right) && known(left + right)) model["merges"].push_back(merge);
  }
}

// All ways to make a piece from two others, in the order of the pieces' scores.
OrderedJson merges_from_scores(const TokenizerData& gguf) {
  std::unordered_map<std::string_view, size_t> ids;
  const auto normal = [&](size_t i) { return gguf.types.empty() || gguf.types[i] == TokenType::kNormal; };
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    if (normal(i)) ids[gguf.tokens[i]] = i;
  }
  struct Merge {
    float score;
    std::string_view left, right;
  };
  std::vector<Merge> merges;
  for (const auto& [piece, id] : ids) {
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      if ((static_cast<unsigned char>(piece[cut]) & 0xC0) == 0x80) continue;  // inside a character
      const std::string_view left = piece.substr(0, cut), right = piece.substr(cut);
      if (ids.count(left) && ids.count(right)) merges.push_back({gguf.scores[id], left, right});
    }
  }
  std::sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(ids[a.left], ids[a.right]) < std::pair(ids[b.left], ids[b.right]);
  });
  OrderedJson out = OrderedJson::array();
  for (const Merge& merge : merges) out.push_back(fmt::format("{} {}", merge.left, merge.right));
  return out;
}

void sentence_piece_pipeline(const TokenizerData& gguf, OrderedJson& out, OrderedJson& model) {
  const bool prefix = gguf.add_space_prefix != 0;
  OrderedJson normal = OrderedJson::array(), decode = OrderedJson::array();
  if (prefix) normal.push_back({{"type", "Prepend"}, {"prepend", kMetaspace}});
  normal.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMetaspace}});
  decode.push_back({{"type", "Replace"}, {"pattern", {{"String", kMetaspace}}}, {"content", " "}});
  decode.push_back({{"type", "ByteFallback"}});
  decode.push_back({{"type", "Fuse"}});
  if (prefix) decode.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  out["normalizer"] = {{"type", "Sequence"}, {"normalizers", normal}};
  out["pre_tokenizer"] = nullptr;
  out["decoder"] = {{"type", "Sequence"}, {"decoders", decode}};
  if (gguf.unk >= 0) model["unk_token"] = gguf.tokens[static_cast<size_t>(gguf.unk)];
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  model["ignore_merges"] = false;
  model["merges"] = merges_from_scores(gguf);
}

OrderedJson tokenizer_json(const TokenizerData& gguf, const TokenizerParts& parts) {
  OrderedJson added = OrderedJson::array();
  OrderedJson::object_t words;  // filled at its end: its own insertion searches all keys, and ours differ
  const TokenTable& v = parts.vocabulary;
  for (size_t i = 0; i < v.text.size(); ++i) {
    const bool padding = v.type[i] == TokenType::kUnused && v.text[i] == fmt::format("[PAD{}]", i);
    if (padding) continue;
    if (v.find(v.text[i]) == static_cast<Token>(i)) words.Container::emplace_back(v.text[i], i);
    const bool control = v.is_control(static_cast<Token>(i));
    if (!control && v.type[i] != TokenType::kUserDefined) continue;
    added.push_back({{"id", i},
                     {"content", v.text[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", special_strips_right(gguf, v.text[i])},
                     {"normalized", false},
                     {"special", control}});
  }
  OrderedJson out{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", added},
                  {"normalizer", nullptr},
                  {"pre_tokenizer", nullptr},
                  {"post_processor", post_processor(parts)},
                  {"decoder", nullptr}};
  OrderedJson model{{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"ignore_merges", false},
                    {"vocab", std::move(words)},
                    {"merges", nullptr}};
  if (gguf.model == "llama") sentence_piece_pipeline(gguf, out, model);
  else byte_level_pipeline(gguf, parts.vocabulary, out, model);
  out["model"] = std::move(model);
  return out;
}

OrderedJson tokenizer_config(const TokenizerData& gguf, const TokenizerParts& parts) {
  OrderedJson out{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, int32_t> names[] = {
      {"bos_token", gguf.bos}, {"eos_token", gguf.eos}, {"unk_token", gguf.unk}, {"pad_token", gguf.pad}};
  for (const auto& [name, id] : names) {
    if (id >= 0) out[name] = gguf.tokens[static_cast<size_t>(id)];
  }
  out["add_bos_token"] = !parts.prefix.empty();
  out["add_eos_token"] = !parts.suffix.empty();
  if (!gguf.chat_template.empty()) out["chat_template"] = gguf.chat_template;
  return out;
}

}  // namespace

namespace {

[[noreturn]] void refuse_unigram(const TokenizerData& folder) {
  fail("{}: a Unigram vocabulary cannot be written to GGUF; --no-tokenizer leaves it out", folder.file);
}

// What all of a folder's vocabularies have in common.
void take_ids(const TokenizerParts& parts, TokenizerData& out) {
  const auto take = [](int32_t& id, Token found) { id = found >= 0 ? found : id; };
  take(out.bos, parts.bos), take(out.eos, parts.eos), take(out.unk, parts.unk);
  if (out.model == "llama" && out.unk >= 0) out.types[static_cast<size_t>(out.unk)] = TokenType::kUnknown;
  for (const Token end : parts.ends) {
    if (end != out.eos && out.eot < 0) out.eot = end;
  }
  out.add_bos = !parts.prefix.empty();
  out.add_eos = !parts.suffix.empty();
  out.chat_template = parts.chat_template;
}

TokenizerData pieces_to_gguf(const TokenizerData& folder, std::vector<std::string>& notes) {
  TokenizerData out = ids_of(folder);
  const auto parts = sentencepiece_tokenizer(folder);
  const SentencePieceModel model = read_sentencepiece(folder.sentencepiece, folder.file);
  if (model.unigram) refuse_unigram(folder);
  fill_tokens(*parts, folder.vocab, out);
  out.model = "llama";
  for (const auto& piece : model.pieces) out.scores.push_back(piece.score);
  out.scores.resize(out.tokens.size(), 0.0f);
  out.add_space_prefix = model.dummy_prefix;
  take_ids(*parts, out);
  compare(folder, out, notes);
  return out;
}

}  // namespace

TokenizerData vocabulary_to_gguf(const TokenizerData& folder, const std::string& pre, std::vector<std::string>& notes) {
  TokenizerData out = ids_of(folder);
  if (!folder.sentencepiece.empty()) return pieces_to_gguf(folder, notes);
  if (folder.tokenizer_json.empty()) return out;
  const auto parts = json_tokenizer(folder);  // checks everything, so that what follows may confidence the file
  const nlohmann::json root = nlohmann::json::parse(folder.tokenizer_json);
  const JsonView view(root, folder.file, true), model = view.at("model");
  if (model.at("vocab").node().is_array()) refuse_unigram(folder);
  fill_tokens(*parts, folder.vocab, out);
  out.merges = read_merges(model);
  Cutter cutter;
  if (view.has("pre_tokenizer")) cutter.read(view.at("pre_tokenizer"));
  if (cutter.byte_level) {
    out.model = "gpt2";
    const bool nfc = root.contains("normalizer") && holds_type(root["normalizer"], "NFC");
    out.pre = pre.empty() ? find_pre_name(cutter, nfc, model.boolean("ignore_merges", false), folder.file) : pre;
  } else {
    out.model = "llama";
    out.scores = scores_from_merges(out.tokens, out.merges);
    out.merges.clear();
    out.add_space_prefix = adds_space(root);
  }
  take_ids(*parts, out);
  compare(folder, out, notes);
  return out;
}

TokenizerData vocabulary_to_folder(const TokenizerData& gguf, std::vector<std::string>& notes) {
  TokenizerData out = ids_of(gguf);
  if (gguf.tokens.empty()) return out;
  const auto parts = gguf_tokenizer(gguf);
  try {
    out.tokenizer_json = tokenizer_json(gguf, *parts).dump(1) + "\n";
    out.tokenizer_config_json = tokenizer_config(gguf, *parts).dump(2) + "\n";
  } catch (const nlohmann::json::exception& error) {
    fail("{}: a token cannot be written to JSON: {}", gguf.file, error.what());
  }
  compare(gguf, out, notes);
  return out;
}

// The texts of all tokens with their ids. Padding up to the size of the embedding is left out: only some files have it.
std::string vocabulary_fingerprint(const TokenizerData& data) {
  const auto parts = tokenizer_parts(data);
  const auto& texts = parts->vocabulary.text;
  Sha256 sum;
  for (size_t id = 0; id < texts.size(); ++id) {
    if (texts[id].empty() || texts[id] == fmt::format("[PAD{}]", id)) continue;
    const std::string entry = fmt::format("{} {} {}\n", id, texts[id].size(), texts[id]);
    sum.add(std::as_bytes(std::span(entry)));
  }
  return sum.hex().substr(0, 16);
}

}  // namespace sx
