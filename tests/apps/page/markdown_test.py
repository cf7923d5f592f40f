"""How the page draws Markdown: blocks, emphasis, links, tables, code, math; hostile text, and time that grows with the text only."""
import json
import random
import re

from mock_server import chunk, last_chunks, stream_of
from page_case import HOSTILE, PageTest, browser, mock, plays

# Draws pieces at once, and character by character with a frame after each; gives both as markup, and the first in short:
# spans without a class are left out, of the attributes only those that matter stay, a block of code is <pre LANGUAGE>.
RENDER = """const [pieces] = arguments;
    const brief = (node) => {
      if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/</g, "‹");
      const inner = [...node.childNodes].map(brief).join(""), name = node.localName;
      if (node.classList.contains("code")) {
        return `<pre ${node.querySelector(".language").textContent}>${brief(node.querySelector("code")).slice(6, -7)}</pre>`;
      }
      if (name === "span") return node.className ? `<${node.className}>${inner}</${node.className}>` : inner;
      const more = ["href", "value"].map((key) => node.getAttribute(key)).filter((value) => value !== null);
      if (["tex", "tex block", "left", "right", "center"].includes(node.className)) more.push(node.className);
      if (name === "div") return inner;
      return `<${[name, ...more].join(" ")}>${inner}</${name}>`;
    };
    return import("/render.js").then(({AnswerView}) => {
      const draw = (each) => {
        const root = document.createElement("div"), view = new AnswerView(root);
        for (const [text, depth] of pieces) each(view, text, depth);
        view.finish();
        return root;
      };
      const whole = draw((view, text, depth) => view.append(text, depth));
      const slow = draw((view, text, depth) => { for (const c of text) { view.append(c, depth); view.flush(); } });
      return [whole.innerHTML, slow.innerHTML, [...whole.childNodes].map(brief).join("")];
    });"""


class MarkdownTest(PageTest):
    def drawn(self, text, depth=0):
        whole, slow, brief = browser.js(RENDER, [[text, depth]])
        self.assertEqual(slow, whole, json.dumps(text))
        return brief

    def check(self, cases):
        for text, expected in cases.items():
            self.assertEqual(self.drawn(text), expected, text)


class Blocks(MarkdownTest):
    def test_a_bit_of_everything(self):
        text = "# Head\nOne **two** `three` *four*\nfive\n\n- a\n  - b\n2. c\n\n```py\nx = `1`\n\n```\nlast ** line"
        self.assertEqual(self.drawn(text), "<h3>Head</h3><p>One <strong>two</strong> <code>three</code> <em>four</em>\nfive</p>"
                         "<ul><li>a<ul><li>b</li></ul></li></ul><ol><li 2>c</li></ol>"
                         "<pre py>x = `<t-n>1</t-n>`\n\n</pre><p>last ** line</p>")

    def test_headings_and_rules(self):
        self.check({"## Two\n###### Six": "<h4>Two</h4><h6>Six</h6>", "#no": "<p>#no</p>", "a\n---\nb": "<p>a</p><hr></hr><p>b</p>",
                    "* * *": "<hr></hr>", "- - x": "<ul><li>- x</li></ul>"})

    def test_lists(self):
        self.check({
            "1. a\n\n2. b": "<ol><li 1>a</li><li 2>b</li></ol>",
            "- a\n  more\n\n  par\n- b": "<ul><li>a\nmore<br></br>par</li><li>b</li></ul>",
            "- a\n    - b\n      - c\n- d": "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>",
            "1. a\n   - b\n2. c": "<ol><li 1>a<ul><li>b</li></ul></li><li 2>c</li></ol>",
            "- a\ntext": "<ul><li>a</li></ul><p>text</p>",
            "1. Do:\n   ```sh\n   ls\n   ```\n2. c": "<ol><li 1>Do:<pre sh>ls\n</pre></li><li 2>c</li></ol>"})

    def test_quotes(self):
        self.check({
            "> a\n> b\nc": "<blockquote><p>a\nb</p></blockquote><p>c</p>",
            "> a\n> > b\n> c": "<blockquote><p>a</p><blockquote><p>b</p></blockquote><p>c</p></blockquote>",
            "> ```\n> > x\n> ```\n> y": "<blockquote><pre >> x\n</pre><p>y</p></blockquote>",
            "> ```\n> x\ny": "<blockquote><pre >x\n</pre></blockquote><p>y</p>",
            "> - a\n> - b": "<blockquote><ul><li>a</li><li>b</li></ul></blockquote>"})

    def test_tables(self):
        self.check({
            "Look:\n| a | **b** | c |\n|---|:-:|--:|\n| 1 | `x|y` | z\\|w |\n| 2 |\nend":
                "<p>Look:</p><table><thead><tr><th>a</th><th center><strong>b</strong></th><th right>c</th></tr></thead><tbody>"
                "<tr><td>1</td><td center><code>x|y</code></td><td right>z|w</td></tr><tr><td>2</td><td center></td><td right></td></tr>"
                "</tbody></table><p>end</p>",
            "a | b\n--|--\n1 | 2 | 3": "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody>"
                                       "<tr><td>1</td><td>2</td><td>3</td></tr></tbody></table>",
            "| a | b |\n|---|": "<p>| a | b |\n|---|</p>",  # the columns do not match
            "x\n|-": "<p>x\n|-</p>"})

    def test_fences(self):
        self.check({
            "````\n```\nx\n````\ny": "<pre >```\nx\n</pre><p>y</p>",
            "~~~\n```\n~~~": "<pre >```\n</pre>",
            "```js title=a\nx\n```": "<pre js title=a>x\n</pre>",
            "```\nnever closed\n# x\n> y": "<pre >never closed\n# x\n> y\n</pre>",
            "``` not `a fence": "<p>``` not `a fence</p>"})


