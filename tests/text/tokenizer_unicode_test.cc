// UTF-8 in and out, normal forms, case mapping, classes: against values worked out by hand and by independent means.
#include <gtest/gtest.h>

#include <random>

#include "text/unicode.h"

namespace sx {
namespace {

const std::string kBad(kReplacementCharacter);

TEST(Utf8, KeepsWhatIsValid) {
  const std::string text = "aé漢😀\xF4\x8F\xBF\xBF";
  EXPECT_TRUE(utf8_is_valid(text));
  EXPECT_EQ(utf8_lossy(text), text);
}

TEST(Utf8, ReplacesEachIllFormedPartOnce) {
  EXPECT_EQ(utf8_lossy("a\xFF"
                       "b"),
            "a" + kBad + "b");
  EXPECT_EQ(utf8_lossy("\xE6\xBC"), kBad);  // a truncated character
  EXPECT_EQ(utf8_lossy("\xE6\xBC"
                       "a"),
            kBad + "a");
  EXPECT_EQ(utf8_lossy("\xC0\xAF"), kBad + kBad);                        // overlong
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), kBad + kBad + kBad);             // a surrogate
  EXPECT_EQ(utf8_lossy("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // above 10FFFF
  EXPECT_EQ(utf8_lossy("\xF0\x9F\x98"
                       "\xF0\x9F\x98\x80"),
            kBad + "😀");
  EXPECT_EQ(utf8_lossy("\x80\x80"), kBad + kBad);
}

TEST(Utf8, LossyOutputIsAlwaysValid) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = random() % 12; i > 0; --i) bytes += static_cast<char>(random() % 3 ? 0x80 + random() % 128 : random());
    EXPECT_TRUE(utf8_is_valid(utf8_lossy(bytes)));
  }
}

TEST(Utf8, OpenTailIsWhatMoreBytesCouldComplete) {
  EXPECT_EQ(utf8_open_tail("abc"), 0u);
  EXPECT_EQ(utf8_open_tail(""), 0u);
  EXPECT_EQ(utf8_open_tail("a\xE6"), 1u);
  EXPECT_EQ(utf8_open_tail("a\xE6\xBC"), 2u);
  EXPECT_EQ(utf8_open_tail("a\xE6\xBC\xA2"), 0u);
  EXPECT_EQ(utf8_open_tail("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(utf8_open_tail("\xE0\x80"), 0u);  // already wrong: E0 must be followed by A0..BF
  EXPECT_EQ(utf8_open_tail("\xFF"), 0u);
  EXPECT_EQ(utf8_open_tail("\x80\x80\x80\x80"), 0u);
}

TEST(Utf8, WhiteSpaceAtTheEnds) {
  EXPECT_EQ(white_space_prefix(" \t\xC2\xA0\xE3\x80\x80x "), 7u);
  EXPECT_EQ(white_space_suffix("x \xE3\x80\x80\n"), 5u);
  EXPECT_EQ(white_space_suffix("x"), 0u);
  EXPECT_EQ(white_space_suffix("  "), 2u);
  EXPECT_EQ(white_space_prefix("\xE2\x80\x8Bx"), 0u);  // zero width space is no white space
}

std::string nfc(std::string_view text) { return normalize(text, NormalForm::kNfc); }
std::string nfd(std::string_view text) { return normalize(text, NormalForm::kNfd); }

TEST(NormalForms, ComposeAndDecompose) {
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(nfd("\u00E9"), "e\u0301");
  EXPECT_EQ(nfc("\u0344"), "\u0308\u0301");          // never composes back
  EXPECT_EQ(nfc("\u212B"), "\u00C5");                // Angstrom sign
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093C");          // excluded from composition
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");  // marks in order of class
  EXPECT_EQ(nfc("s\u0323\u0307"), "\u1E69");
  EXPECT_EQ(nfc("s\u0307\u0323"), "\u1E69");
  EXPECT_EQ(nfc("\u1100\u1161\u11A8"), "\uAC01");  // Hangul
  EXPECT_EQ(nfd("\uAC01"), "\u1100\u1161\u11A8");
  EXPECT_EQ(nfc("\uF900"), "\u8C48");                // a compatibility ideograph with a canonical mapping
  EXPECT_EQ(nfc("a\u0305\u0300"), "a\u0305\u0300");  // blocked by a mark of the same class
  EXPECT_EQ(nfc("\u0301"), "\u0301");
  EXPECT_EQ(nfc("\uAC00\u11A7"), "\uAC00\u11A7");  // composes with nothing; utf8proc 2.8 alone would lose it
  EXPECT_EQ(nfc(std::string("e\u0301\0x", 5)), std::string("\u00E9\0x", 4));
}

TEST(NormalForms, Compatibility) {
  EXPECT_EQ(normalize("\uFB01 \u00BD e\u0301", NormalForm::kNfkc), "fi 1\u20442 \u00E9");
  EXPECT_EQ(normalize("\uFB01 \u00BD \u00E9", NormalForm::kNfkd), "fi 1\u20442 e\u0301");
  EXPECT_EQ(normalize("\uFDFA", NormalForm::kNfkd).size(), 33u);  // one character becomes eighteen
  EXPECT_EQ(normalize("\u00A0", NormalForm::kNfkc), " ");
}

TEST(NormalForms, AreIdempotentAndAgree) {
  std::mt19937 random(3);
  const std::string marks[] = {"\u0301", "\u0323", "\u0308", "\u3099", "\u0345", "\u1161", "\u11A8"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 6; ++i) {
      if (random() % 2) {
        text += marks[random() % 7];
        continue;
      }
      char32_t code = random() % 0x30000;
      if (code >= 0xD800 && code < 0xE000) code = 'a' + code % 26;
      utf8_append(text, code);
    }
    EXPECT_EQ(nfc(nfc(text)), nfc(text));
    EXPECT_EQ(nfd(nfc(text)), nfd(text));
    EXPECT_EQ(nfc(nfd(text)), nfc(text));
  }
}

std::string title(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); at += utf8_step(text, at).length) append_title(out, utf8_step(text, at).code);
  return out;
}

