#!/usr/bin/env python3
"""Connections of `specextend serve`: where requests end, how much room each client may take, who leaves: see server_harness.py."""
import contextlib
import json
import os
import re
import resource
import signal
import socket
import statistics
import sys
import threading
import time
import unittest

from server_harness import FOLDER, LONG, PATIENCE, Server, WithServer, main, read_until

RUN = json.dumps({"prompt": "Hi", "max_tokens": 1}).encode()
# What an attacker wants to be taken for a request.
HIDDEN = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(RUN), RUN)
HOST = b"Host: localhost\r\n"
SIZE = b"Content-Length: %d\r\n" % len(HIDDEN)


def request(line, *headers, body=HIDDEN, host=HOST):
    return line + b" HTTP/1.1\r\n" + host + b"".join(headers) + b"\r\n" + body


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


SHAPES = {
    # Bodies where none belongs.
    "GET": request(b"GET /health", SIZE), "HEAD": request(b"HEAD /health", SIZE), "OPTIONS": request(b"OPTIONS /v1/completions", SIZE),
    "DELETE": request(b"DELETE /slots/0", SIZE), "unknown method": request(b"FROB /health", SIZE), "TRACE": request(b"TRACE /", SIZE),
    "CONNECT": request(b"CONNECT localhost:80", SIZE), "PRI": request(b"PRI *", SIZE), "GET of nothing": request(b"GET /nowhere", SIZE),
    "lower case": request(b"post /tokenize", SIZE), "GET chunked": request(b"GET /health", b"Transfer-Encoding: chunked\r\n", body=chunk(HIDDEN)),
    # Bodies behind an early error.
    "long path": request(b"POST /tokenize?" + b"a" * 9000, SIZE), "long path of a Blob": request(
        b"POST /v1/completions?" + b"a" * 9000, b"Origin: https://evil.example\r\n", b"Content-Type: text/plain\r\n", SIZE),
    "long header": request(b"POST /tokenize", b"X-A: " + b"a" * 9000 + b"\r\n", SIZE),
    "many headers": request(b"POST /tokenize", *[b"X-%d: a\r\n" % i for i in range(300)], SIZE),
    "range of GET": request(b"GET /health", b"Range: bytes=x\r\n", SIZE),
    "foreign page": request(b"POST /tokenize", b"Origin: https://evil.example\r\n", SIZE),
    "other host": request(b"POST /tokenize", SIZE, host=b"Host: evil.example\r\n"),
    "compressed": request(b"POST /tokenize", b"Content-Encoding: gzip\r\n", SIZE),
    "too large": request(b"POST /tokenize", b"Content-Length: 99999999\r\n"), "no length": request(b"POST /tokenize"),
    "expectation": request(b"GET /health", b"Expect: 100-continue\r\n", SIZE),
    "other expectation": request(b"POST /tokenize", b"Expect: wonders\r\n", SIZE, host=b"Host: evil.example\r\n"),
    # Where the body ends is not clear.
    "two encodings": request(b"POST /tokenize", b"Content-Length: 4\r\n", b"Transfer-Encoding: chunked\r\n", body=b"0\r\n\r\n" + HIDDEN),
    "encoding first": request(b"POST /tokenize", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 4\r\n", body=b"0\r\n\r\n" + HIDDEN),
    "chunked": request(b"POST /tokenize", b"Transfer-Encoding: chunked\r\n", body=b"0\r\n\r\n" + HIDDEN),
    "chunks and rubbish": request(b"POST /tokenize", b"Transfer-Encoding: chunked\r\n", body=chunk(b"{}") + b"0;x=\r\nA: b\r\n\r\n" + HIDDEN),
    "other encoding": request(b"POST /tokenize", b"Transfer-Encoding: xchunked\r\n"),
    "identity": request(b"POST /tokenize", b"Transfer-Encoding: identity\r\n", SIZE),
    "encoding of 1.0": b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": request(b"POST /tokenize", b"Content-Length: 0\r\n", SIZE), "same twice": request(b"POST /tokenize", SIZE, SIZE),
    "list of lengths": request(b"POST /tokenize", b"Content-Length: 0, 0\r\n"), "signed": request(b"POST /tokenize", b"Content-Length: +0\r\n"),
    "negative": request(b"POST /tokenize", b"Content-Length: -1\r\n"), "hexadecimal": request(b"POST /tokenize", b"Content-Length: 0x0\r\n"),
    "empty length": request(b"POST /tokenize", b"Content-Length:\r\n"), "huge": request(b"POST /tokenize", b"Content-Length: 18446744073709551616\r\n"),
    "space before colon": request(b"POST /tokenize", b"Content-Length : 0\r\n"),
    "folded": request(b"POST /tokenize", b"X: a\r\n Content-Length: 0\r\n"), "folded first": request(b"GET /health", host=b" X: a\r\n" + HOST),
    "bare LF": request(b"GET /health", b"X: a\nContent-Length: 0\r\n", SIZE), "all LF": b"GET /health HTTP/1.1\nHost: localhost\n\n" + HIDDEN,
    "bare CR": request(b"POST /tokenize", b"X: a\rContent-Length: 0\r\n"), "NUL": request(b"POST /tokenize", b"X: a\0b\r\n", SIZE),
    "inner space": request(b"POST /tokenize", b"Content-Length: 0 0\r\n"), "vertical tab": request(b"POST /tokenize", b"Transfer-Encoding:\x0bchunked\r\n", SIZE),
    "form feed": request(b"POST /tokenize", b"Content-Length: \x0c0\r\n"), "folded encoding": request(b"POST /tokenize", b"Transfer-Encoding:\r\n chunked\r\n", SIZE),
    "list of encodings": request(b"POST /tokenize", b"Transfer-Encoding: identity, chunked\r\n", body=b"0\r\n\r\n" + HIDDEN),
    "quoted encoding": request(b"POST /tokenize", b'Transfer-Encoding: "chunked"\r\n', SIZE), "CR CR LF": request(b"POST /tokenize", b"X: a\r\r\n", SIZE),
    "underscore": request(b"POST /tokenize", b"Content_Length: 0\r\n"), "name with a tab": request(b"POST /tokenize", b"Content-Length\t: 0\r\n", SIZE),
    "no colon": request(b"POST /tokenize", b"Content-Length 0\r\n"), "no name": request(b"POST /tokenize", b": 0\r\n"),
    "no host": request(b"GET /health", SIZE, host=b""), "two hosts": request(b"GET /health", host=HOST + b"Host: evil.example\r\n"),
    "absolute": request(b"GET http://evil.example/health", SIZE), "two spaces": request(b"GET  /health", SIZE),
    "version 2": b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n" + HIDDEN, "no version": b"GET /health\r\n\r\n" + HIDDEN,
}


def whole(raw):
    """All that comes until the server closes; None: it does not."""
    text = b""
    raw.settimeout(8)  # more than it waits for another request
    with contextlib.suppress(ConnectionError):
        while piece := raw.recv(65536):
            text += piece
    return text


def statuses(text):
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3}) ", text)]