class Inline(MarkdownTest):
    def test_emphasis(self):
        self.check({
            "*a* _b_ **c** __d__ ***e*** ~~f~~": "<p><em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> <strong><em>e</em></strong> <del>f</del></p>",
            "snake_case_name 2 * 3 * 4 **open": "<p>snake_case_name 2 * 3 * 4 **open</p>",
            "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>", "*a **b*": "<p><em>a **b</em></p>",
            r"\*a\* \\ \x `\*`": r"<p>*a* \ \x <code>\*</code></p>", "``a`b`` `c": "<p><code>a`b</code> `c</p>"})

    def test_links(self):
        self.check({
            "[a *b*](https://x.org/p_(q)) [c](mailto:d@e.f \"t\")":
                '<p><a https://x.org/p_(q)>a <em>b</em></a> <a mailto:d@e.f>c</a></p>',
            "See https://x.org/a_b_c?d=e, (http://y.org). <https://z.org>":
                "<p>See <a https://x.org/a_b_c?d=e>https://x.org/a_b_c?d=e</a>, (<a http://y.org>http://y.org</a>). "
                "<a https://z.org>https://z.org</a></p>",
            "![picture](https://x.org/a.png)": "<p><a https://x.org/a.png>picture</a></p>",
            "[1] https://x.org": "<p>[1] <a https://x.org>https://x.org</a></p>", "[a] (b)": "<p>[a] (b)</p>"})
        self.assertEqual(browser.js("""return import("/render.js").then(({AnswerView}) => {
            const root = document.createElement("div"), view = new AnswerView(root);
            view.append("[a](https://x.org)", 0);
            view.finish();
            const {rel, target, title} = root.querySelector("a");
            return [rel, target, title];
        })"""), ["noopener noreferrer nofollow", "_blank", "https://x.org"])

    def test_links_that_are_none(self):
        for address in ("javascript:window.hacked=1", "JaVaScRiPt:alert(1)", "java\tscript:x", " javascript:x", "data:text/html,x", "vbscript:x",
                        "file:///etc/passwd", "blob:x", "//x.org", "/v1/models", "#a", "", "javascript&colon;x", "http:", "\x01javascript:x"):
            for text in (f"[a]({address})", f"[a](<{address}>)", f"![a]({address})", f"<{address}>", address):
                self.assertNotIn("<a ", self.drawn(text), text)

    def test_tints_stay(self):
        _, _, brief = browser.js(RENDER, [["a **b", 0], ["c** d", 2], ["`e", 3], ["f` ", 9], ["\n```c\nint ", 1], ["x;\n```", 0]])
        self.assertEqual(brief, "<p>a <strong>b<d2>c</d2></strong><d2> d</d2><code><d3>e</d3><d8>f</d8></code><d8> </d8></p>"
                         "<pre c><t-k><d1>int</d1></t-k><d1> </d1>x;\n</pre>")


