"""axe-core finds nothing of weight on the page, in any of its states, in light and dark, on a desktop and on a phone. Its script
is in the environment that tools/setup.sh makes for the clients; SPECEXTEND_AXE names another copy."""
import glob
import os
import unittest

from mock_server import event, last_chunks, stream_of, tokens_chunk
from page_case import PageTest, browser, mock, plays

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3)
FOUND = [os.environ.get("SPECEXTEND_AXE", ""), *glob.glob(os.path.join(ROOT, "build/clients/lib/python3*/site-packages/axe_playwright_python/axe.min.js"))]
AXE = next((path for path in FOUND if os.path.isfile(path)), None)
CLIENTS = os.path.isfile(os.path.join(ROOT, "build/clients/made-of"))  # then axe-core must be there, too
TEXT = """# One

Some **bold**, *soft* and `code`, [a link](https://example.org) and $x^2 \\le y$.

## Two

| a | b |
|---|--:|
| 1 | 2 |

> quoted
> > twice

1. first
   - nested

```python
def f(x):  # comment
    return "text" + str(1.5)
```

$$
\\sum_{i=1}^n \\frac{1}{i}
$$

$\\unknown$
"""


@unittest.skipUnless(AXE or CLIENTS, "axe-core is not installed (tools/setup.sh)")
class Accessibility(PageTest):
    def setUp(self):
        self.assertTrue(AXE, "build/clients is there, but not the script of axe-core in it")
        super().setUp()

    def check(self, what):
        if not browser.js("return Boolean(window.axe)"):
            with open(AXE, encoding="utf-8") as file:
                browser.js(file.read())
        for scheme in ("light", "dark"):
            browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            found, passed = browser.js("""const told = (n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "");
                return window.axe.run(document, {resultTypes: ["violations"]}).then(({violations, passes}) =>
                    [violations.map((v) => [v.impact, v.id, v.nodes.slice(0, 3).map(told)]), passes.length])""")
            self.assertEqual([f for f in found if f[0] != "minor"], [], f"{what}, {scheme}")
            self.assertGreater(passed, 10, f"{what}, {scheme}: axe-core has looked at nothing")
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])

    def fill(self, compare=False):
        tokens = [(part + "\n", n % 9) for n, part in enumerate(TEXT.split("\n"))]
        mock.script = plays(stream_of([tokens_chunk(tokens, [(8, 4, 20.0, 16.0)] * 30, history=400, cells=[[0, 30]]), *last_chunks()]))
        self.drop("a.txt", "some words")
        self.drop("b.txt", "more words")
        browser.until("return document.querySelectorAll('#chips .name').length === 2")
        if compare:
            browser.click("#compare")
        self.ask("What is it?")

    def test_empty(self):
        self.check("empty")

    def test_answer(self):
        self.fill()
        browser.click(".regenerate")
        browser.until("return document.querySelector('.versions')")
        self.finished()
        browser.js("document.getElementById('rounds').open = true")
        self.check("answer")
        browser.click(".edit")
        self.check("editing")

    def test_compare_and_phone(self):
        self.fill(compare=True)
        self.check("compare")
        browser.size(360, 640)
        self.check("phone")
        browser.click("#toggle-list")
        self.check("list on a phone")

    def test_dialogs(self):
        self.ask("x")
        for button, dialog in (("#open-settings", "settings"), ("#open-export", "export"), ("#chats .delete", "ask-delete")):
            browser.click(button)
            self.check(dialog)
            browser.press("escape")
            browser.until("return !document.querySelector('dialog[open]')")

    def test_while_it_runs(self):
        mock.script = lambda request: (x for i in range(3000) for x in (event(tokens_chunk([(f"w{i} ", i % 3)], [(2, 1, 9, 8)], history=i)), 0.01))
        self.send("x")
        browser.until("return document.querySelector('.answer')?.textContent.includes('w9 ')")
        self.check("running")
        browser.press("escape")
        self.finished()


class Errors(Accessibility):
    expected_complaints = ("Failed to load resource",)
    test_empty = test_answer = test_compare_and_phone = test_dialogs = test_while_it_runs = None

    def test_error(self):
        mock.script = lambda request: (400, {}, {"error": {"message": "no"}})
        self.ask("x")
        self.check("error")