class Smuggling(WithServer):
    FLAGS = ("--max-body", "1")

    def test_nothing_hides_in_a_request(self):
        for name, data in SHAPES.items():
            for apart in (False, True):  # at once, and what is hidden by itself: a reader may drop what it has read ahead
                with self.subTest(name, apart=apart):
                    self.check_one_refusal(data, apart)
        self.assertEqual(self.server.metric("vllm:request_success_total"), 0)

    def check_one_refusal(self, data, apart):
        begun = time.monotonic()
        with contextlib.closing(self.server.raw()) as raw:
            split = data.index(HIDDEN) if apart else len(data)
            raw.sendall(data[:split])
            if apart:
                time.sleep(0.02)
                raw.sendall(data[split:])
            answer = whole(raw)
        self.assertEqual(len(statuses(answer)), 1, answer)
        self.assertIn(statuses(answer)[0] // 100, (4, 5), answer)
        self.assertRegex(answer, rb"(?i)\r\nconnection: close\r\n")
        self.assertRegex(answer, rb"(?i)\r\nx-request-id: req_[0-9a-f]{32}\r\n")
        self.assertLess(time.monotonic() - begun, 6)  # closed by the server, not after a time

    def test_what_is_read_is_the_body(self):
        # Well-formed requests that carry one as their body, and one that follows: two answers, and the hidden one is not run.
        for headers in ((SIZE,), (SIZE, b"Content-Type: application/x-www-form-urlencoded\r\n"), (SIZE, b"Content-Type: multipart/form-data; boundary=a\r\n"),
                        (SIZE, b"Range: bytes=0-1,9-1\r\n"), (SIZE, b"Expect: 100-continue\r\n")):
            two = request(b"POST /tokenize", *headers) + b"\r\n" + request(b"GET /health", b"Connection: close\r\n", body=b"")
            with contextlib.closing(self.server.raw(two)) as raw:
                self.assertEqual(statuses(whole(raw)), [400, 200], headers)
        self.assertEqual(self.server.metric("vllm:request_success_total"), 0)

    def test_connections_are_kept(self):
        connection = self.server.connect()
        for method, path, body in (("GET", "/health", None), ("POST", "/tokenize", '{"content": "x"}'), ("POST", "/nowhere", "{}"),
                                   ("GET", "/nowhere", None), ("HEAD", "/health", None), ("OPTIONS", "/", None), ("POST", "/tokenize", "{")):
            connection.request(method, path, body)
            ours = connection.sock.getsockname()
            connection.getresponse().read()
            self.assertEqual(connection.sock.getsockname(), ours)
        connection.close()

    def test_bodies_are_json_whatever_they_are_called(self):
        body = json.dumps({"content": "word = 1 & 2 " * 20000})
        for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "application/json"):
            self.assertEqual(self.server.request("POST", "/tokenize", body, {"Content-Type": kind})[0], 200, kind)

    def test_the_body_is_asked_for(self):
        data = b'{"content": "x"}'
        head = b"POST /tokenize HTTP/1.1\r\n%sExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        with contextlib.closing(self.server.raw(head % (HOST, len(data)))) as raw:
            self.assertEqual(statuses(read_until(raw, b"\r\n\r\n")), [100])
            raw.sendall(data)
            self.assertIn(b"200 OK", read_until(raw, b"tokens"))
        with contextlib.closing(self.server.raw(head % (b"Host: evil.example\r\n", len(data)))) as raw:
            self.assertEqual(statuses(whole(raw)), [403])  # and is not, where nobody reads it


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) << 10