class Code(MarkdownTest):
    def test_colours(self):
        self.check({
            '```python\ndef f(x):  # why\n  """doc\n  if"""\n  return "a\\"b" + 1.5\n```':
                '<pre python><t-k>def</t-k> <t-f>f</t-f>(x):  <t-c># why</t-c>\n  <t-s>"""doc</t-s>\n<t-s>  if"""</t-s>\n'
                '  <t-k>return</t-k> <t-s>"a\\"b"</t-s> + <t-n>1.5</t-n>\n</pre>',
            "```cpp\nint a; /* b\nc */ d(); // e\n```":
                "<pre cpp><t-k>int</t-k> a; <t-c>/* b</t-c>\n<t-c>c */</t-c> <t-f>d</t-f>(); <t-c>// e</t-c>\n</pre>",
            "```json\n{\"a\": [true, 1]}\n```": '<pre json>{<t-s>"a"</t-s>: [<t-k>true</t-k>, <t-n>1</t-n>]}\n</pre>',
            "```sql\nSelect 'it''s' -- x\n```": "<pre sql><t-k>Select</t-k> <t-s>'it'</t-s><t-s>'s'</t-s> <t-c>-- x</t-c>\n</pre>",
            "```html\n<b class=\"x\"><!-- y --></b>\n```":
                "<pre html><t-k>‹b</t-k> class=<t-s>\"x\"</t-s>><t-c>‹!-- y --></t-c><t-k>‹/b</t-k>>\n</pre>",
            "```rust\nfn f<'a>(x: &'a str)\n```": "<pre rust><t-k>fn</t-k> f‹'a>(x: &'a <t-k>str</t-k>)\n</pre>",
            "```diff\n+a\n-b\n c\n```": "<pre diff><t-s>+a</t-s>\n<t-k>-b</t-k>\n c\n</pre>",
            "```brainfuck\nif 1 \"a\"\n```": "<pre brainfuck>if 1 \"a\"\n</pre>"})

    def test_each_block_has_a_copy_button(self):
        mock.script = plays(stream_of([chunk("```py\na = 1\n\nb\n```\nand\n\n- x\n  ```\n  c\n    d\n  ```\n"), *last_chunks()]))
        self.ask("x")
        browser.js("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
        for number, text in enumerate(["a = 1\n\nb", "c\n  d"]):
            browser.js("document.querySelectorAll('.copy-code')[arguments[0]].focus()", number)
            browser.press("enter")
            self.assertEqual(browser.until("const text = window.copied; window.copied = null; return text"), text)
            browser.until("return document.querySelectorAll('.copy-code')[arguments[0]].matches('.copied')", number)


class Math(MarkdownTest):
    def test_formulas(self):
        self.check({
            "So $x^2_i$.": "<p>So <math><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></math>.</p>",
            r"\(\frac{a}{b}\)": "<p><math><mfrac><mi>a</mi><mi>b</mi></mfrac></math></p>",
            "$$\\sum_{i=1}^n i\n$$\nend": "<math><mrow><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover>"
                                          "<mi>i</mi></mrow></math><p>end</p>",
            "\\[\n\\sqrt[3]{x} \\le \\alpha\n\\]": "<math><mrow><mroot><mi>x</mi><mn>3</mn></mroot><mo>≤</mo><mi>α</mi></mrow></math>",
            r"$\mathbb{R} \text{ if } \left(a\right)$": "<p><math><mrow><mi>ℝ</mi><mtext> if </mtext><mrow><mo>(</mo><mi>a</mi><mo>)</mo></mrow></mrow></math></p>",
            r"$\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$":
                "<p><math><mrow><mo>(</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd>"
                "<mtd><mn>4</mn></mtd></mtr></mtable><mo>)</mo></mrow></math></p>",
            "$f'(x)$": "<p><math><mrow><msup><mi>f</mi><mo>′</mo></msup><mo>(</mo><mi>x</mi><mo>)</mo></mrow></math></p>"})

    def test_what_is_not_known_stays_code(self):
        self.check({
            r"$\weird{x}$": r"<p><code tex>\weird{x}</code></p>", "$x^$": "<p><code tex>x^</code></p>", "$a}$": "<p><code tex>a}</code></p>",
            "$$\n\\tag{1}\n$$": "<code tex block>$$\n\\tag{1}\n$$\n</code>", "$$\nnever closed": "<code tex block>$$\nnever closed\n</code>",
            "$$\na\n\nb": "<code tex block>$$\na\n</code><p>b</p>", r"$\href{javascript:x}{y}$": r"<p><code tex>\href{javascript:x}{y}</code></p>",
            "$" + "\\sqrt" * 60 + "x$": "<p><code tex>" + "\\sqrt" * 60 + "x</code></p>"})

    def test_money_is_not_math(self):
        self.check({"$5 and $6, $7-$8": "<p>$5 and $6, $7-$8</p>", r"\$a\$": "<p>$a$</p>"})


class Hostile(MarkdownTest):
    def test_markup_stays_text(self):
        for text in (HOSTILE, f"**{HOSTILE}**", f"> {HOSTILE}", f"| {HOSTILE} | b |\n|---|---|\n| {HOSTILE} | c |", f"```html\n{HOSTILE}\n```",
                     f"$\\text{{{HOSTILE}}}$", f"# {HOSTILE}", f"[{HOSTILE}](https://x.org/{HOSTILE})", f"```{HOSTILE}\nx\n```"):
            whole, slow, _ = browser.js(RENDER, [[text, 0]])
            self.assertEqual(slow, whole)
            self.assertNotIn("<img", whole)
            self.assertNotIn("<script", whole)

    def test_nesting_is_bounded(self):
        """Whatever is written, the page stays shallow: browsers are slow, or give up, on thousands of levels."""
        for text in ("> " * 900 + "x", "\n".join(">" * n + " x" for n in range(200)), "\n".join("  " * n + "- x" for n in range(200)), "*_" * 400 + "x" + "_*" * 400,
                     "[" * 900 + "x" + "](https://x.org)" * 60, "$" + "{" * 900 + "x" + "}" * 900 + "$", "`" * 900 + "x" + "`" * 900):
            deepest = browser.js("""return import("/render.js").then(({AnswerView}) => {
                const root = document.createElement("div"), view = new AnswerView(root), depth = (n) => (n === root ? 0 : 1 + depth(n.parentNode));
                view.append(arguments[0], 0);
                view.finish();
                return Math.max(...[...root.querySelectorAll("*")].map(depth));
            }); """.replace("arguments[0]", json.dumps(text)))
            self.assertLess(deepest, 40, text[:60])

    def test_time_grows_with_the_text(self):
        """A megabyte of what makes parsers go back and forth: four times the text takes about four times the time."""
        parts = ["*", "_", "**a", "*a _b ", "[", "](", "[a](", "![", "`", "`a``", "$", "$a ", "$$", "\\(", "\\[", "<", "<https://", "https://", "> ", "|", "| a ", "- ",
                 "~~", "\\", "# ", "'", "/*", "{", "a", " ", "\n> ", "\n|", "\n- ", "\n```\n", "\n$$\n", "\n$$a", "\n|-|\n", "\\'", "(", "https://)"]
        for part, size, prefix in [("*", 1_000_000, ""), *((part, 40_000, prefix) for part in parts for prefix in ("", "```js\n"))]:
            quarter, whole = browser.js("""const [part, size, prefix] = arguments;
                return import("/render.js").then(({AnswerView}) => {
                  const time = (text) => {
                    const root = document.createElement("div"), view = new AnswerView(root), begin = performance.now();
                    view.append(prefix + text, 0);
                    view.finish();
                    return performance.now() - begin;
                  };
                  const text = part.repeat(size / part.length);
                  return [time(text.slice(0, size / 4)), time(text)];
                });""", part, size, prefix)
            self.assertLess(whole, 4 * 3 * quarter + 500, (prefix, part))

    def test_any_cut_gives_the_same(self):
        """Drawn character by character, with a frame after each, an answer looks as if it had come at once; no letter is lost."""
        dice = random.Random(7)
        parts = ["a", "bc ", "**", "`", "```", "```py", "\n", "\n", "\n\n", "- ", "  ", "1. ", "# ", "~~~", "<i>"]
        more = parts + ["> ", "|", "| ", "|-|-|\n", "$", "$$", "\n$$\n", "[", "](https://a.b)", "*", "_", "\\", "https://", "\t", "---"]
        for number in range(120):
            several = parts if number < 60 else more
            text = "".join(dice.choice(several) for _ in range(60))
            if dice.random() < 0.2:
                text += "long " * 900 + text
            whole, slow, _ = browser.js(RENDER, [[text, 0]])
            self.assertEqual(slow, whole, json.dumps(text))
            if several is more:
                continue  # addresses and TeX are text too
            letters = "".join(c for c in text.replace("```py", "").replace("<i>", "") if c in "abclong")
            shown = "".join(c for c in re.sub("<[^>]*>", "", whole).replace("&lt;i&gt;", "") if c in "abclong")
            self.assertEqual(shown, letters, json.dumps(text))

    def test_characters_of_two_halves_stay_whole(self):
        for begin in (1998, 1999, 2000):
            self.assertEqual(browser.js("""const [text] = arguments;
                return import("/render.js").then(({AnswerView}) => {
                  const root = document.createElement("div"), view = new AnswerView(root);
                  view.append(text, 1);
                  view.finish();
                  const found = [], walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
                  while (walk.nextNode()) found.push(walk.currentNode.data);
                  return [found.join(""), found.filter((t) => !t.isWellFormed()).length];
                });""", "x" * begin + "🌍🌍y"), ["x" * begin + "🌍🌍y", 0])
