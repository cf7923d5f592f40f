// The template language against expectations written down by hand; tools/check_templates.py compares with Python.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "text/jinja/template.h"
#include "text/jinja/string_ops.h"

namespace {

using Json = nlohmann::ordered_json;
using sx::jinja::Template;

std::string render(const std::string& source, const Json& context = Json::object()) {
  return Template::parse(source, "test").render(context);
}

std::string error_of(const std::string& source, const Json& context = Json::object()) {
  try {
    return "no error, but: " + render(source, context);
  } catch (const sx::Error& error) { return error.what(); }
}

struct Case {
  const char* source;
  const char* expected;
};

void check(std::initializer_list<Case> cases) {
  static const Json context = Json::parse(R"({"x": 5, "name": "World", "list": [3, 1, 2], "uni": "añ🎉",
    "dict": {"b": 1, "a": 2, "items": 3}, "people": [{"n": "Ann", "age": 30}, {"n": "bob", "age": 25}],
    "nothing": null})");
  for (const Case& c : cases) EXPECT_EQ(render(c.source, context), c.expected) << c.source;
}

TEST(Jinja, PrintsValuesAsPythonDoes) {
  check({{"{{ x }} {{ 1.0 }} {{ 1e16 }} {{ 0.1 + 0.2 }}", "5 1.0 1e+16 0.30000000000000004"},
         {"{{ true }} {{ none }} {{ missing }}|", "True None |"},
         {"{{ [1, 'a', \"it's\", none, (1,), {'k': 2.5}] }}", "[1, 'a', \"it's\", None, (1,), {'k': 2.5}]"},
         {"{{ ['\\n', '\\x00', '\\u200b', 'é'] }}", "['\\n', '\\x00', '\\u200b', 'é']"},
         {"{{ range(3) }} {{ {}.items() }}", "range(0, 3) dict_items([])"}});
}

TEST(Jinja, ComputesAsPythonDoes) {
  check({{"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }}", "3 -4 2 3.5 1024"},
         {"{{ 2 ** 3 ** 2 }} {{ 2 + 3 * 4 }} {{ 1 ~ 2 }} {{ 'a' * 3 }}", "64 14 12 aaa"},
         {"{{ 1 < 2 < 3 }} {{ 1 == true }} {{ 'b' not in dict }} {{ not x }}", "True True False False"},
         {"{{ 0 or 'b' }} {{ x and name }} {{ 'y' if x > 9 else 'n' }} {{ 1 if false }}|", "b World n |"}});
}

TEST(Jinja, ReachesIntoValues) {
  check({{"{{ dict.b }}{{ dict['a'] }}{{ list[-1] }}{{ list[9] }}{{ list[1:] }}{{ name[::-1] }}", "122[1, 2]dlroW"},
         {"{{ dict['items'] }} {{ dict.items()|length }} {{ nothing.foo }}|", "3 3 |"},
         {"{{ uni|length }} {{ uni[1] }} {{ uni[1:] }} {{ uni[::-1] }} {{ uni.upper() }}", "3 ñ ñ🎉 🎉ña AÑ🎉"}});
}

TEST(Jinja, RunsStatements) {
  check(
      {{"{% if x > 9 %}a{% elif x > 4 %}b{% else %}c{% endif %}", "b"},
       {"{% for i in list %}{{ loop.index }}:{{ i }}{{ ',' if not loop.last }}{% endfor %}", "1:3,2:1,3:2"},
       {"{% for i in list if i > 1 %}{{ i }}{% else %}none{% endfor %}", "32"},
       {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "013"},
       {"{% set n = namespace(s=0) %}{% for i in list %}{% set n.s = n.s + i %}{% endfor %}{{ n.s }}", "6"},
       {"{% set v = 1 %}{% for i in list %}{% set v = i %}{% endfor %}{{ v }}", "1"},
       {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t %}[{{ a }}]{% endset %}{{ t }}", "12[1]"},
       {"{% with q = 7 %}{{ q }}{% endwith %}{{ q }}{% filter upper %}abc{% endfilter %}", "7ABC"},
       {"{% raw %}{{ x }}{% endraw %}{# gone #}{% generation %}g{% endgeneration %}", "{{ x }}g"}});
}

