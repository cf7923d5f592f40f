#!/usr/bin/env python3
"""What one client of `specextend serve` can do to another: the gaps of a stream beside abuse, keys and their limits, what routers ask:
see server_harness.py."""
import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import threading
import time
import unittest

from server_harness import FOLDER, LONG, Server, WithServer, in_threads, main, read_until

SMALL = {"max_tokens": 3, "ignore_eos": True, "temperature": 0}


def deep(count):
    return '{"prompt": ' + "[" * count


SLOW_GRAMMAR = 'root ::= ([a-z ]{1,63} "."?){1,127}'
WIDE_SCHEMA = {"type": "object", "properties": {f"name {i}": {"type": "string", "pattern": "^[a-z]{1,60}$"} for i in range(1500)}}
NUMBERS = itertools.count()  # a grammar that was seen before is not compiled again


def alike(rules):
    """A grammar of rules that begin alike, long to compile, and another one each time."""
    names = [f"r{i}" for i in range(rules)]
    return "\n".join([f'root ::= "{next(NUMBERS)}"? any{{1,100000}}', "any ::= " + " | ".join(names), *(f'{n} ::= "a" [a-z ]' for n in names)])


def long_names():
    number = next(NUMBERS)
    return {"enum": [f"{i} of {number}, and some text" for i in range(1900)]}


SPACES = json.dumps({"prompt": " " * (15 << 20)}).encode()  # made before anything is measured
ABUSES = {
    "deep JSON": lambda server: server.request("POST", "/v1/completions", deep(100000)),
    "deep objects": lambda server: server.request("POST", "/v1/completions", '{"a":' * 100000),
    "spaces": lambda server: server.request("POST", "/v1/completions", SPACES),
    "blank body": lambda server: server.request("POST", "/tokenize", b" " * (15 << 20)),
    "slow grammar": lambda server: server.request("POST", "/completion", {"prompt": "Hi", "n_predict": 30, "grammar": SLOW_GRAMMAR}),
    "wide schema": lambda server: server.request("POST", "/completion", {"prompt": "Hi", "n_predict": 5, "json_schema": WIDE_SCHEMA}),
    "compiled grammar": lambda server: server.request("POST", "/completion", {"prompt": "Hi", "n_predict": 5, "grammar": alike(1890)}),
    "compiled schema": lambda server: server.request("POST", "/completion", {"prompt": "Hi", "n_predict": 5, "json_schema": long_names()}),
    "images": lambda server: server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (4 << 20)}}]}]}),
}


