"""The compare view, and what the page shows of the rounds."""
import json

from mock_server import chunk, event, last_chunks, stream_of, tokens_chunk
from page_case import PageTest, browser, mock, plays


def answers(plain, drafts, reason="stop"):
    """Scripts for both sides: (text, tokens/s)"""
    def script(request):
        side = plain if request.get("speculate") is False else drafts
        rounds = [(0, 0, 20.0, 20.0)] if side is plain else [(4, 3, 30.0, 20.0)]
        return iter([event(tokens_chunk([(side[0], 0 if side is plain else 2)], rounds, history=50)),
                     stream_of(last_chunks(predicted=10, ms=10_000 / side[1], reason=reason))])
    return script


class Compare(PageTest):
    def sides(self, what):
        return browser.js("return [...document.querySelectorAll('.side')].map((s) => s.querySelector(arguments[0]).textContent)", what)

    def test_equal(self):
        mock.script = answers(("Same **text**", 50), ("Same **text**", 125))
        browser.click("#compare")
        self.assertEqual(browser.js("return document.getElementById('compare').getAttribute('aria-pressed')"), "true")
        browser.js("""const select = document.getElementById("preset");
            select.value = "suffix";
            select.dispatchEvent(new Event("change"));""")
        self.ask("go")
        first, second = mock.requests
        self.assertEqual((first.pop("speculate"), second.pop("spec_preset")), (False, "suffix"))
        self.assertEqual(first, second)  # the same prompt, seed and settings
        self.assertEqual(self.sides(".side-name"), ["Plain", "With drafts: suffix"])
        self.assertEqual(self.sides(".answer"), ["Same text"] * 2)
        self.assertEqual(self.sides(".figures"), ["50.0 tok/s · 1.00 tokens per pass · 10 tokens in 200 ms",
                                                  "125.0 tok/s · 4.00 tokens per pass · 10 tokens in 80 ms"])
        self.assertEqual(browser.text(".note"), "The texts are equal: 13 characters. With drafts 2.50× as fast.")
        before = browser.js("return document.querySelector('.sides').textContent + document.querySelector('.note').outerHTML")
        self.load()
        self.assertEqual(browser.js("return document.querySelector('.sides').textContent + document.querySelector('.note').outerHTML"), before)
        self.assertEqual(browser.count(".side:first-child .d2"), 0)
        self.ask("more", answers=2)
        self.assertEqual([m["content"] for m in mock.requests[-1]["messages"]], ["go", "Same **text**", "more"])
        browser.click("#compare")
        self.ask("one answer", answers=3)
        self.assertEqual(len(mock.requests), 5)

    def test_different(self):
        """It must never happen; where it does, it is said."""
        for plain, drafts, reason in (("One", "Ono", 3), ("One", "One more", 4)):
            mock.script = answers((plain, 50), (drafts, 50))
            if not browser.js("return document.getElementById('compare').getAttribute('aria-pressed') === 'true'"):
                browser.click("#compare")
            self.new_chat()
            self.ask("go")
            self.assertEqual(browser.text(".note.differ"), f"The texts differ from character {reason} on. They must not: this is a bug of the server.")
            self.load()
            self.assertEqual(self.sides(".answer"), [plain, drafts])
            self.assertEqual(browser.count(".note.differ"), 1)

    def test_live_and_together(self):
        """Both at once: each side has its text and figures while they arrive."""
        words = [f"w{i} " for i in range(40)]

        def script(request):
            plain = request.get("speculate") is False
            for at, word in enumerate(words):
                yield event(tokens_chunk([(word, 0 if plain else at % 3)], [(0, 0, 20, 20) if plain else (2, 1, 20, 20)], history=at))
                yield 0.03
            yield stream_of(last_chunks())
        mock.script = script
        browser.click("#compare")
        browser.js("document.getElementById('together').click()")
        self.send("go")
        browser.until("return [...document.querySelectorAll('.side .answer')].filter((a) => a.textContent.includes('w3 ')).length === 2")
        self.assertEqual(self.sides(".figures"), ["50.0 tok/s · 1.00 tokens per pass", "100.0 tok/s · 2.00 tokens per pass"])
        self.finished()
        self.assertTrue(browser.text(".note").endswith("while both shared the machine."))

    def test_stopped(self):
        mock.script = lambda request: (x for i in range(2000) for x in (event(chunk(f"w{i} ")), 0.01))
        browser.click("#compare")
        browser.js("document.getElementById('together').click()")
        self.send("go")
        browser.until("return [...document.querySelectorAll('.side .answer')].filter((a) => a.textContent.includes('w3 ')).length === 2")
        browser.press("escape")
        self.finished()
        self.assertEqual(browser.text(".note"), "Stopped. As far as both go, the texts are equal.")