TEST(Jinja, CallsMacros) {
  check({{"{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, b=3) }} {{ m(b=5) }}", "1-2 1-3 -5"},
         {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, k=2) }}", "(1,){'k': 2}"},
         {"{% macro m() %}[{{ caller('q') }}]{% endmacro %}{% call(v) m() %}{{ v }}{{ x }}{% endcall %}", "[q5]"},
         {"{% macro f(n) %}{{ n }}{{ f(n - 1) if n > 0 }}{% endmacro %}{{ f(3) }}", "3210"}});
}

TEST(Jinja, AppliesFilters) {
  check({{"{{ list|sort|join(',') }} {{ people|map(attribute='n')|list }} {{ list|sum }}", "1,2,3 ['Ann', 'bob'] 6"},
         {"{{ people|selectattr('age', 'gt', 26)|map(attribute='n')|first }} {{ list|reject('odd')|list }}", "Ann [2]"},
         {"{{ missing|default('d') }} {{ '' |default('e', true) }} {{ '4.7'|int }} {{ -3|abs }}", "d e 4 3"},
         {"{{ dict|tojson }} {{ [1, {}]|tojson(indent=2) }}", "{\"b\": 1, \"a\": 2, \"items\": 3} [\n  1,\n  {}\n]"},
         {"{{ '<ü\"\\n'|tojson }} {{ 'ü'|tojson(ensure_ascii=true) }}", "\"<ü\\\"\\n\" \"\\u00fc\""},
         {"{{ dict|dictsort }}", "[('a', 2), ('b', 1), ('items', 3)]"},
         {"{{ 'a\\nb'|indent(2) }} {{ '<'|e }}", "a\n  b &lt;"}});
}

TEST(Jinja, ControlsWhitespace) {
  check({{"a\n  {% if x %}\n  b\n  {% endif %}\nc", "a\n  b\nc"},
         {"a\n  {%- if x -%}\n  b\n  {%- endif %}\nc", "abc"},
         {"a\n  {%+ if x +%}\nb{% endif %}", "a\n  \nb"},
         {"a\n  {{ x }}\n  {{- x -}}\n b\n", "a\n  55b"},
         {"{# c #}\nx\n\n", "x\n"}});
}

TEST(Jinja, SharesMutableValuesWhereAllowed) {
  check({{"{% set a = [] %}{% set b = a %}{% set _ = b.append(1) %}{{ a }}", "[1]"},
         {"{% set d = {} %}{% set _ = d.update({'k': 1}) %}{{ d }}{{ d.pop('k') }}{{ d }}", "{'k': 1}1{}"},
         {"{% set l = [1, 3] %}{% set _ = l.insert(0, 9) %}{{ l }}{{ l.pop() }}", "[9, 1, 3]3"},
         {"{% set a = [1] %}{% set _ = a.append(a) %}{{ a }} {{ a == a }}", "[1, [...]] True"}});
  sx::jinja::RenderSettings settings;
  settings.read_only = true;
  const Template t = Template::parse("{% set a = [] %}{% set _ = a.append(1) %}", "t");
  EXPECT_THROW(t.render(Json::object(), {}, settings), sx::Error);
}

TEST(Jinja, ErrorsNameTemplateAndLine) {
  EXPECT_EQ(error_of("a\n\n{{ missing.foo }}"), "test:3: 'missing' is undefined");
  EXPECT_EQ(error_of("{{ raise_exception('no, ' ~ 5) }}"), "test:1: the template rejects this input: no, 5");
  EXPECT_THAT(error_of("\n{% if x %}"), testing::HasSubstr("test:2: expected 'endif'"));
  EXPECT_THAT(error_of("\n{% bogus %}"), testing::HasSubstr("test:2: unknown tag 'bogus'"));
  EXPECT_THAT(error_of("{% include 'x' %}"), testing::HasSubstr("'include' is not allowed"));
  EXPECT_THAT(error_of("{{ 'a'|nope }}"), testing::HasSubstr("no filter named 'nope'"));
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}"), testing::HasSubstr("64 bits"));
  EXPECT_THAT(error_of("{{ 99999999999999999999 }}"), testing::HasSubstr("too large"));
  EXPECT_THAT(error_of("{{ [1]|random }}"), testing::HasSubstr("the filter 'random' is not supported"));
}

