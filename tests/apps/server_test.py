#!/usr/bin/env python3
"""`specextend serve` as clients meet it. Arguments: the program, the maker of tiny models. Standard library only."""
import http.client
import json
import os
import signal
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
PATIENCE = 60  # seconds for anything
LONG = {"max_tokens": -1, "ignore_eos": True}  # runs far longer than any check here takes


class Server:
    def __init__(self, *flags, context=2000):
        command = [PROGRAM, "serve", "-m", MODEL, "--port", "0", "-c", str(context), *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("listening on "):
                self.port = int(line.rsplit(":", 1)[1])
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
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

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

    def post(self, path, body, headers=None):
        status, _, answer = self.request("POST", path, body, headers)
        assert status == 200, (status, answer)
        return answer

    def complete(self, **fields):
        return self.post("/v1/completions", fields)

    def text(self, **fields):
        return self.complete(**fields)["choices"][0]["text"]

    def stream(self, path, body):
        """All events of a stream, without [DONE], which must be the last."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200 and headers["Content-Type"] == "text/event-stream", (status, headers, text)
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        assert text.endswith("\n\n") and all(e.startswith("data: ") for e in events), text
        assert events[-1] == "data: [DONE]", events[-1]
        return [json.loads(e[6:]) for e in events[:-1]]

    def open_stream(self, body, path="/v1/completions"):
        """A raw connection on which a stream has begun."""
        data = json.dumps({**body, "stream": True}).encode()
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        raw.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        return raw

    def metric(self, name):
        text = self.request("GET", "/metrics")[2]
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
            time.sleep(0.02)


def joined(events, chat):
    pieces = [c["delta"].get("content", "") if chat else c["text"] for e in events for c in e["choices"]]
    return "".join(pieces)


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--spec", "suffix", "-a", "tiny", "--parallel", "3", "-q")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_health_models_props(self):
        self.assertEqual(self.server.request("GET", "/health")[::2], (200, {"status": "ok"}))
        models = self.server.request("GET", "/v1/models")[2]
        self.assertEqual((models["object"], [m["id"] for m in models["data"]]), ("list", ["tiny"]))
        self.assertEqual(self.server.request("GET", "/v1/models/tiny")[2]["id"], "tiny")
        self.assertEqual(self.server.request("GET", "/v1/models/other")[0], 404)
        props = self.server.request("GET", "/props")[2]
        self.assertEqual((props["total_slots"], props["default_generation_settings"]["n_ctx"]), (3, 2000))
        self.assertEqual(props["speculation"]["preset"], "suffix")

    def test_tokens_and_template(self):
        text = "Hello, Wörld 你好"
        tokens = self.server.post("/tokenize", {"content": text})["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens})["content"], text)
        prompt = self.server.post("/apply-template", {"messages": [{"role": "user", "content": "Tea?"}]})["prompt"]
        self.assertIn("Tea?", prompt)
        by_text = self.server.text(prompt=self.server.post("/detokenize", {"tokens": tokens})["content"], temperature=0)
        tokens = self.server.post("/tokenize", {"content": text, "add_special": True})["tokens"]
        self.assertEqual(self.server.text(prompt=tokens, temperature=0), by_text)

    def test_completion_whole_and_streamed(self):
        for body in ({"prompt": "Once upon", "temperature": 0}, {"prompt": "A fox, a dog, a fox,", "seed": 3}):
            body = {**body, "max_tokens": 40, "ignore_eos": True}
            whole = self.server.complete(**body)
            choice = whole["choices"][0]
            self.assertEqual((whole["object"], choice["finish_reason"]), ("text_completion", "length"))
            self.assertNotEqual(choice["text"], "")
            usage = whole["usage"]
            self.assertEqual(usage["completion_tokens"], 40)
            self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 40)
            events = self.server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
            self.assertEqual(joined(events, False), choice["text"])
            self.assertEqual({e["id"] for e in events}, {events[0]["id"]})
            self.assertEqual(events[-2]["choices"][0]["finish_reason"], "length")
            self.assertEqual(events[-1]["choices"], [])
            self.assertEqual(events[-1]["usage"]["completion_tokens"], 40)
            for numbers in (whole, events[-1]):
                block = numbers["metrics"]["speculative_decoding"]
                self.assertEqual(len(block["acceptance_histogram"]), block["num_spec_tokens"] + 1)
            self.assertTrue(all("usage" not in e for e in self.server.stream("/v1/completions", body)))

    def test_chat_whole_and_streamed(self):
        body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tea?"}],
                "max_completion_tokens": 30, "seed": 5, "ignore_eos": True}
        whole = self.server.post("/v1/chat/completions", body)
        message = whole["choices"][0]["message"]
        self.assertEqual((whole["object"], message["role"]), ("chat.completion", "assistant"))
        events = self.server.stream("/v1/chat/completions", body)
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(events[-1]["choices"][0]["delta"], {})
        self.assertEqual(joined(events, True), message["content"])
        self.assertNotEqual(message["content"], "")
        prompt = self.server.post("/apply-template", {"messages": body["messages"]})["prompt"]
        tokens = self.server.post("/tokenize", {"content": prompt})["tokens"]
        self.assertEqual(self.server.text(prompt=tokens, max_tokens=30, seed=5, ignore_eos=True), message["content"])

    def test_seeds(self):
        ask = {"prompt": "Dice", "max_tokens": 40, "ignore_eos": True}
        self.assertEqual(self.server.text(**ask, seed=1), self.server.text(**ask, seed=1))
        self.assertNotEqual(self.server.text(**ask, seed=1), self.server.text(**ask, seed=2))
        self.assertNotEqual(self.server.text(**ask), self.server.text(**ask))  # no seed: other dice each time

    def test_speculation_per_request(self):
        ask = {"prompt": "one two one two one two one two", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
        on, off = self.server.complete(**ask, speculate=True), self.server.complete(**ask, speculate=False)
        self.assertEqual(on["choices"], off["choices"])
        self.assertEqual(off["metrics"]["speculative_decoding"]["num_draft_tokens"], 0)
        self.assertGreater(on["metrics"]["speculative_decoding"]["num_draft_tokens"], 0)
        self.assertGreater(self.server.metric("vllm:spec_decode_num_drafts_total"), 0)

    def test_options_reach_the_engine(self):
        ask = {"prompt": "Once upon", "max_tokens": 30, "ignore_eos": True, "temperature": 0}
        plain = self.server.text(**ask)
        stop = plain[len(plain) // 2:][:3]
        stopped = self.server.complete(**ask, stop=stop)["choices"][0]
        self.assertEqual((stopped["text"], stopped["finish_reason"]), (plain[:plain.index(stop)], "stop"))
        self.assertEqual(joined(self.server.stream("/v1/completions", {**ask, "stop": ["no such", stop]}), False), stopped["text"])
        self.assertNotEqual(self.server.text(**ask, frequency_penalty=2, presence_penalty=2), plain)
        self.assertNotEqual(self.server.text(**ask, repeat_penalty=5), plain)
        first = self.server.post("/tokenize", {"content": "x"})["tokens"][0]
        self.assertEqual(self.server.text(**{**ask, "max_tokens": 3}, logit_bias={str(first): 100}), "xxx")
        self.assertEqual(self.server.text(**{**ask, "temperature": 2}, top_k=1), plain)
        self.assertEqual(self.server.text(**{**ask, "temperature": 2}, top_p=0), plain)
        self.assertEqual(self.server.text(**{**ask, "temperature": 2}, min_p=1), plain)

    def test_parallel_requests_equal_single_ones(self):
        asks = [{"prompt": f"Story {i}: " + "and then " * (i % 7), "max_tokens": 20 + 5 * (i % 5), "seed": i, "ignore_eos": True,
                 "temperature": i % 3 / 2, "speculate": i % 4 != 1} for i in range(18)]
        single = [self.server.text(**ask) for ask in asks]
        self.assertGreater(len(set(single)), 10)
        texts = [None] * len(asks)

        def run(i):
            if i % 2:
                texts[i] = joined(self.server.stream("/v1/completions", asks[i]), False)
            else:
                texts[i] = self.server.text(**asks[i])

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(asks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(texts, single)

    def test_prefixes_are_reused(self):
        ask = {"prompt": "A long beginning. " * 20, "max_tokens": 2, "temperature": 0}
        first = self.server.complete(**ask)
        again = self.server.complete(**ask)
        self.assertEqual(again["choices"], first["choices"])
        self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], again["usage"]["prompt_tokens"] - 1)

    def test_connection_is_kept(self):
        connection = self.server.connect()
        for _ in range(3):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "max_tokens": 2}))
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            response.read()
        connection.close()


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("-q", "--max-body", "1", "-n", "100", context=300)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def refused(self, status, method, path, body=None, headers=None, param=None, code=None):
        got, headers, answer = self.server.request(method, path, body, headers)
        self.assertEqual(got, status, (method, path, str(body)[:80], answer))
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertTrue(error["message"] and error["type"])
        self.assertEqual((error["param"], error["code"]), (param, code))
        return headers

    def test_bad_requests(self):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template"):
            for body in ("", "{", "[]", "null", "\"x\"", b"\xff\xfe", "[" * 5000, "{\"prompt\": \"a\"} x"):
                self.refused(400, "POST", path, body)
        ask = {"prompt": "Hi"}
        for field, value in (("temperature", 3), ("temperature", "hot"), ("max_tokens", 1.5), ("max_tokens", 101), ("n", 2),
                             ("stop", [1]), ("stop", ["x"] * 17), ("stop", "x" * 2000), ("logit_bias", {"a": 1}),
                             ("logit_bias", {str(i): 1 for i in range(2000)}), ("logit_bias", {"99999999": 1}), ("top_p", -1),
                             ("echo", True), ("logprobs", 2), ("stream", "yes"), ("prompt", None), ("prompt", [-1]),
                             ("prompt", ["a", "b"]), ("response_format", {"type": "json_object"}), ("speculate", 1)):
            self.refused(400, "POST", "/v1/completions", {**ask, field: value}, param=field)
        self.refused(400, "POST", "/v1/chat/completions", {"messages": []}, param="messages")
        self.refused(400, "POST", "/v1/chat/completions", {"messages": [{"role": "user"}]}, param="messages")
        self.refused(400, "POST", "/detokenize", {"tokens": [10 ** 9]}, param="tokens")
        self.refused(400, "POST", "/tokenize", {"content": 5}, param="content")

    def test_context_overflow(self):
        long = "word " * 2000
        self.refused(400, "POST", "/v1/completions", {"prompt": long}, param="prompt", code="context_length_exceeded")
        self.refused(400, "POST", "/v1/completions", {"prompt": [1] * 300}, param="prompt", code="context_length_exceeded")
        chat = {"messages": [{"role": "user", "content": long}], "stream": True}
        self.refused(400, "POST", "/v1/chat/completions", chat, param="messages", code="context_length_exceeded")
        full = self.server.complete(prompt=[1] * 290, max_tokens=100, ignore_eos=True)
        self.assertEqual(full["choices"][0]["finish_reason"], "length")
        self.assertLessEqual(full["usage"]["total_tokens"], 301)
        self.assertEqual(self.server.complete(prompt=[1] * 299, max_tokens=100, ignore_eos=True)["choices"][0]["finish_reason"], "length")

    def test_paths_methods_bodies(self):
        self.refused(404, "GET", "/nowhere")
        self.refused(404, "POST", "/v1/embeddings", {"input": "x"})
        self.assertEqual(self.refused(405, "GET", "/v1/completions")["Allow"], "POST")
        self.assertEqual(self.refused(405, "POST", "/health", {})["Allow"], "GET")
        self.refused(413, "POST", "/v1/completions", {"prompt": "x" * (1 << 20)})
        self.refused(415, "POST", "/v1/completions", b"\x1f\x8b", {"Content-Encoding": "gzip"})
        raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE)
        raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
        answer = b""
        while piece := raw.recv(4096):  # until the server closes: nothing after the refusal is read as a request
            answer += piece
        raw.close()
        self.assertTrue(answer.startswith(b"HTTP/1.1 411"), answer)
        self.assertEqual(answer.count(b"HTTP/1.1"), 1)

    def test_noise(self):
        for noise in (b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"A" * 20000 + b"\r\n\r\n",
                      b"POST /tokenize HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}",
                      b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
                      b"POST /tokenize HTTP/1.1\r\nContent-Length: 50\r\n\r\n{}"):
            raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE)
            raw.sendall(noise)
            raw.close()
        self.assertEqual(self.server.request("GET", "/health")[0], 200)


class Queue(unittest.TestCase):
    def test_full_queue_and_clients_that_leave(self):
        with Server("-q", "--parallel", "1", "--queue", "1", context=100000) as server:
            plain = None
            for round_ in range(2):
                first = server.open_stream({"prompt": "Hi", **LONG})
                self.assertIn(b"200 OK", first.recv(4096))
                server.wait_for("running", lambda: server.metric("vllm:num_requests_running") == 1)
                second = server.open_stream({"prompt": "Ho", **LONG})
                server.wait_for("waiting", lambda: server.metric("vllm:num_requests_waiting") == 1)
                status, headers, answer = server.request("POST", "/v1/completions", {"prompt": "Hu"})
                self.assertEqual((status, answer["error"]["code"]), (429, "queue_full"))
                self.assertGreaterEqual(int(headers["Retry-After"]), 1)
                first.close()   # frees the session for the second
                server.wait_for("cancelled", lambda: server.metric("specextend_requests_cancelled_total") == 2 * round_ + 1)
                server.wait_for("second runs", lambda: server.metric("vllm:num_requests_waiting") == 0)
                second.close()  # and this one for the next
                text = server.text(prompt="Hu", temperature=0, max_tokens=12, ignore_eos=True)
                plain = plain or text
                self.assertEqual(text, plain)
                server.wait_for("both cancelled", lambda: server.metric("specextend_requests_cancelled_total") == 2 * round_ + 2)

    def test_client_of_a_whole_answer_leaves(self):
        with Server("-q", "--parallel", "1", context=100000) as server:
            data = json.dumps({"prompt": "Hi", **LONG}).encode()
            raw = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            server.wait_for("running", lambda: server.metric("vllm:num_requests_running") == 1)
            raw.close()
            server.wait_for("cancelled", lambda: server.metric("specextend_requests_cancelled_total") == 1)
            server.text(prompt="Hu", max_tokens=2)

    def test_client_leaves_during_the_prompt(self):
        # The prompt takes long in chunks of few tokens; it must be given up before its end.
        with Server("-q", "--parallel", "1", "-b", "1", context=60000) as server:
            raw = server.open_stream({"prompt": [5] * 50000, "max_tokens": 1})
            server.wait_for("running", lambda: server.metric("vllm:num_requests_running") == 1)
            raw.close()
            server.wait_for("cancelled", lambda: server.metric("specextend_requests_cancelled_total") == 1)
            self.assertEqual(server.metric("specextend_requests_finished_total"), 0)


class Keys(unittest.TestCase):
    def test_deny_by_default(self):
        with Server("-q", "--api-key", "first", "--api-key", "second") as server:
            self.assertEqual(server.request("GET", "/health")[0], 200)
            paths = [("GET", p) for p in ("/v1/models", "/props", "/metrics", "/nowhere", "/", "/v1/completions", "/v1/models/x")]
            paths += [("POST", p) for p in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template",
                                            "/nowhere", "/props")]
            for method, path in paths:
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer firs"}, {"Authorization": "first"},
                                {"X-Api-Key": "firstfirst"}, {"Authorization": "Bearer "}):
                    status, _, answer = server.request(method, path, {} if method == "POST" else None, headers)
                    self.assertEqual((status, answer["error"]["code"]), (401, "invalid_api_key"), (method, path, headers))
            for headers in ({"Authorization": "Bearer first"}, {"Authorization": "Bearer second"}, {"X-Api-Key": "second"}):
                self.assertEqual(server.request("GET", "/v1/models", None, headers)[0], 200)
                self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 1}, headers)[0], 200)


class Endings(unittest.TestCase):
    def test_signals_end_what_runs(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Server("-q", "--parallel", "1", context=100000) as server:
                running = server.open_stream({"prompt": "Hi", **LONG})
                server.wait_for("running", lambda: server.metric("vllm:num_requests_running") == 1)
                waiting = []
                thread = threading.Thread(target=lambda: waiting.append(server.request("POST", "/v1/completions", {"prompt": "Ho"})))
                thread.start()
                server.wait_for("waiting", lambda: server.metric("vllm:num_requests_waiting") == 1)
                server.process.send_signal(number)
                self.assertEqual(server.process.wait(PATIENCE), 0)
                thread.join()
                self.assertEqual((waiting[0][0], waiting[0][2]["error"]["type"]), (503, "unavailable_error"))
                text = b""
                while piece := running.recv(65536):
                    text += piece
                running.close()
                self.assertIn(b"shutting_down", text)
                self.assertIn(b"data: [DONE]", text)

    def test_flags_are_checked(self):
        for flags, words in ((["--port", "70000"], "port"), (["--parallel", "0"], "parallel"), (["--api-key", ""], "key"),
                             (["--host", "203.0.113.1"], "203.0.113.1"), (["--spec", "nonsense"], "nonsense")):
            done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "-c", "100", "-q", *flags], capture_output=True, text=True,
                                  timeout=PATIENCE)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertIn(words, done.stderr + done.stdout)

    def test_help(self):
        done = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0)
        for flag in ("--host", "--port", "--api-key", "--parallel", "--queue", "--max-body", "--predict", "--alias", "--spec", "-m"):
            self.assertIn(flag, done.stdout)

    def test_port_in_use(self):
        with Server("-q") as server:
            done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "-c", "100", "-q", "--port", str(server.port)], capture_output=True,
                                  text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(str(server.port), done.stderr)


if __name__ == "__main__":
    subprocess.run([MAKE_TINY, MODEL], check=True)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