class Bounds(WithServer):
    def test_endless_heads(self):
        before = resident(self.server)
        for begin, more, status in ((b"GET /", b"a" * 65536, 414), (b"GET / HTTP/1.1\r\nX: ", b"a" * 65536, 431),
                                    (b"GET / HTTP/1.1\r\n", b"X: abc\r\n" * 8192, 431), (b"GET / HTTP/1.1\r\n", (b"X: " + b"a" * 7000 + b"\r\n") * 10, 431)):
            with contextlib.closing(self.server.raw(begin)) as raw:
                sent = 0
                try:
                    for sent in range(4096):  # 256 MiB
                        raw.sendall(more)
                except OSError:
                    pass
                self.assertLess(sent, 2048, "it takes everything")
            with contextlib.closing(self.server.raw(begin + more)) as raw:
                self.assertEqual(statuses(whole(raw)), [status])
        self.assertLess(resident(self.server) - before, 32 << 20)

    def test_ranges_are_ignored(self):
        plain = self.server.request("GET", "/openapi.json")
        ranges = "bytes=" + ",".join(["0-"] * 2500)
        for value in (ranges, "bytes=0-9", "bytes=-1", "bytes=9-1", "x"):
            status, headers, answer = self.server.request("GET", "/openapi.json", None, {"Range": value})
            self.assertEqual((status, answer), (200, plain[2]), value[:20])


def threads(server):
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