TEST(UpperCase, OneCharacterMayBecomeThree) {
  EXPECT_EQ(upper_case("abc ñß\u01C6"), "ABC ÑSS\u01C4");
  EXPECT_EQ(upper_case("\u1E9E\u0130"), "\u1E9E\u0130");  // upper case already, though their folding is long
  EXPECT_EQ(upper_case("\uFB03"), "FFI");
  EXPECT_EQ(upper_case("\u0390"), "\u0399\u0308\u0301");
  EXPECT_EQ(upper_case("\u1F80\u1FB3"), "\u1F08\u0399\u0391\u0399");
}

TEST(TitleCase, PerCharacter) {
  EXPECT_EQ(title("añ\u01C4"), "AÑ\u01C5");
  EXPECT_EQ(title("ß\uFB01\u0149"), "SsFi\u02BCN");
  EXPECT_EQ(title("\u1FB2\u1FB3\u1F88"), "\u1FBA\u0345\u1FBC\u1F88");
}

TEST(CharacterClasses, AFewOfEach) {
  for (char32_t c : std::u32string(U"aZ9é漢½Ⅷ")) EXPECT_TRUE(is_alphanumeric(c)) << uint32_t{c};
  for (char32_t c : {U' ', U'_', U'\u0301', U'\U0001F389', U'\uE000'}) EXPECT_FALSE(is_alphanumeric(c)) << uint32_t{c};
  for (char32_t c : {U'a', U'Ж', U'\u01C5', U'ª'}) EXPECT_TRUE(is_cased(c)) << uint32_t{c};
  for (char32_t c : {U'1', U'漢', U'\u0301'}) EXPECT_FALSE(is_cased(c)) << uint32_t{c};
  for (char32_t c : {U' ', U'é', U'\U0001F389'}) EXPECT_TRUE(is_printable(c)) << uint32_t{c};
  for (char32_t c : {U'\n', U'\u00A0', U'\u200B', U'\uE000', U'\u0378'}) EXPECT_FALSE(is_printable(c)) << uint32_t{c};
}

TEST(LowerCase, PerCharacter) {
  EXPECT_EQ(lower_case("ABCxyz123"), "abcxyz123");
  EXPECT_EQ(lower_case("ÄÖÜẞΣЖ"), "äöüßσж");
  EXPECT_EQ(lower_case("\u0130"), "i\u0307");
  EXPECT_EQ(lower_case("\u01C4\u01C5\u01C6"), "\u01C6\u01C6\u01C6");
  EXPECT_EQ(lower_case("\u0100\u0101\u0102"), "\u0101\u0101\u0103");
  EXPECT_EQ(lower_case("\U00010400漢"), "\U00010428漢");
}

}  // namespace
}  // namespace sx
