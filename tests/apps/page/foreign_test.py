#!/usr/bin/env python3
"""What pages of others in a real browser can make `specextend serve` do. Arguments: the program, the maker of tiny models.

The browser is told that evil.example is this machine. One port of it has the foreign page, another is the server's: the page has then
had its own name lead to the server, as with DNS rebinding.
"""
import http.server
import os
import re
import sys
import threading
import unittest

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
import webdriver  # noqa: E402

if webdriver.missing():
    print(f"skipped: {webdriver.missing()} is not installed (Debian: chromium, chromium-driver)")
    sys.exit(77)
from server_harness import FOLDER, Server, main  # noqa: E402

ASK = """
const [address, options, hidden] = arguments;
if (hidden) options.body = new Blob([hidden]);
return fetch(address, options).then(async r => [r.type, r.status, await r.text()], e => ["failed", 0, String(e)]);
"""
RUN = '{"prompt": "Hi", "max_tokens": 1}'
HIDDEN = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (len(RUN), RUN)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, *_):
        pass


class Foreign(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("-q"))
        cls.pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=cls.pages.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.pages.server_close)
        cls.addClassCleanup(cls.pages.shutdown)
        cls.browser = webdriver.Browser(FOLDER.name, flags=["--host-resolver-rules=MAP evil.example 127.0.0.1"])
        cls.addClassCleanup(cls.browser.close)

    def ask(self, page, address, options, hidden=None):
        """Type, status and text that the page gets to see."""
        self.browser.go(page)
        return self.browser.js(ASK, address, options, hidden)

    def completions(self):
        return self.server.metric("vllm:request_success_total")

    def responses(self, status):
        found = re.search(r'specextend_http_responses_total\{.*status="%d"\} (\d+)' % status, self.server.get("/metrics"))
        return int(found[1]) if found else 0

    def test_a_foreign_page(self):
        evil = f"http://evil.example:{self.pages.server_port}/"
        base = f"http://127.0.0.1:{self.server.port}"
        before = self.completions(), self.responses(403), self.responses(414)
        self.ask(evil, base + "/v1/completions", {"method": "POST", "mode": "no-cors", "body": RUN})
        for path, method in (("/v1/completions?" + "a" * 9000, "POST"), ("/nowhere", "POST"), ("/v1/completions", "POST")):
            for _ in range(3):
                kind = self.ask(evil, base + path, {"method": method, "mode": "no-cors"}, HIDDEN)[0]
                self.assertIn(kind, ("opaque", "failed"))
        self.assertEqual(self.ask(evil, base + "/v1/models", {})[0], "failed")  # may be asked for, not read
        self.assertEqual(self.completions(), before[0])
        self.assertEqual((self.responses(403) - before[1], self.responses(414) - before[2]), (7, 3))  # they did arrive

    def test_a_page_whose_name_leads_here(self):
        page = f"http://evil.example:{self.server.port}/"
        before = self.completions()
        for path, options in (("/v1/models", {}), ("/v1/completions", {"method": "POST", "body": RUN}), ("/health", {})):
            kind, status, text = self.ask(page, path, options)
            self.assertEqual((kind, status), ("basic", 403))
            self.assertIn("host_not_allowed", text)
        self.assertEqual(self.completions(), before)

    def test_a_page_of_this_machine(self):
        page = f"http://localhost:{self.pages.server_port}/"
        headers = {"Authorization": "Bearer x", "Content-Type": "application/json", "X-Stainless-Lang": "js", "X-Stainless-Retry-Count": "0"}
        before = self.completions()
        kind, status, text = self.ask(page, f"http://127.0.0.1:{self.server.port}/v1/completions", {"method": "POST", "body": RUN, "headers": headers})
        self.assertEqual((kind, status, '"choices"' in text), ("cors", 200, True), text)
        self.assertEqual(self.completions(), before + 1)


if __name__ == "__main__":
    main()