class CompareErrors(PageTest):
    expected_complaints = ("Failed to load resource",)

    def test_one_side_fails(self):
        good = answers(("Yes", 50), ("Yes", 50))
        mock.script = lambda request: good(request) if request.get("speculate") is False else (400, {}, {"error": {"message": "no drafts here"}})
        browser.click("#compare")
        self.send("go")
        self.finished()
        self.assertEqual(browser.text(".error"), "no drafts here")
        mock.script = good
        browser.click(".retry")
        browser.until("return document.querySelector('.note.equal')")
        self.assertEqual(browser.count(".assistant"), 1)


class Rounds(PageTest):
    def test_panel(self):
        rounds = [{"drafted": 4, "verified": 3, "accepted": 2, "ms": 12.5, "plain_ms": 8.0, "preset": "suffix", "gain": 1.25},
                  {"drafted": 0, "verified": 0, "accepted": 0, "ms": 8, "plain_ms": 8, "preset": "<b>off"}]
        details = chunk("x", specextend={"tokens": [{"text": "x", "depth": 0}], "rounds": rounds, "history": 5})
        mock.script = plays(stream_of([details, *last_chunks()]))
        browser.js("document.querySelector('#rounds summary').focus()")
        browser.press("enter")
        self.assertEqual(browser.text("#rounds-sum"), "No rounds yet.")
        browser.js("document.getElementById('message').focus()")
        self.ask("go")
        browser.until("return document.getElementById('rounds-sum').textContent.startsWith('Drafted')")
        self.assertEqual(browser.text("#rounds-sum"), "Drafted in 1 of 2 rounds, 4.0 tokens each; 50 % of them accepted.")
        cells = browser.js("return [...document.querySelectorAll('.rounds-table tr')].map((row) => [...row.cells].map((c) => c.textContent))")
        self.assertEqual(cells, [["Round", "Drafted", "Checked", "Accepted", "Tokens", "ms", "Plain ms", "preset", "gain"],
                                 ["2", "0", "0", "0", "1", "8", "8", "<b>off", "–"], ["1", "4", "3", "2", "3", "12.5", "8", "suffix", "1.25"]],
                         json.dumps(cells))

    def test_decisions(self):
        rounds = [{"drafted": 3, "verified": 3, "accepted": 2, "ms": 12.5, "decision": "model", "why": "it pays", "levels": 3,
                   "expected_tokens": 2.5, "expected_steps": 1.25},
                  {"drafted": 0, "verified": 0, "accepted": 0, "ms": 8, "decision": "without", "why": "the model does not <b>pay", "levels": 0,
                   "expected_tokens": 1, "expected_steps": 1}]
        details = chunk("x", specextend={"tokens": [{"text": "x", "depth": 0}], "rounds": rounds, "history": 5})
        mock.script = plays(stream_of([details, *last_chunks()]))
        browser.js("document.querySelector('#rounds summary').focus()")
        browser.press("enter")
        browser.js("document.getElementById('message').focus()")
        self.ask("go")
        browser.until("return document.getElementById('rounds-sum').textContent.startsWith('Drafted')")
        cells = browser.js("return [...document.querySelectorAll('.rounds-table tr')].map((row) => [...row.cells].map((c) => c.textContent))")
        self.assertEqual([row[-5:] for row in cells], [["Decision", "Levels", "Why", "Tokens expected", "Steps expected"],
                                                       ["without", "0", "the model does not <b>pay", "1", "1"],
                                                       ["model", "3", "it pays", "2.50", "1.25"]], json.dumps(cells))
