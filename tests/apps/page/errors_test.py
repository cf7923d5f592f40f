"""What the page makes of errors: refused, busy, without a key, broken off."""
import time

import webdriver
from mock_server import chunk, event, last_chunks, stream_of
from page_case import HOSTILE, PageTest, browser, mock, plays


class Errors(PageTest):
    expected_complaints = ("Failed to load resource", "net::ERR")

    def error(self):
        self.finished()
        return browser.text(".assistant .error")

    def test_refused(self):
        mock.script = lambda request: (400, {}, {"error": {"message": "'temperature' must be " + HOSTILE}})
        self.send("x")
        self.assertEqual(self.error(), "'temperature' must be " + HOSTILE)
        mock.script = plays(stream_of([chunk("Now."), *last_chunks()]))
        browser.click(".retry")
        self.finished()
        self.assertEqual(browser.text(".answer"), "Now.")
        self.assertEqual(browser.count(".assistant"), 1)
        self.assertEqual(mock.requests[1]["messages"], [{"role": "user", "content": "x"}])

    def test_a_proxy_answers(self):
        mock.script = lambda request: (502, {}, b"<html>bad gateway")
        self.send("x")
        self.assertEqual(self.error(), "The server answered with status 502.")

    def test_busy(self):
        times = []

        def script(request):
            times.append(time.monotonic())
            busy = (429, {"Retry_After": "1"}, {"error": {"message": "the queue is full"}})
            return busy if len(times) < 3 else iter([stream_of([chunk("At last."), *last_chunks()])])
        mock.script = script
        self.send("x")
        browser.until("return document.querySelector('.note').textContent === 'The server is busy. Trying again in 1 s.'")
        self.finished()
        self.assertEqual((browser.text(".answer"), browser.text(".note")), ("At last.", ""))
        self.assertTrue(all(b - a >= 1 for a, b in zip(times, times[1:])), times)

    def test_stop_while_busy(self):
        mock.script = lambda request: (429, {"Retry_After": "30"}, {"error": {"message": "the queue is full"}})
        self.send("x")
        browser.until("return document.querySelector('.note')?.textContent.includes('busy')")
        browser.press("escape")
        self.finished()
        self.assertEqual(browser.text(".note"), "Stopped before the answer began.")
        self.assertEqual(len(mock.requests), 1)

    def test_key(self):
        mock.key = "secret-1"
        self.load()
        browser.until("return document.getElementById('ask-key').open")
        browser.type("#asked-key", "wrong" + webdriver.KEYS["enter"])
        browser.until("return document.getElementById('ask-key').open && document.getElementById('asked-key').value === ''")
        browser.type("#asked-key", "secret-1" + webdriver.KEYS["enter"])
        browser.until("return document.getElementById('model').textContent === 'tiny'")
        self.ask("x")
        self.assertEqual(browser.text(".answer"), "Yes.")
        mock.key = "secret-2"  # changed while the page is open
        self.send("y")
        browser.until("return document.getElementById('ask-key').open")
        browser.type("#asked-key", "secret-2" + webdriver.KEYS["enter"])
        self.finished(2)
        self.assertEqual(mock.keys, ["Bearer secret-1", "Bearer secret-1", "Bearer secret-2"])
        self.assertNotIn("secret", browser.js("return JSON.stringify(localStorage)"))
        self.assertIn("secret-2", browser.js("return JSON.stringify(sessionStorage)"))

    def test_the_model_is_being_loaded(self):
        mock.props = None
        self.load()
        self.assertEqual(browser.text("#model"), "The model is being loaded")
        mock.props = {"model_alias": "there now", "presets": ["late"]}
        browser.until("return document.getElementById('model').textContent === 'there now'")
        self.assertEqual(browser.count("#preset option[value=late]"), 1)

    def test_error_in_the_stream(self):
        mock.script = plays(event(chunk("Half")), event({"error": {"message": "the server is stopping", "code": 503}}), "data: [DONE]\n\n")
        self.send("x")
        self.assertEqual(self.error(), "the server is stopping")
        self.assertEqual(browser.text(".answer"), "Half")

    def test_connection_lost(self):
        for rest in ("", "data: {\"choices\": [{\"del"):
            mock.script = plays(event(chunk("Half")), rest)
            self.send("x")
            self.assertEqual(self.error(), "The connection was lost before the answer was complete. What came before is above.")
            self.assertEqual(browser.text(".answer"), "Half")
            self.new_chat()

    def test_not_reachable(self):
        browser.devtools("Network.enable")
        offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.devtools("Network.emulateNetworkConditions", offline=True, **offline)
        self.send("x")
        self.assertEqual(self.error(), "The server cannot be reached. Is it still running?")
        browser.devtools("Network.emulateNetworkConditions", offline=False, **offline)
        browser.click(".retry")
        self.finished()
        self.assertEqual(browser.text(".answer"), "Yes.")

    def test_not_json(self):
        mock.script = plays("data: {oops\n\n")
        self.send("x")
        self.assertEqual(self.error(), "The server sent something that is not JSON.")
