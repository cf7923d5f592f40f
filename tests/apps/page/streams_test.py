"""Streams as the page takes them: cut anywhere, long, stopped; and what it shows of speculation."""
import json
import time

import webdriver
from mock_server import chunk, event, last_chunks, stream_of, tokens_chunk
from page_case import PageTest, browser, mock, plays

ANSWER = [("The", 0), (" sky", 1), (" is", 2), (" blü", 3), ("e 🌍", 9), (" \n", 1), ("<b>", 0)]
TEXT = "".join(t for t, _ in ANSWER)
# Runs in the page: what stands in the answer, piece by piece, with the depth each was tinted with.
PIECES = """
const found = [], walk = document.createTreeWalker(document.querySelector('.answer'), NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const depth = /^d(\\d)$/.exec(walk.currentNode.parentNode.className);
  found.push([walk.currentNode.data, depth ? Number(depth[1]) : 0]);
}
return found;"""


class Streams(PageTest):
    expected_complaints = ("willReadFrequently",)  # of the tests' own looks at the canvas

    def test_parser_with_every_cut(self):
        """Events are the same wherever the text is cut, with every kind of line end."""
        for end in ("\n", "\r\n", "\r"):
            lines = [": comment", "data: one", "", "event: error", "data:two", "data:  three", "", "id: 7", "nonsense", "", "data", "", ""]
            found = browser.js("""
                const [text] = arguments;
                return import("/sse.js").then(({EventParser}) => {
                  const results = new Set();
                  for (let i = 0; i <= text.length; ++i)
                    for (let j = i; j <= text.length; j += 3) {
                      const events = [], parser = new EventParser((data, name) => events.push([name, data]));
                      for (const part of [text.slice(0, i), text.slice(i, j), text.slice(j), "\\n"]) parser.push(part);
                      results.add(JSON.stringify(events));
                    }
                  return [...results];
                });""", end.join(lines))
            expected = [["message", "one"], ["error", "two\n three"], ["message", ""]]
            self.assertEqual([json.loads(events) for events in found], [expected], repr(end))

    def test_bytes_one_by_one(self):
        data = (": ping\n\n" + stream_of([chunk(""), tokens_chunk(ANSWER, [(9, 8, 10, 8)]), *last_chunks()])).encode()
        # The browser joins what comes at once: a pause inside of characters.
        mock.script = lambda request: (x for i in range(len(data)) for x in (data[i:i + 1], 0.02 if data[i] > 127 else 0))
        self.ask("why?")
        self.assertEqual(browser.js(PIECES), [["The", 0], [" sky", 1], [" is", 2], [" blü", 3], ["e 🌍", 8], [" ", 1], ["\n", 0],
                                              ["<b>", 0]])
        self.assertEqual(browser.text(".answer"), TEXT)

    def test_no_gain_without_drafts(self):
        """Plain decoding is not slower than itself, however the two estimates of its speed differ."""
        mock.script = plays(event(tokens_chunk([("a", 0)], [(0, 0, 20.0, 17.0)], history=100)), 0.4,
                            stream_of(last_chunks(predicted=1, ms=20.0, plain=58.8, drafted=0, accepted=0)))
        self.send("go")
        browser.until("return document.getElementById('speed').textContent === '50.0'")
        self.assertEqual(browser.text("#gain"), "–")
        self.finished()
        self.assertEqual(browser.text("#gain"), "–")
        self.assertNotIn("plain", browser.text(".numbers"))

    def test_numbers(self):
        first = tokens_chunk([("a", 0), ("b", 1)], [(4, 1, 20.0, 16.0)], history=100, cells=[[0, 4], [40, 72]], refreshes=1)
        second = tokens_chunk([("c", 0), ("d", 1), ("e", 2)], [(4, 2, 30.0, 16.0)], history=103, cells=[[0, 4], [64, 96]], refreshes=2)
        mock.script = plays(event(first), event(second), 0.6, stream_of(last_chunks(predicted=5, ms=80.0, plain=25.0)))
        self.send("go")
        browser.until("return document.getElementById('speed').textContent === '100.0'")  # 5 tokens in 50 ms
        self.assertEqual([browser.text("#" + i) for i in ("plain", "gain", "per-round")], ["62.5", "1.60×", "2.50"])
        self.assertEqual(browser.text("#strip-label"),
                         "103 tokens in the cache · draft: 36 in 2 places, chosen 2 times")
        self.finished()  # from here on what the server measured
        browser.until("return document.getElementById('speed').textContent === '62.5'")
        self.assertEqual([browser.text("#" + i) for i in ("plain", "gain", "per-round")], ["25.0", "2.50×", "2.50"])
        self.assertEqual(browser.text(".numbers").rsplit(" · ", 1)[0],
                         "5 tokens in 80 ms · 62.5 tok/s · 2.50× plain · 2.50 tokens per round · "
                         "6 of 8 drafts accepted · prompt 10, 3 from the cache, 20 ms")

    def test_ranges(self):
        cases = [([[0, 10]], [], [[0, 10]]), ([[0, 10]], [[2, 4], [6, 20]], [[0, 2], [4, 6]]), ([[5, 6]], [[0, 9]], []),
                 ([[0, 4], [8, 12]], [[3, 9]], [[0, 3], [9, 12]])]
        for a, b, left in cases:
            self.assertEqual(browser.js("const [a, b] = arguments; return import('/strip.js').then((m) => m.without(a, b))", a, b), left)

    def test_progress_and_strip(self):
        progress = [event(chunk("", prompt_progress={"total": 1000, "cache": 200, "processed": p, "time_ms": ms})) for p, ms in
                    [(200, 0), (600, 800)]]
        answer = tokens_chunk([("x", 0)], [(1, 0, 5, 5)], history=1000, cells=[[100, 200], [900, 1000]])
        mock.script = plays(progress[0], progress[1], 0.8, stream_of([answer, *last_chunks()]))
        self.send("read this")
        browser.until("return document.getElementById('strip-label').textContent.startsWith('Reading 600')")
        self.assertEqual(browser.text("#strip-label"), "Reading 600 of 1,000 tokens · 500 tok/s · about 800 ms left")
        self.assertEqual(browser.js("""const strip = document.getElementById("strip");
            return ["role", "aria-valuenow", "aria-valuemax"].map((name) => strip.getAttribute(name))"""), ["progressbar", "600", "1000"])
        colours = """const canvas = document.querySelector("#strip canvas"), pen = canvas.getContext("2d");
            const at = (share) => [...pen.getImageData(share * canvas.width, 5, 1, 1).data].join();"""
        self.assertTrue(browser.js(colours + "return at(.5) !== at(.7) && at(.5) !== at(.1)"))  # read, to be read, from the cache
        self.finished()
        self.assertEqual(browser.js("return document.getElementById('strip').getAttribute('role')"), "img")
        self.assertTrue(browser.js(colours + "return at(.15) !== at(.5)"))
        browser.until(colours + "window.seen = (window.seen ?? new Set()).add(at(.15)); return window.seen.size > 3")  # fades
        browser.js("document.getElementById('strip').focus()")
        browser.press("right")
        self.assertTrue(browser.text("#strip-tip").startswith("Tokens 100 to 199: the draft works on this"))
        browser.press("left")
        self.assertTrue(browser.text("#strip-tip").startswith("Tokens 900 to 999: the draft works on this"))

    def test_stop(self):
        for way in ("key", "button"):
            mock.broken.clear()
            mock.script = lambda request: (x for i in range(2000) for x in (event(chunk(f"w{i} ")), 0.01))
            self.send("go on")
            browser.until("return document.querySelectorAll('.assistant:last-child .answer')[0]?.textContent.includes('w3 ')")
            self.assertEqual(browser.text("#send"), "Stop")
            browser.press("escape") if way == "key" else browser.click("#send")
            self.finished(1 if way == "key" else 2)
            self.assertTrue(mock.broken.wait(10), "the stream was not closed")
            self.assertEqual(browser.text(".assistant:last-child .note"), "Stopped.")
            self.assertEqual(browser.text("#send"), "Send")
        mock.script = plays(stream_of([chunk("Yes."), *last_chunks()]))
        self.ask("more", answers=3)  # what came is part of the conversation
        self.assertEqual([m["role"] for m in mock.requests[-1]["messages"]], ["user", "assistant"] * 2 + ["user"])
        self.assertTrue(mock.requests[-1]["messages"][1]["content"].startswith("w0 w1 w2 w3 "))

    def test_long_answers_stay_fast(self):
        """A hundred thousand characters, in one line and in many: nothing that was drawn is drawn again, but for the last line."""
        for separator in (" ", "\n\n"):
            words = [f"word{i:05d}{separator if i % 12 == 11 else ' '}" for i in range(9200)]
            text = "".join(words)
            events = [event(tokens_chunk([(w, (i + k) % 5) for k, w in enumerate(words[i:i + 4])], [(4, 3, 5, 4)], history=i))
                      for i in range(0, len(words), 4)]
            parts = ["".join(events[i:i + 20]) for i in range(0, len(events), 20)]
            mock.script = plays(*(x for part in parts for x in (part, 0.01)), stream_of(last_chunks()))
            self.new_chat()
            browser.js("""window.added = window.frames_seen = 0;
                new MutationObserver((list) => { for (const change of list) for (const node of change.addedNodes)
                  window.added += 1 + (node.querySelectorAll?.("*").length ?? 0); })
                  .observe(document.getElementById("messages"), {childList: true, subtree: true});
                const tick = () => { window.frames_seen += 1; requestAnimationFrame(tick); };
                requestAnimationFrame(tick);""")
            begin = time.monotonic()
            self.ask("much")
            spent = time.monotonic() - begin
            shown = browser.js("return document.querySelector('.answer').textContent")
            self.assertEqual(shown.replace("\n", ""), text.replace("\n", ""))
            self.assertLess(spent, 20)
            frames, added = browser.js("return [window.frames_seen, window.added]")
            self.assertGreater(frames, 10)
            line = 2 * 2000 // 10  # nodes of the longest line that is redrawn: tinted words
            self.assertLess(added, 3 * len(words) + frames * line)
