"""The page's looks: narrow windows, colours and contrast, nothing that jumps while an answer arrives."""
from mock_server import chunk, event, last_chunks, stream_of, tokens_chunk
from page_case import PageTest, browser, mock, plays

# Contrast of the text of each selector with what it stands on, as WCAG 2 defines it.
CONTRAST = """
const [selectors] = arguments;
const pen = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
const paint = (colours) => {
  pen.clearRect(0, 0, 1, 1);
  for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
  return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
return selectors.map((selector) => {
  const element = document.querySelector(selector), below = [];
  for (let e = element; e; e = e.parentElement) below.unshift(getComputedStyle(e).backgroundColor);
  const [a, b] = [light(paint(below)), light(paint([...below, getComputedStyle(element).color]))].sort((x, y) => x - y);
  return (b + .05) / (a + .05);
});"""
SELECTORS = [".bubble", ".answer", ".answer code", *(f".answer .d{n}" for n in range(1, 9)), ".numbers", ".small.copy", "#model",
             "#send", "#new-chat", "#strip-label", "#strip-side", "dt", "dd", ".legend label", ".swatches .d8",
             ".chip .soft", ".user .name", "#message"]
OVERFLOW = """const inside = [...document.querySelectorAll("main, #dock, .bar, #composer")].map((e) => e.scrollWidth - e.clientWidth);
return document.documentElement.scrollWidth - innerWidth + Math.max(...inside)"""


class Looks(PageTest):
    def rich(self):
        tokens = [("Some `code` ", 0), *((f"depth{n} ", n) for n in range(1, 9)), ("x" * 300, 0), ("\n```\n" + "y" * 400 + "\n```\n", 0)]
        return [tokens_chunk(tokens, [(8, 7, 10, 9)], history=400, cells=[[0, 30]]), *last_chunks()]

    def prefer(self, scheme):
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def test_contrast(self):
        self.drop("file.txt", "words")
        mock.script = plays(stream_of(self.rich()))
        self.ask("q" * 40)
        for scheme in ("light", "dark"):
            self.prefer(scheme)
            for selector, contrast in zip(SELECTORS, browser.js(CONTRAST, SELECTORS)):
                self.assertGreaterEqual(contrast, 4.5, f"{scheme} {selector}")
        self.prefer("light")
        mock.script = lambda request: (400, {}, {"error": {"message": "no"}})
        self.ask("x", answers=2)
        browser.complaints()
        for scheme in ("light", "dark"):
            self.prefer(scheme)
            self.assertGreaterEqual(browser.js(CONTRAST, [".error"])[0], 4.5, scheme)
        self.prefer("light")

    def test_theme(self):
        dark = "return getComputedStyle(document.body).backgroundColor === 'rgb(19, 23, 21)'"
        self.prefer("light")
        self.assertFalse(browser.js(dark))
        self.prefer("dark")
        self.assertTrue(browser.js(dark))
        self.prefer("light")
        for expected in (("Light", False), ("Dark", True)):
            browser.click("#theme")
            self.assertEqual((browser.text("#theme"), browser.js(dark)), expected)
        self.load()
        self.assertEqual((browser.text("#theme"), browser.js(dark)), ("Dark", True))
        browser.click("#theme")
        self.assertEqual((browser.text("#theme"), browser.js(dark)), ("Auto", False))

    def test_tint_switch(self):
        mock.script = plays(stream_of(self.rich()))
        self.ask("x")
        tint = "return getComputedStyle(document.querySelector('.answer .d3')).backgroundColor"
        self.assertEqual(browser.js(tint), "rgb(188, 228, 209)")
        browser.click("#tint")
        self.assertEqual(browser.js(tint), "rgba(0, 0, 0, 0)")
        self.load()
        self.assertEqual(browser.js(tint), "rgba(0, 0, 0, 0)")

    def test_narrow(self):
        browser.size(360, 640)
        self.load()
        self.assertLessEqual(browser.js(OVERFLOW), 0)
        self.drop("a name that goes on and on " * 6 + ".txt", "words")
        browser.until("return document.querySelector('#chips .chip')")
        self.assertLessEqual(browser.js(OVERFLOW), 0)
        mock.script = plays(stream_of(self.rich()))
        self.ask("w" * 200)
        self.assertLessEqual(browser.js(OVERFLOW), 0)
        sizes = browser.js("""return ["#send", "#message", "#attach", "#new-chat", "#preset"].map((selector) => {
            const box = document.querySelector(selector).getBoundingClientRect();
            return box.left >= 0 && box.right <= 360 && box.bottom <= 640 && box.height >= 24 && box.width >= 40;
        })""")
        self.assertEqual(sizes, [True] * 5)
        self.assertGreater(browser.js("return document.querySelector('main').clientHeight"), 250)
        self.assertLess(browser.js("return document.querySelector('.bar').clientHeight"), 56)  # one line

    def test_nothing_jumps(self):
        """While an answer arrives, only the text moves: the frame stays, and what is already written stays where it is."""
        watch = """window.shifts = [];
            new PerformanceObserver((list) => { for (const e of list.getEntries()) for (const s of e.sources) {
              const node = s.node?.nodeType === 1 ? s.node : s.node?.parentElement;
              if (node && !node.closest('main')) window.shifts.push(node.id || node.className || node.tagName);
            } }).observe({type: 'layout-shift'});
            window.boxes = new Set();
            const look = () => {
              const parts = ['#dock', '#strip', '.meters', '#spark', '.legend', '#composer', '#send', '#per-round'];
              window.boxes.add(parts.map((selector) => {
                const box = document.querySelector(selector).getBoundingClientRect();
                return [selector, box.left, box.top, box.width].join(' ');
              }).join('; '));
              requestAnimationFrame(look);
            };
            look();"""
        browser.js(watch)
        progress = [event(chunk("", prompt_progress={"total": 3000, "cache": 0, "processed": p, "time_ms": p + 1})) for p in (0, 900, 3000)]
        rounds = [event(tokens_chunk([(f"w{i} ", 0), ("and ", 1), ("so\n" if i % 9 == 0 else "so ", 2)],
                                     [(5, i % 7, 3.0 + i * 3, 2.0 + i)], history=3000 + 3 * i, cells=[[i * 10, i * 10 + 500]],
                                     refreshes=i)) for i in range(60)]
        mock.script = plays(*(x for p in progress for x in (p, 0.05)), *(x for r in rounds for x in (r, 0.01)), stream_of(last_chunks()))
        self.ask("x")
        self.assertEqual(browser.js("return window.shifts"), [])
        self.assertEqual(len(browser.js("return [...window.boxes]")), 1, "\n".join(browser.js("return [...window.boxes]")))

    def test_reading_back(self):
        """Whoever scrolls up while an answer arrives stays there; a button leads back to the end."""
        mock.script = plays(*(x for i in range(300) for x in (event(chunk(f"line {i}\n")), 0.004)), stream_of(last_chunks()))
        self.send("x")
        browser.until("return document.querySelector('main').scrollTop > 300")
        browser.js("document.querySelector('main').scrollTop = 10")
        self.finished()
        self.assertEqual(browser.js("return document.querySelector('main').scrollTop"), 10)
        browser.click("#to-end")
        browser.until("""const room = document.querySelector("main");
            return room.scrollHeight - room.scrollTop - room.clientHeight < 2 && document.getElementById("to-end").hidden""")
