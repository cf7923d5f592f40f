#!/usr/bin/env python3
"""The page as `specextend serve` serves it, with a tiny model. Arguments: the program, the maker of tiny models, the
folder of the page."""
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mock_server  # noqa: E402
import webdriver  # noqa: E402

PROGRAM, MAKE_TINY, PAGE = sys.argv[1:4]
KEY = "secret"


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        model = os.path.join(cls.folder.name, "tiny.gguf")
        subprocess.run([MAKE_TINY, model], check=True)
        command = [PROGRAM, "serve", "-m", model, "--port", "0", "-c", "60000", "--spec", "suffix:cost-model=off", "--api-key", KEY]
        cls.server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.stop_server)
        said = []
        for line in cls.server.stderr:
            said.append(line)
            if line.startswith("listening on "):
                cls.port = int(line.rsplit(":", 1)[1])
                break
        else:
            raise RuntimeError("no server: " + "".join(said))
        cls.reader = threading.Thread(target=cls.server.stderr.read, daemon=True)
        cls.reader.start()
        cls.browser = webdriver.Browser(cls.folder.name)
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def stop_server(cls):
        cls.server.kill()
        cls.server.wait()

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body and json.dumps(body), headers or {})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, response.headers, data

    def api(self, method, path, body=None):
        status, _, data = self.ask(method, path, body, {"Authorization": f"Bearer {KEY}"})
        self.assertEqual(status, 200, data)
        return json.loads(data)

    def setUp(self):
        self.browser.go(f"http://127.0.0.1:{self.port}/")
        self.browser.js("localStorage.clear()")
        self.browser.go(f"http://127.0.0.1:{self.port}/")
        if self.browser.until("return document.querySelector('dialog[open]') || document.getElementById('model').textContent") != "tiny":
            self.give_key()
        self.browser.complaints()

    def give_key(self):
        if self.browser.js("return document.getElementById('ask-key').open"):
            self.browser.type("#asked-key", KEY + webdriver.KEYS["enter"])
        self.browser.until("return document.getElementById('model').textContent")

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])

    def set(self, **fields):
        for name, value in fields.items():
            self.browser.js("""const [name, value] = arguments, field = document.getElementById(name);
                field.value = value;
                for (const type of ["input", "change"]) field.dispatchEvent(new Event(type, {bubbles: true}));""",
                            name.replace("_", "-"), value)

    def finished(self):
        self.browser.until("""return document.querySelector(".assistant:last-child.done")
            && !document.documentElement.classList.contains("running")""", patience=60)

    def stored(self):
        """The last answer as the page has it: Markdown may have changed how it looks, and this model says anything."""
        return json.loads(self.browser.js("""const keys = Object.keys(localStorage).filter((key) => key.startsWith("specextend.chat."));
            const chats = keys.map((key) => JSON.parse(localStorage.getItem(key))).sort((a, b) => b.updated - a.updated);
            return JSON.stringify(chats[0].messages.at(-1))"""))

    def test_files_are_those_of_the_source(self):
        """Without a key, with the policy, byte for byte."""
        for name in sorted(os.listdir(PAGE)):
            status, headers, data = self.ask("GET", "/" + ("" if name == "index.html" else name))
            with open(os.path.join(PAGE, name), "rb") as file:
                self.assertEqual((status, data), (200, file.read()), name)
            self.assertEqual(headers["Content-Security-Policy"], mock_server.policy(PAGE), name)
            self.assertEqual(headers["Content-Type"].split(";")[0], mock_server.TYPES[os.path.splitext(name)[1]], name)

    def test_answer_is_the_api_s(self):
        self.set(temperature="0.8", max_tokens="120", seed="11")
        self.browser.type("#message", "Tell me a story." + webdriver.KEYS["enter"])
        self.finished()
        answer = self.stored()
        request = {"messages": [{"role": "user", "content": "Tell me a story."}], "speculate": False}
        expected = self.api("POST", "/v1/chat/completions", {**request, "temperature": 0.8, "max_tokens": 120, "seed": 11})
        self.assertEqual(answer["text"], expected["choices"][0]["message"]["content"])
        self.assertEqual(sum(answer["marks"][::2]), len(answer["text"].encode("utf-16-le")) // 2)
        # Greedy, this model repeats itself soon, and drafts are accepted.
        self.browser.click("#new-chat")
        self.set(temperature="0", max_tokens="400")
        self.browser.type("#message", "Tell me a story." + webdriver.KEYS["enter"])
        self.finished()
        answer = self.stored()
        expected = self.api("POST", "/v1/chat/completions", {**request, "temperature": 0, "max_tokens": 400})
        self.assertEqual(answer["text"], expected["choices"][0]["message"]["content"])
        tinted = sum(1 for depth in answer["marks"][1::2] if depth > 0)
        told = re.search(r" ([\d,]+) of [\d,]+ drafts accepted", self.browser.text(".numbers"))
        self.assertGreater(tinted, 0)
        self.assertGreaterEqual(int(told[1].replace(",", "")), tinted)  # pieces of one character come together
        self.assertGreater(self.browser.count(".answer span[class]"), 0)
        self.browser.until("return Number(document.getElementById('per-round').textContent) > 1")
        self.browser.until("return Number(document.getElementById('speed').textContent) > 0")
        self.assertRegex(self.browser.text("#strip-label"), r"^[\d,]+ tokens in the cache")

    def test_plain(self):
        self.set(temperature="0", max_tokens="60", preset="off")
        self.browser.type("#message", "Hello" + webdriver.KEYS["enter"])
        self.finished()
        self.assertEqual(set(self.stored()["marks"][1::2]) - {0}, set())
        self.assertEqual(self.browser.text("#per-round"), "1.00")

    def test_compare(self):
        """Both texts of the compare view are the server's, and equal; at once and one after the other."""
        self.set(temperature="0.8", max_tokens="150", seed="5")
        self.browser.click("#compare")
        expected = self.api("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}], "speculate": False,
                                                            "temperature": 0.8, "max_tokens": 150, "seed": 5})["choices"][0]["message"]["content"]
        for together in (False, True):
            self.browser.js("""const box = document.getElementById("together");
                if (box.checked !== arguments[0]) box.click();""", together)
            self.browser.click("#new-chat")
            self.browser.type("#message", "Tell me a story." + webdriver.KEYS["enter"])
            self.finished()
            self.assertIn(f"The texts are equal: {len(expected.encode('utf-16-le')) // 2} characters.", self.browser.text(".note"))
            answer = self.stored()
            self.assertEqual((answer["text"], answer["compared"]["text"]), (expected, None))
            for side in ("plain", "drafts"):
                self.assertRegex(answer["compared"][side], r"^[\d.]+ tok/s · [\d.]+ tokens per pass · \d+ tokens in ")
            self.assertIn(" 1.00 tokens per pass", answer["compared"]["plain"])
        self.browser.click("#compare")

    def test_stop(self):
        self.set(temperature="1.5", max_tokens="")
        # An answer that does not end by itself, however fast the machine.
        self.browser.js("""const real = window.fetch;
            window.fetch = (where, how) => real(where, how?.body
              ? {...how, body: JSON.stringify({...JSON.parse(how.body), ignore_eos: true})} : how);""")
        self.browser.type("#message", "Go on for ever." + webdriver.KEYS["enter"])
        self.browser.until("return document.querySelector('.answer')?.textContent.length > 20", patience=60)
        self.browser.press("escape")
        self.finished()
        self.assertEqual(self.browser.text(".note"), "Stopped.")
        # The server stopped too.
        for _ in range(500):
            if not any(slot["is_processing"] for slot in self.api("GET", "/slots")):
                break
            self.browser.js("return new Promise((done) => setTimeout(done, 20))")
        else:
            self.fail("the server still works on the answer")

    def test_document(self):
        text = "All the words of a document. " * 20
        self.browser.js("""const data = new DataTransfer();
            data.items.add(new File([arguments[0]], "document.txt"));
            document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));""", text)
        tokens = len(self.api("POST", "/tokenize", {"content": text, "parse_special": False})["tokens"])
        self.browser.until("return document.querySelector('#chips .soft')?.textContent === arguments[0]",
                           f"{len(text)} bytes · {tokens:,} tokens")
        self.set(max_tokens="20")
        self.browser.type("#message", "What is it about?" + webdriver.KEYS["enter"])
        self.finished()
        shown = re.search(r"prompt ([\d,]+)", self.browser.text(".numbers"))
        self.assertGreater(int(shown[1].replace(",", "")), tokens)


if __name__ == "__main__":
    if webdriver.missing():
        print(f"skipped: {webdriver.missing()} is not installed (Debian: chromium, chromium-driver)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
