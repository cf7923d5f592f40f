// Hostile templates: endless, huge, deep or self-referring. Each must end in sx::Error (or a result), quickly.
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/jinja/template.h"

namespace {

using Json = nlohmann::ordered_json;
using sx::jinja::RenderLimits;
using sx::jinja::Template;

std::string repeat(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

void refuse(const std::string& source) {
  RenderLimits limits;
  limits.max_output_bytes = 1 << 20;
  limits.max_steps = 2'000'000;
  limits.max_memory_bytes = 64 << 20;
  EXPECT_THROW(Template::parse(source, "hostile").render(Json::object(), limits), sx::Error) << source.substr(0, 200);
}

TEST(JinjaLimits, TooMuchWork) {
  const std::string loops = "{% for i in range(99999) %}";
  refuse(loops + loops + "{% endfor %}{% endfor %}");
  refuse(loops + "{{ 'x' * 1000 }}{% endfor %}");
  refuse("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}");
  refuse("{% set l = [1] %}{% for i in range(99999) %}{% set _ = l.extend(l) %}{% endfor %}");
  // Small values with an astronomical printed form.
  const std::string doubled =
      "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
      "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}";
  refuse(doubled + "{{ n.a }}");
  refuse(doubled + "{{ n.a|tojson }}");
  refuse(doubled + "{{ n.a == n.b }}");
  // Searches that compare everything with everything.
  const std::string long_text = "{% set s = 'a' * 999999 %}";
  refuse(long_text + "{{ ('a' * 500000 ~ 'b') in s }}");
  refuse(long_text + "{{ s.strip('b' * 500000) }}");
  refuse(long_text + "{{ s.replace('a' * 500000 ~ 'b', '') }}");
  refuse(long_text + "{{ s.rsplit('b' ~ 'a' * 500000) }}");
}

TEST(JinjaLimits, TooMuchMemory) {
  refuse("{{ 'x' * 9999999999 }}");
  refuse("{{ [1] * 9999999999 }}");
  refuse("{{ range(999999999)|list }}");
  refuse("{{ 'x'|indent(99999999, true) }}");
  refuse("{{ [[1]]|tojson(indent=999999999) }}");
  refuse("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}");
  refuse("{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s.replace('a', n.s) %}{% endfor %}");
  refuse("{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}");
}

TEST(JinjaLimits, TooDeep) {
  refuse("{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}");
  refuse("{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}");
  refuse("{{ " + repeat("not ", 5000) + "1 }}");
  refuse("{{ " + repeat("-", 5000) + "1 }}");
  refuse("{{ x" + repeat(".a", 5000) + " }}");
  refuse("{{ x" + repeat("|e", 5000) + " }}");
  refuse("{{ 1" + repeat(" if 1 else 1", 5000) + " }}");
  refuse(repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000));
  refuse("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}");
  refuse("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  refuse("{% macro m() %}{% call m() %}{% endcall %}{{ caller }}{% endmacro %}{% call m() %}{% endcall %}");
  refuse(
      "{% set n = namespace(g=[1]) %}{% for i in range(9999) %}{% set n.g = n.g|map('string') %}{% endfor %}"
      "{{ n.g|list }}");
  // Deep values are fine as long as nobody walks them, and are freed without recursion.
  const std::string deep = "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}";
  EXPECT_EQ(Template::parse(deep + "ok", "deep").render(Json::object()), "ok");
  refuse("{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}");
  refuse("{% set n = namespace(l=()) %}{% for i in range(9999) %}{% set n.l = (n.l,) %}{% endfor %}{{ {n.l: 1} }}");
}

TEST(JinjaLimits, LongButFlatIsFine) {
  EXPECT_EQ(Template::parse("{{ 0" + repeat(" + 1", 20000) + " }}", "long").render(Json::object()), "20000");
  const std::string branches = "{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% else %}e{% endif %}";
  EXPECT_EQ(Template::parse(branches, "long").render(Json::object()), "e");
}

TEST(JinjaLimits, Cycles) {
  const auto run = [](const char* source) { return Template::parse(source, "cycle").render(Json::object()); };
  EXPECT_EQ(run("{% set a = {} %}{% set _ = a.update({'me': a}) %}{{ a }}"), "{'me': {...}}");
  EXPECT_EQ(run("{% set n = namespace() %}{% set n.n = n %}{{ n.n.n is defined }}"), "True");
  refuse("{% set a = [] %}{% set _ = a.append(a) %}{{ a|tojson }}");
  refuse("{% set a = [] %}{% set b = [] %}{% set _ = a.append(b) %}{% set _ = b.append(a) %}{{ a < b }}");
}

TEST(JinjaLimits, InputNestedTooDeeply) {
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  EXPECT_THROW(Template::parse("{{ x }}", "t").render(Json{{"x", deep}}), sx::Error);
}

}  // namespace