class Crowds(unittest.TestCase):
    IDLE = 5000

    @classmethod
    def setUpClass(cls):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if hard < cls.IDLE + 600:
            cls.IDLE = hard - 600
            print(f"{cls.IDLE} idle connections instead of 5,000: {hard} files at most (ulimit -Hn)", file=sys.stderr)

    @staticmethod
    def is_open(raw):
        """Whether the server has said nothing and left the connection open."""
        raw.settimeout(0)
        try:
            raw.recv(1)
        except BlockingIOError:
            return True
        except ConnectionError:
            pass
        return False

    def test_thousands_of_connections(self):
        with Server("-q") as server, contextlib.ExitStack() as open_:
            before, few = resident(server), threads(server)
            idle = [open_.enter_context(server.raw()) for _ in range(self.IDLE)]
            slow = [open_.enter_context(server.raw(b"GET /health HTTP/1.1\r\nX: ")) for _ in range(200)]
            polite = [open_.enter_context(contextlib.closing(server.connect())) for _ in range(60)]
            for connection in polite:
                connection.request("GET", "/health")
                self.assertEqual(connection.getresponse().read(), b'{"status":"ok"}')
            times = sorted(self.health_beside(server, slow) for _ in range(50))
            left = [sum(map(self.is_open, raws)) for raws in (idle, slow)]
            took = ", ".join(f"{1000 * times[i]:.1f} ms ({i + 1}th of 50)" for i in (24, 46, 49))
            print(f"/health beside {left[0]} idle connections, {left[1]} that send byte by byte and {len(polite)} kept "
                  f"ones: {took}", file=sys.stderr)
            self.assertEqual(left, [self.IDLE, 200])
            self.assertLess(times[46], 0.1, times)
            self.assertLess(times[49], 1, times)  # other work may hold the machine up
            self.assertEqual(threads(server), few)
            self.assertLess(resident(server) - before, 64 << 20)
            server.text(prompt="Hi", max_tokens=2)

    def health_beside(self, server, slow):
        """How long /health takes while these connections go on with their requests, by a byte each."""
        for raw in slow:
            raw.send(b"a")
        return self.health(server)

    def test_streams_have_no_threads(self):
        ask = {"max_tokens": 40, "ignore_eos": True, "temperature": 0}
        with Server("-q", "--parallel", "200", "--queue", "400", "--sse-ping-interval", "1", context=120) as server, contextlib.ExitStack() as open_:
            few = threads(server)
            alone = [server.text(prompt=f"Hi {i}", **ask) for i in range(3)]
            streams = [open_.enter_context(server.open_stream({"prompt": f"Hi {i % 3}", **ask})) for i in range(500)]
            server.wait_for("all of them", lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") +
                            server.metric("vllm:request_success_total") >= 503)
            self.assertEqual(threads(server), few)
            self.assertLess(statistics.median(self.health(server) for _ in range(9)), 0.1)
            for i, stream in enumerate(streams):
                events = re.findall(rb"^data: (\{.*)$", read_until(stream, b"data: [DONE]"), re.MULTILINE)
                text = "".join(c["text"] for event in events for c in json.loads(event)["choices"])
                self.assertEqual(text, alone[i % 3])

    def test_who_does_not_read_is_given_up(self):
        body = json.dumps({"prompt": "Hi", "stream": True, "logprobs": 20, **LONG}).encode()
        with Server("-q", "--header-timeout", "2", "--parallel", "2", context=200000) as server:
            with contextlib.closing(socket.socket()) as lazy:
                lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                lazy.connect(("127.0.0.1", server.port))
                lazy.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                server.wait_running()
                self.assertTrue(server.text(prompt="Ho", max_tokens=3, ignore_eos=True))  # nobody waits for it
                server.wait_cancelled()
                server.wait_running(0)

    def health(self, server):
        begun = time.monotonic()
        self.assertEqual(server.request("GET", "/health")[0], 200)
        return time.monotonic() - begun

    def test_many_polite_clients(self):
        with Server("-q") as server, contextlib.ExitStack() as open_:
            for _ in range(200):
                open_.enter_context(server.raw())
            polite = [open_.enter_context(contextlib.closing(server.connect())) for _ in range(60)]
            for _ in range(2):
                for connection in polite:
                    connection.request("GET", "/health")
                    ours = connection.sock.getsockname()
                    self.assertEqual(connection.getresponse().read(), b'{"status":"ok"}')
                    self.assertEqual(connection.sock.getsockname(), ours)  # still the same connection
                times = [self.health(server) for _ in range(9)]
                self.assertLess(statistics.median(times), 0.1, times)
            self.assertEqual(self.requests_of(polite), 60)  # nobody was cut off for another one

    @staticmethod
    def requests_of(connections):
        return sum(connection.sock is not None for connection in connections)

    def test_idle_connections_make_room(self):
        with Server("-q", "--threads-http", "8", context=100000) as server, contextlib.ExitStack() as open_:
            stream = open_.enter_context(server.open_stream({"prompt": "Hi", **LONG}))
            self.assertIn(b"200 OK", stream.recv(4096))
            slow = [open_.enter_context(server.raw(data)) for data in (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nX: ") * 10]
            self.assertLess(self.health(server), 5)  # and not when they are late
            body = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
            slow += [open_.enter_context(server.raw(body)) for _ in range(10)]
            self.assertLess(self.health(server), 10)
            self.assertTrue(stream.recv(4096))  # an answer is never cut off
            server.wait_running()

    def test_idle_connections_end(self):
        body = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        sent = (body, b"GET /health HTTP/1.1\r\nHost:", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"")
        with Server("-q", "--header-timeout", "2") as server, contextlib.ExitStack() as open_:
            raws = [open_.enter_context(server.raw(data)) for data in sent]
            self.assertEqual([statuses(whole(raw)) for raw in raws], [[408], [408], [200], []])


class Names(unittest.TestCase):
    def asked(self, server, host, headers=None, path="/v1/models"):
        status, _, answer = server.request("GET", path, None, {"Host": host, **(headers or {})})
        if status != 200:
            self.assertEqual((status, answer["error"]["code"]), (403, "host_not_allowed"), host)
        return status == 200

    def test_pages_cannot_have_their_name_lead_here(self):
        with Server("-q", "--allowed-host", "models.example") as server:
            for host in ("localhost", f"localhost:{server.port}", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:99", "127.1.2.3", "[::1]", "[::1]:8080",
                         "models.example", "Models.Example:443"):
                self.assertTrue(self.asked(server, host), host)
            for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "[::2]", "",
                         "127.0.0.1:x", "[::1", "localhost:80:80", "localhost@evil.example", "evil.example/localhost", "x"):
                for path in ("/v1/models", "/health", "/"):
                    self.assertFalse(self.asked(server, host, path=path), host)
            page = {"Origin": "http://evil.example", "Host": "evil.example"}  # what a browser sends: to it that is one origin
            for method, path in (("POST", "/v1/completions"), ("OPTIONS", "/v1/completions"), ("GET", "/v1/models")):
                status, headers, answer = server.request(method, path, json.dumps({"prompt": "Hi"}) if method == "POST" else None, page)
                self.assertEqual((status, answer["error"]["code"]), (403, "host_not_allowed"))
                self.assertNotIn("Access-Control-Allow-Origin", headers)
            with contextlib.closing(server.raw(b"GET /health HTTP/1.0\r\n\r\n")) as raw:  # no browser does
                self.assertEqual(statuses(whole(raw)), [200])

    def test_keys_and_everybody(self):
        with Server("-q", "--api-key", "k") as server:
            self.assertTrue(self.asked(server, "any.example", {"Authorization": "Bearer k"}))
        with Server("-q", "--allowed-host", "*") as server:
            self.assertTrue(self.asked(server, "any.example"))

    def test_preflights_of_clients_in_browsers(self):
        asked = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-package-version,x-stainless-retry-count"
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
        with Server("-q", "--cors-origin", "https://good.example") as server:
            for origin, fine in (("https://good.example", True), ("http://localhost:3000", True), ("https://evil.example", False)):
                status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", None, {"Origin": origin, **preflight})
                self.assertEqual((status, "Access-Control-Allow-Origin" in headers), (204, fine))
                allowed = headers.get("Access-Control-Allow-Headers", "").lower()
                self.assertEqual([name for name in asked.split(",") if name not in allowed], [] if fine else asked.split(","))


class HalfClosed(unittest.TestCase):
    def ask(self, server, version=b"1.1", **fields):
        data = json.dumps({"prompt": "Hi", **fields}).encode()
        raw = server.raw(b"POST /v1/completions HTTP/%s\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (version, len(data), data))
        raw.shutdown(socket.SHUT_WR)
        return raw

    def test_answers_still_come(self):
        with Server("-q", "--parallel", "1", context=100000) as server:
            for stream, end in ((False, b'"usage"'), (True, b"data: [DONE]")):
                with contextlib.closing(self.ask(server, stream=stream, max_tokens=5)) as raw:
                    answer = whole(raw)
                    self.assertEqual((statuses(answer), end in answer), ([200], True), answer)
            running = server.open_stream({"prompt": "Ho", **LONG})
            server.wait_running()
            waiting = [self.ask(server, max_tokens=5), self.ask(server, b"1.0", max_tokens=5), self.ask(server, max_tokens=5, stream=True)]
            server.wait_waiting(3)
            gone = self.ask(server, max_tokens=5)
            server.wait_waiting(4)
            gone.close()  # its answer is never read
            server.wait_cancelled(1)
            first = read_until(waiting[0], b"\r\n\r\n")
            self.assertEqual(statuses(first), [100])  # a sign of life, which only a client that reads takes
            running.close()
            server.wait_cancelled(2)
            answers = [whole(raw) for raw in waiting]
            self.assertEqual([set(statuses(a)) - {100} for a in answers], [{200}] * 3, answers)
            self.assertEqual(statuses(answers[1]), [200])  # HTTP/1.0 has no other
            for raw in waiting:
                raw.close()

    def test_who_resets_has_left(self):
        with Server("-q", "--parallel", "1", context=100000) as server:
            for stream in (False, True):
                raw = self.ask(server, stream=stream, **LONG)
                server.wait_running()
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                raw.close()
                server.wait_cancelled(1 + stream)
                server.wait_running(0)


class Signals(unittest.TestCase):
    def test_running_answers_end_first(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Server("--parallel", "1", context=100000) as server:
                kept = server.connect()
                kept.request("GET", "/health")
                kept.getresponse().read()  # stays open, and holds nobody up
                stream = server.open_stream({"prompt": "Hi", "max_tokens": 2000, "ignore_eos": True})
                server.wait_running()
                queued = []
                thread = threading.Thread(target=lambda: queued.append(server.request("POST", "/v1/completions", {"prompt": "Ho", "max_tokens": 3})))
                thread.start()
                server.wait_waiting()
                server.process.send_signal(number)
                server.process.send_signal(number) if number == signal.SIGTERM else None  # to the group, too: still the first
                server.wait_for("refusals", lambda: self.refused(server))
                text = read_until(stream, b"[DONE]")
                thread.join()
                self.assertIn(b'"finish_reason":"length"', text)
                self.assertNotIn(b"shutting_down", text)
                self.assertIn(b"data: [DONE]", text)
                self.assertEqual(queued[0][0], 200)
                self.assertEqual(server.process.wait(PATIENCE), 0)
                stream.close()
                kept.close()

    @staticmethod
    def refused(server):
        try:
            server.raw().close()
        except ConnectionRefusedError:
            return True
        return False

    def test_the_second_one_ends_at_once(self):
        for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGINT)):
            with Server("-q", "--shutdown-timeout", str(PATIENCE * 2), context=100000) as server:
                stream = server.open_stream({"prompt": "Hi", **LONG})
                server.wait_running()
                server.process.send_signal(first)
                server.wait_for("refusals", lambda: self.refused(server))
                time.sleep(0.3)
                self.assertIsNone(server.process.poll())  # it waits for the answer
                server.process.send_signal(second)
                self.assertEqual(server.process.wait(PATIENCE), 128 + second)
                stream.close()

    def test_while_it_loads(self):
        pipe = os.path.join(FOLDER.name, "never")  # as long as nobody writes the template, nothing is loaded
        os.mkfifo(pipe)
        for number in (signal.SIGTERM, signal.SIGINT):
            with Server("--chat-template-file", pipe, wait=False) as server:
                self.assertEqual(server.request("GET", "/health")[0], 503)
                server.process.send_signal(number)
                self.assertEqual(server.process.wait(PATIENCE), 0)


if __name__ == "__main__":
    main()