class Gaps(WithServer):
    FLAGS, CONTEXT = ("--parallel", "3", "--spec", "off"), 200000
    STATUSES = {"slow grammar": {200, 400}, "wide schema": {200, 400}, "compiled grammar": {200, 400}, "compiled schema": {200, 400}}

    @contextlib.contextmanager
    def watched(self, gaps):
        """Collects the times between pieces of a stream while its body runs."""
        stream = self.server.open_stream({"prompt": "Hi", **LONG})
        self.assertIn(b"200 OK", stream.recv(4096))
        ending = threading.Event()

        def watch():
            last = time.monotonic()
            while not ending.is_set():
                if not stream.recv(65536):
                    break
                now = time.monotonic()
                gaps.append(now - last)
                last = now

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            time.sleep(0.2)
            ending.set()
            watcher.join()
            stream.close()

    def test_a_stream_beside_abuse(self):
        quiet = []
        with self.watched(quiet):
            time.sleep(0.5)
        usual = statistics.median(quiet)
        for name, abuse in ABUSES.items():
            with self.subTest(name):
                gaps = []
                with self.watched(gaps):
                    for status, _, answer in in_threads(2, lambda _: abuse(self.server)):
                        self.assertIn(status, self.STATUSES.get(name, {400}), answer)
                # On a busy machine a thread may wait for a core: what must not happen is a stop of the worker.
                self.assertLess(max(gaps), max(3 * max(quiet), 3 * usual, 0.5), name)
                self.assertLess(sorted(gaps)[int(0.95 * len(gaps))], max(3 * usual, 0.05), name)

    def test_a_stream_beside_idle_and_half_open_clients(self):
        gaps = []
        with self.watched(gaps), contextlib.ExitStack() as open_:
            for i in range(500):
                open_.enter_context(self.server.raw((b"", b"GET /health HTTP/1.1\r\nX: ", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                                                     b"Content-Length: 9\r\n\r\n{")[i % 3]))
            time.sleep(0.3)
        self.assertLess(sorted(gaps)[int(0.95 * len(gaps))], 0.05)

    def test_path_tricks(self):
        for path in ("/../v1/models", "//v1/models", "/v1/models/..", "/%2e%2e/etc/passwd", "/v1%2fmodels%00", "/slots/../props", "/./health",
                     "/v1/models/%00", "/slots/-1", "/slots/99999999999999999999", "/v1/v1/models", "/HEALTH"):
            self.assertIn(self.server.request("GET", path)[0], (404, 405), path)
        self.assertEqual(self.server.request("GET", "/v1%2Fmodels")[0], 200)  # the same path, in other letters
        self.assertEqual(self.server.request("GET", "/models")[2]["object"], "list")
        self.assertEqual(self.server.request("POST", "/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})[0], 200)


class Keys(unittest.TestCase):
    @staticmethod
    def write(path, keys):
        with open(path + ".new", "w") as out:
            json.dump(keys, out)
        os.rename(path + ".new", path)

    @staticmethod
    def as_key(key):
        return {"Authorization": "Bearer " + key}

    def test_limits_and_reloading(self):
        path = os.path.join(FOLDER.name, "keys.json")
        self.write(path, [{"name": "boss", "key": "k0", "admin": True}, {"name": "poor", "key": "k1", "tokens_per_minute": 40}])
        with Server("--api-key-file", path, "--log-requests") as server:
            ask = {"prompt": "word " * 30, **SMALL}
            status = lambda key: server.request("POST", "/v1/completions", ask, self.as_key(key))
            self.assertEqual(status("k1")[0], 200)
            code, headers, answer = status("k1")
            self.assertEqual((code, answer["error"]["code"]), (429, "tokens_per_minute"))
            self.assertIn("'poor'", answer["error"]["message"])
            self.assertGreater(int(headers["Retry-After"]), 1)
            self.assertEqual(status("k0")[0], 200)
            self.assertEqual(status("k2")[0], 401)
            own, all_ = (server.request("GET", "/metrics", None, self.as_key(key))[2] for key in ("k1", "k0"))
            self.assertIn('api_key="poor"', own)
            self.assertNotIn("boss", own)
            self.assertNotIn("vllm:", own)
            self.assertIn('specextend_key_rejected_total{model_name="tiny",api_key="poor"} 1', all_)
            self.assertIn('api_key="boss"', all_)
            self.write(path, [{"name": "boss", "key": "k0", "admin": True}, {"name": "new", "key": "k2"}])
            server.wait_for("the new key", lambda: status("k2")[0] == 200)
            self.assertEqual(status("k1")[0], 401)
            with open(path, "w") as out:
                out.write('[{"name": "boss"')  # half a file changes nothing
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("a message", lambda: any("stay as they were" in line for line in server.lines))
            self.assertEqual([status(key)[0] for key in ("k0", "k1", "k2")], [200, 401, 200])
            lines = [json.loads(line) for line in server.lines if line.startswith("{")]
            self.assertTrue(any(line["key"] == "poor" and line["status"] == 429 for line in lines if "key" in line))
            self.assertNotIn("k2", "".join(server.lines))

    def test_a_burst_of_one_key(self):
        path = os.path.join(FOLDER.name, "two.json")
        self.write(path, [{"name": "a", "key": "ka"}, {"name": "b", "key": "kb"}, {"name": "ops", "key": "ko", "admin": True}])
        with Server("-q", "--api-key-file", path, "--parallel", "1", "--queue", "16", context=20000) as server:
            burst = [server.connect() for _ in range(40)]
            for connection in burst:
                body = json.dumps({"prompt": "Hi", "max_tokens": 400, "ignore_eos": True})
                connection.request("POST", "/v1/completions", body, self.as_key("ka"))
            metric = lambda: server.request("GET", "/metrics", None, self.as_key("ko"))[2]
            server.wait_for("the burst", lambda: float(re.search(r"num_requests_waiting\{.*\} (\d+)", metric()).group(1)) >= 6)
            begun = time.monotonic()
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "Ho", **SMALL}, self.as_key("kb"))[0], 200)
            waited = time.monotonic() - begun
            statuses = []
            for connection in burst:
                response = connection.getresponse()
                answer = json.loads(response.read())
                statuses.append(response.status)
                if response.status == 429:
                    self.assertEqual(answer["error"]["code"], "key_queue_full")
                    self.assertTrue(response.getheader("Retry-After"))
                connection.close()
            self.assertEqual(set(statuses), {200, 429})
            self.assertLess(waited, (time.monotonic() - begun) / 2)  # not behind the burst

    def test_one_request_of_many_choices(self):
        ask = {"prompt": ["Hi"] * 12, "n": 3, **SMALL}
        with Server("-q", "--api-key", "ka", "--api-key", "kb") as server:
            as_a = lambda body: server.request("POST", "/v1/completions", body, self.as_key("ka"))
            status, _, answer = as_a(ask)
            self.assertEqual((status, answer["error"]["param"]), (400, "n"))
            self.assertIn("18", answer["error"]["message"])
            status, _, answer = as_a({**ask, "prompt": ["Hi"] * 6})
            self.assertEqual((status, len(answer["choices"])), (200, 18))
        with Server("-q", "--api-key", "ka") as server:
            status, _, answer = server.request("POST", "/v1/completions", ask, self.as_key("ka"))
            self.assertEqual((status, len(answer["choices"])), (200, 36))

    def test_grammars_of_one_key_do_not_hold_up_anothers(self):
        with Server("-q", "--api-key", "ka", "--api-key", "kb") as server:
            statuses = []

            def ask():
                body = {"prompt": "Hi", "n_predict": 2, "json_schema": long_names()}  # long to compile, not to follow
                statuses.append(server.request("POST", "/completion", body, self.as_key("ka"))[0])

            burst = [threading.Thread(target=ask) for _ in range(120)]
            for thread in burst:
                thread.start()
            server.wait_for("the first", lambda: statuses)
            schema = {"prompt": "Ho", "n_predict": 2, "json_schema": {"type": "boolean"}}
            self.assertEqual(server.request("POST", "/completion", schema, self.as_key("kb"))[0], 200)
            before = len(statuses)
            for thread in burst:
                thread.join()
            self.assertLessEqual(set(statuses), {200, 429})
            self.assertLess(before, 60)  # not behind the burst

    def test_what_is_refused_is_not_compiled_first(self):
        path = os.path.join(FOLDER.name, "poor.json")
        self.write(path, [{"name": "poor", "key": "ka", "tokens_per_minute": 20}, {"name": "b", "key": "kb"}])
        with Server("-q", "--api-key-file", path) as server:
            wrong = {"prompt": "word " * 30, **SMALL, "grammar": "root ::= nothing"}
            ask = lambda body: server.request("POST", "/v1/completions", body, self.as_key("ka"))
            self.assertEqual(ask(wrong)[0], 400)
            self.assertEqual(ask({"prompt": "word " * 30, **SMALL})[0], 200)
            status, headers, answer = ask(wrong)
            self.assertEqual((status, answer["error"]["code"]), (429, "tokens_per_minute"))
            self.assertTrue(headers["Retry-After"])

    def test_lengths_of_others_are_not_told(self):
        path = os.path.join(FOLDER.name, "lengths.json")
        keys = [{"name": "a", "key": "ka"}, {"name": "b", "key": "kb"}]
        for admins in ([], [{"name": "ops", "key": "ko", "admin": True}]):
            self.write(path, keys + admins)
            with Server("-q", "--api-key-file", path, "--parallel", "2", context=200000) as server:
                get = lambda key, page: server.request("GET", page, None, self.as_key(key))[2]
                held = lambda key: get(key, "/v1/loads")["loads"][0]
                data = json.dumps({"prompt": "Hi", **LONG, "stream": True}).encode()
                stream = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\nContent-Length: %d\r\n\r\n"
                                    % len(data) + data)
                server.wait_for("its own tokens", lambda: held("ka")["num_total_tokens"] > 0)
                self.assertGreater(held("ka")["token_usage"], 0)
                self.assertEqual([held("kb")[name] for name in ("num_running_reqs", "num_total_tokens", "token_usage")], [1, 0, 0])
                for key in ("ka", "kb"):
                    self.assertFalse([name for name in get(key, "/server_info") if name.startswith("kv_") and name.endswith("_bytes")])
                    self.assertNotRegex(get(key, "/metrics"), r"vllm:|llamacpp:|kv_|ctx=")
                if admins:
                    self.assertGreater(held("ko")["num_total_tokens"], 0)
                    self.assertIn("kv_private_bytes", get("ko", "/server_info"))
                    self.assertIn("vllm:num_requests_running", get("ko", "/metrics"))
                stream.close()


