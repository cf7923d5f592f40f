"""What the tests of the page share: one browser, one server that plays scripts, and a fresh page for each test."""
import tempfile
import unittest

import mock_server
import webdriver
from mock_server import chunk, last_chunks, stream_of

HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\"'&amp;"
browser = mock = None  # set by begin(), before the modules with the tests are loaded


def begin(page):
    global browser, mock, folder
    folder = tempfile.TemporaryDirectory()
    mock = mock_server.MockServer(page)
    browser = webdriver.Browser(folder.name)


def end():
    browser.close()
    mock.close()
    folder.cleanup()


def plays(*pieces):
    return lambda request: iter(pieces)


class PageTest(unittest.TestCase):
    expected_complaints = ()  # parts of console lines that a test provokes

    def setUp(self):
        mock.requests.clear()
        mock.keys.clear()
        mock.broken.clear()
        mock.key = None
        mock.props = {"model_alias": "tiny", "n_ctx": 8192, "presets": ["specextend", "suffix"]}
        mock.script = plays(stream_of([chunk("Yes."), *last_chunks()]))
        browser.size(1100, 800)
        browser.go(mock.address + "icon.svg")  # a page of the same origin that runs nothing
        browser.js("localStorage.clear(); sessionStorage.clear()")
        self.load()

    def load(self):
        browser.go(mock.address)
        browser.until("return document.getElementById('model').textContent || document.querySelector('dialog[open]')")

    def tearDown(self):
        complaints = [c for c in browser.complaints() if not any(part in c for part in self.expected_complaints)]
        self.assertEqual(complaints, [])
        self.assertIsNone(browser.js("return window.hacked ?? null"))

    def new_chat(self):
        browser.click("#new-chat")

    def kept(self):
        """The conversations in the browser's storage, the last changed one first."""
        return browser.js("""const keys = Object.keys(localStorage).filter((key) => key.startsWith("specextend.chat"));
            return keys.map((key) => JSON.parse(localStorage.getItem(key))).sort((a, b) => b.updated - a.updated)""")

    def send(self, text):
        browser.type("#message", text + webdriver.KEYS["enter"])

    def finished(self, answers=1):
        browser.until("return document.querySelectorAll('.assistant.done').length === arguments[0]"
                      " && !document.documentElement.classList.contains('running')", answers)

    def ask(self, text, answers=1):
        self.send(text)
        self.finished(answers)

    def drop(self, name, content, where="body"):
        """content: text, or a list of bytes"""
        browser.js("""
            const [name, content, where] = arguments, data = new DataTransfer();
            data.items.add(new File([Array.isArray(content) ? new Uint8Array(content) : content], name));
            for (const type of ["dragenter", "dragover", "drop"])
              document.querySelector(where).dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true}));
        """, name, content, where)
