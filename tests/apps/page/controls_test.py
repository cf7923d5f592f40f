"""The page's controls: settings, files, the conversation over reloads, the keyboard; and hostile text everywhere."""
import json
import os
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

    def test_too_large_to_keep(self):
        self.drop("big.txt", "word " * 500_000)
        browser.until("return document.querySelector('#chips .chip')")
        self.ask("q")
        self.assertEqual(len(mock.requests[0]["messages"][0]["content"]), 2_500_000 + len("big.txt:\n\n\n\nq"))
        self.assertEqual(self.kept(), [])
        self.assertEqual(browser.text("#kept"), "This conversation is too large to be kept over a reload.")
        self.load()
        self.assertEqual(browser.count("#messages > li"), 0)

    def test_nonsense_in_the_store(self):
        good = {"parent": -1, "role": "user", "text": "x", "files": []}
        broken = [[1], [{**good, "parent": 0}], [{**good, "parent": -2}], [{**good, "files": [0]}], [{**good, "role": "system"}],
                  [good, {"parent": 0, "role": "assistant", "text": "y"}], [good, {"parent": 0, "role": "assistant", "text": "y", "marks": [-1, "z"]}]]
        stored = ["{", "[]", "null", "7", *(json.dumps({"id": "a", "leaf": 0, "documents": [], "messages": m}) for m in broken)]
        for key in ("specextend.chat", "specextend.chat.a"):
            for chat in [*stored, "[1]", '[{"role": "user"}]', '[{"role": "assistant", "text": "x"}]']:
                browser.js("""localStorage.clear();
                    localStorage.setItem(arguments[1], arguments[0]);
                    localStorage.setItem("specextend.open", '"a"');
                    localStorage.setItem("specextend.settings", '{"temperature": "hot", "system": 3}')""", chat, key)
                self.load()
                self.assertEqual((browser.count("#messages > li"), browser.count("#chats li")), (0, 0), chat)
        self.ask("x")
        self.assertEqual(mock.requests[-1]["temperature"], 0.6)

    def test_the_one_conversation_of_earlier_versions(self):
        old = [{"role": "user", "text": "q", "files": [{"name": "a.txt", "text": "words", "bytes": 5, "tokens": 1}]},
               {"role": "assistant", "text": "yes", "marks": [3, 1], "note": "", "numbers": "fast"}]
        browser.js("localStorage.setItem('specextend.chat', arguments[0])", json.dumps(old))
        self.load()
        self.assertEqual([browser.text(".bubble"), browser.text(".user .name"), browser.text(".answer .d1"), browser.text(".numbers")],
                         ["q", "a.txt", "yes", "fast"])
        self.assertIsNone(browser.js("return localStorage.getItem('specextend.chat')"))
        self.load()
        self.assertEqual(browser.count("#messages > li"), 2)


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
        self.assertEqual(browser.text("#documents"), "2 documents, 23 bytes, 5 tokens")
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


class Keyboard(PageTest):
    def focused(self):
        return browser.js("const e = document.activeElement; return e.id || e.className || e.tagName")

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
        for _ in range(24):
            reached.append(self.focused())
            name = browser.do("GET", f"/element/{browser.do('GET', '/element/active')[webdriver.ELEMENT]}/computedlabel")
            self.assertTrue(name, f"{reached[-1]} has no name")
            visible = browser.js("""const now = document.activeElement;
                return now.matches(":focus-visible") && getComputedStyle(now).outlineStyle""")
            self.assertEqual(visible, "solid", reached[-1])
            browser.press("tab")
            if reached[-1] == "send":
                break
        self.assertEqual(reached, ["skip", "toggle-list", "preset", "compare", "new-chat", "open-settings", "open", "delete", "open-export",
                                   "import", "theme", "chat", "small edit", "small copy", "small regenerate", "strip", "tint", "SUMMARY", "attach",
                                   "message", "send"])
        browser.js("document.querySelector('.skip').focus()")
        browser.press("enter")
        self.assertEqual(self.focused(), "message")

    def test_settings_dialog(self):
        browser.js("document.getElementById('open-settings').focus()")
        browser.press("enter")
        browser.until("return document.getElementById('settings').open")
        for field in ("temperature", "max-tokens", "seed", "system", "together", "key"):
            self.assertEqual(self.focused(), field)
            browser.press("tab")
        browser.press("escape")
        browser.until("return !document.getElementById('settings').open")
        self.assertEqual(self.focused(), "open-settings")
