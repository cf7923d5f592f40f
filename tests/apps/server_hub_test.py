#!/usr/bin/env python3
"""Models by their name at a hub: a stand-in on this machine that lists files, sends them on and may lie. Arguments: see
server_harness.py."""
import hashlib
import http.server
import json
import os
import subprocess
import tempfile
import threading
import unittest

from server_harness import MODEL, PROGRAM, main


class Hub(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.server
        hub.asked.append(self.path)
        if self.path == "/api/models/me/tiny/tree/main?recursive=true":
            body = json.dumps(hub.files).encode()
        elif self.path.startswith("/me/tiny/resolve/main/"):
            self.send_response(302)
            self.send_header("Location", hub.leads_to(self.path.rsplit("/", 1)[1]))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        elif self.path.startswith("/store/"):
            body = hub.content
        else:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:hub.cut])


class Names(unittest.TestCase):
    def setUp(self):
        with open(MODEL, "rb") as file:
            content = file.read()
        self.hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        self.hub.asked, self.hub.content, self.hub.cut = [], content, len(content)
        self.hub.leads_to = lambda name: "/store/" + name
        entry = lambda path: {"type": "file", "path": path, "size": len(content), "lfs": {"oid": hashlib.sha256(content).hexdigest()}}
        self.hub.files = [{"type": "directory", "path": "old", "size": 0}, {"type": "file", "path": "README.md", "size": 3}, entry("../../up-Q4_K_M.gguf"),
                          entry("mmproj-Q4_K_M.gguf"), entry("tiny-IQ4_K_M.gguf"), entry("tiny-Q8_0.gguf"), entry("tiny-Q4_K_M.gguf"),
                          entry("big-F16-00001-of-00002.gguf")]
        self.address = f"http://127.0.0.1:{self.hub.server_port}"
        threading.Thread(target=self.hub.serve_forever, daemon=True).start()
        folder = tempfile.TemporaryDirectory()
        self.folder = folder.name
        self.addCleanup(folder.cleanup)
        self.addCleanup(self.hub.server_close)
        self.addCleanup(self.hub.shutdown)

    def serve(self, name, *flags, hub=True):
        """Starts a server and ends it when it listens, or says why not."""
        address = ["--hub", self.address, "--hub-folder", self.folder] if hub else []
        command = [PROGRAM, "serve", "-hf", name, "--port", "0", "-c", "100", *address, *flags]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if line.startswith("listening on "):
                    process.terminate()
            return process.wait(), "".join(lines)

    def kept(self):
        return sorted(os.path.relpath(os.path.join(place, name), self.folder) for place, _, names in os.walk(self.folder) for name in names)

    def refused(self, what, *arguments, **more):
        status, said = self.serve(*arguments, **more)
        self.assertNotEqual(status, 0, said)
        self.assertIn(what, said)
        self.assertEqual(self.kept(), [])

    def test_the_usual_file_is_fetched_once(self):
        for _ in range(2):
            status, said = self.serve("me/tiny")
            self.assertEqual(status, 0, said)
        self.assertEqual(self.kept(), ["me/tiny/tiny-Q4_K_M.gguf"])
        self.assertEqual([path for path in self.hub.asked if path.startswith("/store/")], ["/store/tiny-Q4_K_M.gguf"])

    def test_tags(self):
        self.assertEqual(self.serve("me/tiny:q8_0")[0], 0)
        self.assertEqual(self.kept(), ["me/tiny/tiny-Q8_0.gguf"])
        self.assertEqual(self.serve("me/tiny:IQ4_K_M")[0], 0)
        self.assertEqual(self.kept(), ["me/tiny/tiny-IQ4_K_M.gguf", "me/tiny/tiny-Q8_0.gguf"])

    def test_what_is_not_taken(self):
        self.refused("none is asked by default", "me/tiny", hub=False)
        self.refused("give one of them", "me/tiny", "-m", MODEL)
        self.refused("no GGUF file with 'Q2_K'", "me/tiny:Q2_K")
        self.refused("no GGUF file with 'F16'", "me/tiny:F16")
        self.refused("status 404", "me/other")
        for name in ("tiny", "../tiny", "me/../tiny", "me/tiny/x", "me/tiny:../x"):
            self.refused("hub", name)

    def test_files_that_are_not_as_told(self):
        self.hub.content = self.hub.content[:-1] + bytes([self.hub.content[-1] ^ 1])
        self.refused("SHA-256", "me/tiny")
        self.hub.cut = 5000
        self.refused("/store/", "me/tiny")
        self.hub.cut, self.hub.content = len(self.hub.content) + 1, self.hub.content + b"x"
        self.refused("longer", "me/tiny")

    def test_endless_redirections(self):
        self.hub.leads_to = lambda name: "/me/tiny/resolve/main/" + name
        self.refused("from one address to the next", "me/tiny")
        self.hub.leads_to = lambda name: "file:///etc/passwd"
        self.refused("no address that begins with", "me/tiny")


if __name__ == "__main__":
    main()
