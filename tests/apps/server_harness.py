"""A running `specextend serve` with a tiny model, as tests talk to it. Standard library only.

Tests are started with two arguments: the program, and the maker of tiny models; then come unittest's own.
"""
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM, MAKE_TINY = sys.argv[1:3]
FOLDER = tempfile.TemporaryDirectory()
MODEL = os.path.join(FOLDER.name, "tiny.gguf")
PATIENCE = 120  # seconds for anything
LONG = {"max_tokens": -1, "ignore_eos": True}  # runs far longer than any check here takes
DRAFTS = ("--spec", "suffix:cost-model=off")  # drafts whenever it can, whatever the machine's speed


class Server:
    def __init__(self, *flags, context=2000, model=None, tls=None, environment=None, wait=True):
        command = [PROGRAM, "serve", "-m", model or MODEL, "--port", "0", "-c", str(context), *flags]
        self.tls = tls
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("listening on ") or (not wait and " responds when " in line):
                self.port = int(line.split(" responds ")[0].rsplit(":", 1)[1])
                break
        else:
            self.process.wait()
            raise RuntimeError("no server: " + "".join(self.lines))
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()

    def connect(self):
        if self.tls:
            return http.client.HTTPSConnection("localhost", self.port, timeout=PATIENCE, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def raw(self, data=b""):
        """A connection as bytes."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        raw = self.tls.wrap_socket(plain, server_hostname="localhost") if self.tls else plain
        raw.sendall(data)
        return raw

    def request(self, method, path, body=None, headers=None):
        """Status, headers and body (parsed where it is JSON)."""
        connection = self.connect()
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        return response.status, dict(response.getheaders()), json.loads(text) if is_json else text

    def get(self, path):
        status, _, answer = self.request("GET", path)
        assert status == 200, (status, answer)
        return answer

    def post(self, path, body, headers=None):
        status, _, answer = self.request("POST", path, body, headers)
        assert status == 200, (status, answer)
        return answer

    def complete(self, **fields):
        return self.post("/v1/completions", fields)

    def text(self, **fields):
        return self.complete(**fields)["choices"][0]["text"]

    def tokens(self, text):
        return self.post("/tokenize", {"content": text})["tokens"]

    def stream(self, path, body):
        """All events of a stream, without [DONE], which must be the last."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200 and headers["Content-Type"] == "text/event-stream", (status, headers, text)
        assert headers["Cache-Control"] == "no-cache" and headers["X-Accel-Buffering"] == "no", headers
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        assert text.endswith("\n\n") and all(e.startswith("data: ") for e in events), text
        assert events[-1] == "data: [DONE]", events[-1]
        return [json.loads(e[6:]) for e in events[:-1]]

    def open_stream(self, body, path="/v1/completions"):
        """A raw connection on which a stream has been asked for."""
        data = json.dumps({**body, "stream": True}).encode()
        return self.raw(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)

    def metric(self, name):
        text = self.get("/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
            time.sleep(0.02)

    def wait_running(self, count=1):
        self.wait_for(f"{count} running", lambda: self.metric("vllm:num_requests_running") == count)

    def wait_waiting(self, count=1):
        self.wait_for(f"{count} waiting", lambda: self.metric("vllm:num_requests_waiting") == count)

    def wait_cancelled(self, count=1):
        self.wait_for(f"{count} cancelled", lambda: self.metric("specextend_requests_cancelled_total") == count)


def read_until(raw, word):
    """What comes on a raw connection up to a word, or all of it."""
    text = b""
    while word not in text:
        piece = raw.recv(65536)
        if not piece:
            break
        text += piece
    return text


def joined(events, chat, index=0):
    pieces = [c["delta"].get("content") or "" if chat else c["text"] for e in events for c in e["choices"] if c["index"] == index]
    return "".join(pieces)


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def in_threads(count, action):
    """The results of action(0) ... action(count - 1), all at a time."""
    results, failures = [None] * count, []

    def run(i):
        try:
            results[i] = action(i)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


class WithServer(unittest.TestCase):
    """Tests that share a server, started with FLAGS."""
    FLAGS, CONTEXT = (), 2000

    @classmethod
    def setUpClass(cls):
        cls.server = Server("-q", *cls.FLAGS, context=cls.CONTEXT)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()


def main():
    subprocess.run([MAKE_TINY, MODEL], check=True)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