// What Python has and this interpreter does not must end in an error that names it, never in other text.
TEST(Jinja, ErrorsNameWhatIsNotSupported) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ '%s' % 5 }}", "formatting a string with % is not supported"},
      {"{{ '{}'.format(5) }}", "'str' object has no attribute 'format' that is supported"},
      {"{{ 'a'.zfill(3) }}", "'zfill' that is supported"},
      {"{{ '1'.isdigit() }}", "'isdigit' that is supported"},
      {"{% set l = [2, 1] %}{% set _ = l.sort() %}", "'sort' that is supported"},
      {"{{ 1.5.is_integer() }}", "'is_integer' that is supported"},
      {"{{ [1]|batch(2)|list }}", "no filter named 'batch' is supported"},
      {"{{ [[1]]|map('center', 3)|list }}", "no filter named 'center' is supported"},
      {"{{ 'a' is upper }}", "no test named 'upper' is supported"},
      {"{{ '5'|int(0, 16) }}", "int() takes at most 1 arguments"},
      {"{{ cycler(1, 2).next() }}", "'cycler' is undefined"},
      {"{% for i in [1] %}{{ loop.cycle(1, 2) }}{% endfor %}", "loop.cycle is not supported"},
      {"{% macro m() %}{% endmacro %}{{ m.name }}", "attribute 'name' of macro 'm'"},
      {"{{ 0x1f }}", "only decimal numbers"},
      {"{{ 007 }}", "only decimal numbers"}};
  for (const auto& [source, expected] : cases) EXPECT_THAT(error_of(source), testing::HasSubstr(expected)) << source;
}

TEST(Jinja, FixesTheClockWhenAsked) {
  sx::jinja::RenderSettings settings;
  settings.now = 1'700'000'000;  // mid-November 2023 in every time zone
  EXPECT_EQ(Template::parse("{{ strftime_now('%Y %b') }}", "t").render(Json::object(), {}, settings), "2023 Nov");
}

TEST(Jinja, OneTemplateServesManyThreads) {
  const Template t = Template::parse("{% for i in range(n) %}{{ 'v' ~ i }}{% endfor %}", "t");
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i)
    threads.emplace_back([&, i] { results[i] = t.render(Json{{"n", i + 1}}); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(results, testing::ElementsAre("v0", "v0v1", "v0v1v2", "v0v1v2v3"));
}

TEST(Jinja, OwnTemplatesRender) {
  const Json context = Json::parse(R"({"messages": [{"role": "user", "content": "hi"}], "tools": null,
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "date_string": "today"})");
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(JINJA_TEMPLATES)) {
    std::stringstream source;
    source << std::ifstream(entry.path()).rdbuf();
    EXPECT_FALSE(Template::parse(source.str(), entry.path().filename()).render(context).empty()) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 4);
}

TEST(JinjaUnicode, StepsOverBrokenText) {
  using namespace sx::jinja;
  EXPECT_EQ(count_chars("a\xff\xc3z\xf0\x9f"), 6u);
  EXPECT_EQ(encode_all(decode_all("a\xff\xc3z🎉")), "a\xff\xc3z🎉");
  EXPECT_EQ(strip("\u00a0 x\xff \u2003", true, true), "x\xff");
  EXPECT_EQ(sx::upper_case("straße ñ ﬁ"), "STRASSE Ñ FI");
  EXPECT_EQ(sx::upper_case("a\xff\xe6\xbcz"), "A\xff\xe6\xbcZ");
  EXPECT_EQ(title_text("\xff"
                       "aB\xe6\xbc"),
            "\xff"
            "Ab\xe6\xbc");
}

}  // namespace