class Fleet(unittest.TestCase):
    def test_what_routers_ask(self):
        with Server("-q", "--parallel", "3", "--log-requests", context=500) as server:
            info, loads = server.get("/server_info"), server.get("/v1/loads")["loads"]
            self.assertEqual((info["max_model_len"], info["max_running_requests"], info["max_total_num_tokens"]), (500, 3, 1500))
            self.assertEqual((loads[0]["num_running_reqs"], loads[0]["num_waiting_reqs"], loads[0]["max_total_num_tokens"]), (0, 0, 1500))
            self.assertIn('vllm:cache_config_info{model_name="tiny",block_size="1",num_gpu_blocks="1500"', server.get("/metrics"))
            for path in ("/health", "/health/live", "/health/ready"):
                self.assertEqual(server.get(path), {"status": "ok"})
            trace = "0af7651916cd43dd8448eb211c80319c"
            for traceparent in (f"00-{trace}-b7ad6b7169203331-01", "00-xyz-1-1", "", "\xff" * 60):
                server.post("/tokenize", {"content": "x"}, {"traceparent": traceparent, "x-request-id": "mine"})
            server.wait_for("lines", lambda: sum('"/tokenize"' in line for line in server.lines) == 4)
            lines = [json.loads(line) for line in server.lines if '"/tokenize"' in line]
            self.assertEqual([line.get("trace_id") for line in lines], [trace, None, None, None])
            self.assertEqual({(line["id"], line["method"], line["status"]) for line in lines}, {("mine", "POST", 200)})

    def test_alive_before_ready(self):
        pipe = os.path.join(FOLDER.name, "late")
        os.mkfifo(pipe)
        with Server("--chat-template-file", pipe, wait=False) as server:
            self.assertEqual(server.request("GET", "/health/live")[0], 200)
            self.assertEqual(server.request("GET", "/health/ready")[0], 503)
            with open(pipe, "w") as out:
                out.write("{{ messages[0].content }}")
            server.wait_for("loaded", lambda: server.request("GET", "/health/ready")[0] == 200)

    def test_draining(self):
        with Server("-q", "--drain-seconds", "1", context=200000) as server:
            stream = server.open_stream({"prompt": "Hi", **LONG})
            server.wait_running()
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            self.assertIn(b"shutting_down", read_until(stream, b"[DONE]"))
            self.assertEqual(server.process.wait(30), 0)
            self.assertGreater(time.monotonic() - begun, 0.9)
            stream.close()


if __name__ == "__main__":
    main()
