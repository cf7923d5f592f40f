"""The page's controls: settings, files, the conversation over reloads, the keyboard; and hostile text everywhere."""
import json
import os
import random
import re
import tempfile

import webdriver
from mock_server import chunk, last_chunks, stream_of, tokens_chunk
from page_case import HOSTILE, PageTest, browser, mock, plays


class Requests(PageTest):
    def set(self, selector, value):
        browser.js("""const [selector, value] = arguments, field = document.querySelector(selector);
            field.value = value;
            for (const type of ["input", "change"]) field.dispatchEvent(new Event(type, {bubbles: true}));""", selector, value)

    def test_settings_reach_the_server(self):
        self.ask("one")
        first = mock.requests[-1]
        expected = {"stream": True, "stream_options": {"include_usage": True}, "spec_details": True, "return_progress": True,
                    "model": "tiny", "temperature": 0.6, "max_tokens": 1024}
        self.assertEqual({k: first[k] for k in expected}, expected)
        self.assertIsInstance(first["seed"], int)
        self.assertNotIn("spec_preset", first)
        self.assertNotIn("speculate", first)
        self.set("#temperature", "0")
        self.set("#max-tokens", "7")
        self.set("#seed", "42")
        self.set("#system", "Be brief.")
        self.set("#preset", "suffix")
        self.load()  # settings stay
        self.ask("two", answers=2)
        self.assertEqual({k: mock.requests[-1][k] for k in ("temperature", "max_tokens", "seed", "spec_preset")},
                         {"temperature": 0, "max_tokens": 7, "seed": 42, "spec_preset": "suffix"})
        self.assertEqual(mock.requests[-1]["messages"], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"},
                                                         {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "two"}])
        self.set("#preset", "off")
        self.set("#max-tokens", "")
        self.ask("three", answers=3)
        self.assertIs(mock.requests[-1]["speculate"], False)
        self.assertNotIn("spec_preset", mock.requests[-1])
        self.assertNotIn("max_tokens", mock.requests[-1])

    def test_presets(self):
        options = "return [...document.querySelectorAll('#preset option')].map((o) => [o.value, o.textContent])"
        self.assertEqual(browser.js(options), [["", "default"], ["specextend", "specextend"], ["suffix", "suffix"],
                                               ["off", "off: plain decoding"]])
        self.set("#preset", "suffix")
        mock.props = {"model_alias": HOSTILE, "presets": ["off", HOSTILE]}  # another server: the chosen one is not there
        self.load()
        self.assertEqual(browser.js(options), [["", "default"], [HOSTILE, HOSTILE], ["off", "off: plain decoding"]])
        self.assertEqual(browser.text("#model"), HOSTILE)
        self.ask("x")
        self.assertNotIn("spec_preset", mock.requests[-1])

    def test_regenerate_and_copy(self):
        self.ask("one")
        mock.script = plays(stream_of([chunk("**Other**"), *last_chunks()]))
        browser.click(".regenerate")
        browser.until("return document.querySelector('.answer')?.textContent === 'Other'")
        self.finished()
        self.assertEqual([r["messages"] for r in mock.requests], [[{"role": "user", "content": "one"}]] * 2)
        self.assertNotEqual(mock.requests[0]["seed"], mock.requests[1]["seed"])
        browser.js("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
        browser.click(".copy")
        self.assertEqual(browser.until("return window.copied"), "**Other**")

    def test_limit_is_told(self):
        mock.script = plays(stream_of([chunk("Half"), *last_chunks(reason="length")]))
        self.ask("x")
        self.assertEqual(browser.text(".note"), "Stopped at the most tokens an answer may have.")


class Keeping(PageTest):
    def test_reload(self):
        mock.script = plays(stream_of([tokens_chunk([("A", 0), ("bc", 1), ("\n- d", 2)]), *last_chunks()]))
        self.drop("notes.txt", "some words here")
        browser.until("return document.querySelector('#chips .soft')?.textContent.includes('tokens')")
        self.ask("q")
        before = browser.js("return document.getElementById('messages').innerHTML")
        self.load()
        self.assertEqual(browser.js("return document.getElementById('messages').innerHTML"), before)
        self.assertEqual(browser.count(".answer .d1"), 1)
        self.ask("again", answers=2)
        self.assertEqual(mock.requests[-1]["messages"][0], {"role": "user", "content": "notes.txt:\n\nsome words here\n\nq"})
        self.new_chat()
        self.load()
        self.assertEqual(browser.count("#messages > li"), 0)

    def test_new_chat_asks_before_it_deletes(self):
        browser.click("#new-chat")  # nothing to lose
        self.assertFalse(browser.js("return document.getElementById('ask-new').open"))
        self.ask("q")
        browser.click("#new-chat")
        self.assertTrue(browser.js("return document.getElementById('ask-new').open"))
        self.assertEqual(browser.count("#messages > li"), 2)
        browser.press("escape")
        browser.until("return !document.getElementById('ask-new').open")
        self.assertEqual(browser.count("#messages > li"), 2)
        browser.click("#new-chat")
        browser.press("enter")  # the way back is what Enter does
        browser.until("return !document.getElementById('ask-new').open")
        self.assertEqual(browser.count("#messages > li"), 2)
        browser.click("#new-chat")
        browser.click("#delete-chat")
        browser.until("return document.querySelectorAll('#messages > li').length === 0")

    def test_too_large_to_keep(self):
        self.drop("big.txt", "word " * 500_000)
        browser.until("return document.querySelector('#chips .chip')")
        self.ask("q")
        self.assertEqual(len(mock.requests[0]["messages"][0]["content"]), 2_500_000 + len("big.txt:\n\n\n\nq"))
        self.assertIsNone(browser.js("return localStorage.getItem('specextend.chat')"))
        self.load()
        self.assertEqual(browser.count("#messages > li"), 0)

    def test_nonsense_in_the_store(self):
        for chat in ("{", "[1]", '[{"role": "user"}]', '[{"role": "assistant", "text": "x"}]'):
            browser.js("""localStorage.setItem("specextend.chat", arguments[0]);
                localStorage.setItem("specextend.settings", '{"temperature": "hot", "system": 3}')""", chat)
            self.load()
            self.assertEqual(browser.count("#messages > li"), 0)
        self.ask("x")
        self.assertEqual(mock.requests[-1]["temperature"], 0.6)


class Attaching(PageTest):
    def chips(self):
        return browser.js("return [...document.querySelectorAll('#chips .chip')].map((c) => c.textContent)")

    def test_drop_and_choose(self):
        self.drop("a.txt", "one two three")
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write("vier fünf")
            file.flush()
            browser.type("#files", file.name)
            name = os.path.basename(file.name)
            browser.until("""const counted = [...document.querySelectorAll("#chips .soft")].filter((s) => s.textContent.includes("tokens"));
                return counted.length === 2;""")
        self.assertEqual(self.chips(), ["a.txt13 bytes · 3 tokens×", f"{name}10 bytes · 2 tokens×"])
        self.assertTrue(browser.js("return document.getElementById('drop').hidden"))
        self.ask("Sum up.")
        self.assertEqual(mock.requests[0]["messages"][0]["content"], f"a.txt:\n\none two three\n\n{name}:\n\nvier fünf\n\nSum up.")
        self.assertEqual(self.chips(), [])
        self.assertEqual(browser.count(".user .chip"), 2)

    def test_remove(self):
        self.drop("a.txt", "one")
        self.drop("b.txt", "two")
        browser.until("return document.querySelectorAll('#chips .chip').length === 2")
        browser.click("[aria-label='Remove a.txt']")
        self.ask("x")
        self.assertEqual(mock.requests[0]["messages"][0]["content"], "b.txt:\n\ntwo\n\nx")

    def test_what_is_not_taken(self):
        self.drop("picture.png", [137, 80, 78, 71, 0, 1, 2])
        self.drop("empty.txt", " \n")
        self.drop(HOSTILE + ".bin", [0])
        self.drop("latin1.txt", list("Grüße".encode("latin-1")))
        self.drop("wide.txt", list("Grüße".encode("utf-16")))
        browser.until("return document.querySelectorAll('#chips .name').length === 2")
        self.assertEqual([c for c in self.chips() if "×" not in c],
                         ["picture.png is not a text file.", "empty.txt is empty.", HOSTILE + ".bin is not a text file."])
        self.ask("x")
        self.assertEqual(mock.requests[0]["messages"][0]["content"], "latin1.txt:\n\nGrüße\n\nwide.txt:\n\nGrüße\n\nx")

    def test_longer_than_the_context(self):
        self.drop("long.txt", "word " * 9000)
        browser.until("return document.querySelector('#chips .bad')")
        self.assertEqual(self.chips(), ["long.txt45 KB · 9,000 tokensmore than the 8,192 tokens of the context×"])


class Safety(PageTest):
    def test_hostile_text_stays_text(self):
        mock.script = plays(stream_of([tokens_chunk([(HOSTILE, 0), (HOSTILE, 2)]),
                                       chunk(f"\n```js\n{HOSTILE}\n```\n- **{HOSTILE}**"), *last_chunks()]))
        self.drop(HOSTILE + ".txt", HOSTILE)
        browser.until("return document.querySelector('#chips .name')")
        before = browser.count("img, script")
        self.ask(HOSTILE)
        self.assertEqual(browser.text(".bubble"), HOSTILE)
        self.assertEqual(browser.text(".user .name"), HOSTILE + ".txt")
        self.assertEqual(browser.text(".answer p"), HOSTILE * 2)
        self.assertEqual(browser.text(".answer pre"), HOSTILE + "\n")
        self.assertEqual(browser.text(".answer strong"), HOSTILE)
        self.assertEqual(browser.count("img, script"), before)

    def test_policy(self):
        """The browser itself would refuse markup made from text, scripts in the page and requests to elsewhere."""
        refused = browser.js("try { document.body.insertAdjacentHTML('beforeend', '<i></i>'); } catch (error) { return error.name; }")
        self.assertEqual(refused, "TypeError")
        self.assertEqual(browser.js("return fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"), "refused")
        browser.js("""const script = document.createElement("script");
            script.append("window.hacked = 1");
            document.head.append(script);""")
        complaints = browser.complaints()
        self.assertTrue(all("Content Security Policy" in c or "TrustedHTML" in c or "TrustedScript" in c for c in complaints), complaints)
        self.assertTrue(any("127.0.0.1:9" in c for c in complaints), complaints)


class Rendering(PageTest):
    RENDER = """const [pieces] = arguments;
        return import("/render.js").then(({AnswerView}) => {
          const draw = (each) => {
            const root = document.createElement("div"), view = new AnswerView(root);
            for (const [text, depth] of pieces) each(view, text, depth);
            view.finish();
            return root.innerHTML.replace(/<span>|<\\/span>/g, "");
          };
          const whole = draw((view, text, depth) => view.append(text, depth));
          return [whole, draw((view, text, depth) => { for (const c of text) { view.append(c, depth); view.flush(); } })];
        });"""

    def test_markdown(self):
        text = "# Head\nOne **two** `three` *four*\nfive\n\n- a\n  - b\n2. c\n\n```py\nx = `1`\n\n```\nlast ** line"
        whole, pieces = browser.js(self.RENDER, [[text, 0]])
        self.assertEqual(whole, '<h3>Head</h3><p>One <strong>two</strong> <code>three</code> *four*\nfive</p>'
                         '<ul><li>a</li><li class="level1">b</li></ul><ol><li value="2">c</li></ol>'
                         '<pre tabindex="0" data-language="py"><code>x = `1`\n\n</code></pre><p>last ** line</p>')
        self.assertEqual(pieces, whole)

    def test_any_cut_gives_the_same(self):
        """Drawn character by character, with a frame after each, an answer looks as if it had come at once; no letter is lost."""
        dice = random.Random(7)
        parts = ["a", "bc ", "**", "`", "```", "```py", "\n", "\n", "\n\n", "- ", "  ", "1. ", "# ", "~~~", "<i>"]
        for _ in range(60):
            text = "".join(dice.choice(parts) for _ in range(60))
            if dice.random() < 0.2:
                text += "long " * 900 + text
            whole, pieces = browser.js(self.RENDER, [[text, 0]])
            self.assertEqual(pieces, whole, json.dumps(text))
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


class Keyboard(PageTest):
    def focused(self):
        return browser.js("const e = document.activeElement; return e.id || e.className || e.textContent")

    def test_lines_and_shortcuts(self):
        self.assertEqual(self.focused(), "message")
        browser.press("a", "shift+enter", "b", "enter")
        self.finished()
        self.assertEqual(mock.requests[0]["messages"][0]["content"], "a\nb")
        browser.press("enter")  # nothing to send
        browser.js("document.getElementById('theme').focus()")
        browser.press("/")
        self.assertEqual(self.focused(), "message")
        browser.press("/")
        self.assertEqual(browser.js("return document.getElementById('message').value"), "/")
        self.assertEqual(len(mock.requests), 1)

    def test_tab_reaches_everything(self):
        self.ask("x")
        browser.js("document.activeElement.blur(); document.querySelector('.skip').focus()")
        reached = []
        for _ in range(16):
            reached.append(self.focused())
            name = browser.do("GET", f"/element/{browser.do('GET', '/element/active')[webdriver.ELEMENT]}/computedlabel")
            self.assertTrue(name, f"{reached[-1]} has no name")
            visible = browser.js("""const now = document.activeElement;
                return now.matches(":focus-visible") && getComputedStyle(now).outlineStyle""")
            self.assertEqual(visible, "solid", reached[-1])
            browser.press("tab")
            if reached[-1] == "send":
                break
        self.assertEqual(reached, ["skip", "preset", "new-chat", "theme", "open-settings", "small copy", "small regenerate", "strip",
                                   "tint", "attach", "message", "send"])
        browser.js("document.querySelector('.skip').focus()")
        browser.press("enter")
        self.assertEqual(self.focused(), "message")

    def test_settings_dialog(self):
        browser.js("document.getElementById('open-settings').focus()")
        browser.press("enter")
        browser.until("return document.getElementById('settings').open")
        for field in ("temperature", "max-tokens", "seed", "system", "key"):
            self.assertEqual(self.focused(), field)
            browser.press("tab")
        browser.press("escape")
        browser.until("return !document.getElementById('settings').open")
        self.assertEqual(self.focused(), "open-settings")
