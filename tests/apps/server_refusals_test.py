#!/usr/bin/env python3
"""What `specextend serve` refuses, and whom: see server_harness.py."""
import contextlib
import copy
import json
import os
import socket
import ssl
import subprocess
import unittest

from server_harness import FOLDER, MAKE_TINY, MODEL, PATIENCE, PROGRAM, Server, WithServer, main, read_until


class Refusals(WithServer):
    FLAGS = ("--max-body", "1", "-n", "100", "--queue", "64")
    CONTEXT = 300

    def refused(self, status, method, path, body=None, headers=None, param=None, code=None):
        got, headers, answer = self.server.request(method, path, body, headers)
        self.assertEqual(got, status, (method, path, str(body)[:80], answer))
        error = answer["error"]
        fields = {"message", "type", "param", "code", "request_id"}
        if code == "context_length_exceeded":
            fields |= {"n_ctx"} | {"n_prompt_tokens"} & set(error)  # not known of a text that is refused by its characters
        self.assertEqual(set(error), fields)
        self.assertTrue(error["message"] and error["type"])
        self.assertEqual((error["param"], error["code"]), (param, code))
        return headers

    def test_bad_requests(self):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template"):
            for body in ("", "{", "[]", "null", "\"x\"", b"\xff\xfe", "[" * 5000, "{\"prompt\": \"a\"} x"):
                self.refused(400, "POST", path, body)
        ask = {"prompt": "Hi"}
        for field, value in (("temperature", 3), ("temperature", "hot"), ("max_tokens", 1.5), ("max_tokens", 101), ("n", 0), ("n", 10 ** 6),
                             ("n", -1), ("stop", [1]), ("stop", ["x"] * 17), ("stop", "x" * 2000), ("logit_bias", {"a": 1}),
                             ("logit_bias", {str(i): 1 for i in range(2000)}), ("logit_bias", {"99999999": 1}), ("top_p", -1),
                             ("echo", "yes"), ("logprobs", 10 ** 6), ("stream", "yes"), ("prompt", None), ("prompt", [-1]), ("prompt", []),
                             ("prompt", ["a"] * 1000), ("response_format", {"type": "xml"}), ("response_format", {"type": "json_schema"}),
                             ("grammar", 5), ("spec_preset", "tea"), ("spec_nodes", -5), ("speculate", 1)):
            self.refused(400, "POST", "/v1/completions", {**ask, field: value}, param=field)
        self.refused(400, "POST", "/v1/chat/completions", {"messages": []}, param="messages")
        self.refused(400, "POST", "/v1/chat/completions", {"messages": [{"role": "user"}]}, param="messages")
        self.refused(400, "POST", "/detokenize", {"tokens": [10 ** 9]}, param="tokens")
        self.refused(400, "POST", "/tokenize", {"content": 5}, param="content")
        for name, value in (("grammar", "root ::= ("), ("structured_outputs", {"grammar": "root ::= a"}), ("guided_regex", "a{3,1}"),
                            ("structured_outputs", {"regex": "a{100001}"}), ("response_format", {"type": "json_schema", "json_schema": {
                                "schema": {"type": "string", "pattern": "a{,5}"}}})):
            self.refused(400, "POST", "/v1/completions", {**ask, name: value}, param=name)
        scores = {"prompt": [[1] * 290] * 3, "max_tokens": 1, "n": 16, "prompt_logprobs": 20}  # 292,320
        self.refused(400, "POST", "/v1/completions", scores, param="prompt_logprobs")
        self.refused(400, "POST", "/v1/completions", {**scores, "prompt_logprobs": None, "logprobs": 20, "echo": True}, param="logprobs")

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
        self.refused(404, "POST", "/v1/nothing", {"input": "x"})
        for path in ("/v1/embeddings", "/v1/rerank"):
            self.refused(501, "POST", path, {"input": "x"}, code="not_supported")
        self.assertEqual(self.refused(405, "GET", "/v1/completions")["Allow"], "POST")
        self.assertEqual(self.refused(405, "POST", "/health", {})["Allow"], "GET")
        self.refused(413, "POST", "/v1/completions", {"prompt": "x" * (1 << 20)})
        self.refused(415, "POST", "/v1/completions", b"\x1f\x8b", {"Content-Encoding": "gzip"})
        raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE)
        raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
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


class Keys(unittest.TestCase):
    PATHS = ([("GET", p) for p in ("/v1/models", "/v1/models/x", "/props", "/slots", "/metrics", "/openapi.json", "/nowhere",
                                   "/v1/completions")] +
             [("POST", p) for p in ("/v1/completions", "/v1/chat/completions", "/completion", "/tokenize", "/detokenize", "/apply-template",
                                    "/slots/0?action=erase", "/nowhere", "/props", "/health", "/")] +
             [("PUT", "/v1/completions"), ("DELETE", "/slots/0"), ("PATCH", "/props")])

    def check(self, server, good, bad):
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertEqual(server.request("GET", "/v1/health")[0], 200)
        for method, path in self.PATHS:
            for headers in bad:
                status, given, answer = server.request(method, path, "{}" if method != "GET" else None, headers)
                self.assertEqual((status, answer["error"]["code"]), (401, "invalid_api_key"), (method, path, headers))
                self.assertEqual(given["WWW-Authenticate"], "Bearer")
        for headers in good:
            self.assertEqual(server.request("GET", "/v1/models", None, headers)[0], 200)
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 1}, headers)[0], 200)

    def test_deny_by_default(self):
        listed = os.path.join(FOLDER.name, "keys")
        with open(listed, "w") as out:
            out.write("# two of them\nthird\n\nfourth\r\n")
        with Server("-q", "--api-key", "first", "--api-key", "second", "--api-key-file", listed, "--slot-save-path", FOLDER.name) as server:
            bearer = [{"Authorization": f"Bearer {key}"} for key in ("first", "second", "third", "fourth")]
            self.check(server, bearer + [{"X-Api-Key": "second"}],
                       [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer firs"}, {"Authorization": "first"},
                        {"X-Api-Key": "firstfirst"}, {"Authorization": "Bearer "}, {"Authorization": "Bearer # two of them"}])

    def test_from_the_environment(self):
        with Server("-q", environment={"SPECEXTEND_API_KEY": "secret"}) as server:
            self.check(server, [{"Authorization": "Bearer secret"}], [{}, {"Authorization": "Bearer x"}])
        for environment, flags in (({"SPECEXTEND_API_KEY": ""}, []), ({}, ["--api-key-file", "/dev/null"]),
                                   ({}, ["--api-key-file", "/no/file"])):
            done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--port", "0", *flags], capture_output=True, text=True, timeout=PATIENCE,
                                  env={**os.environ, **environment})
            self.assertEqual(done.returncode, 1)
            self.assertIn("key", done.stderr)

    def test_bodies_of_strangers_are_not_read(self):
        with Server("-q", "--api-key", "first") as server:
            raw = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n")
            answer = read_until(raw, b"never")
            raw.close()
            self.assertEqual((answer.count(b"HTTP/1.1"), answer[:12]), (1, b"HTTP/1.1 401"))


class Pages(unittest.TestCase):
    """Pages in browsers: CORS."""

    def test_origins(self):
        with Server("-q", "--cors-origin", "https://good.example", "--api-key", "k") as server:
            mine = f"http://127.0.0.1:{server.port}"
            key = {"Authorization": "Bearer k"}
            for origin in ("http://localhost", "http://localhost:3000", "https://127.0.0.1:8", "http://[::1]:99", "https://good.example",
                           mine):
                status, headers, _ = server.request("OPTIONS", "/v1/completions", None, {"Origin": origin})
                self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, origin))
                self.assertIn("Authorization", headers["Access-Control-Allow-Headers"])
                status, headers, _ = server.request("POST", "/tokenize", {"content": "x"}, {"Origin": origin, **key})
                self.assertEqual((status, headers["Access-Control-Allow-Origin"], headers["Vary"]), (200, origin, "Origin"))
            for origin in ("https://evil.example", "http://localhost.evil.example", "http://localhost:80.evil.example", "null",
                           "https://good.example.evil", "http://good.example", "http://127.0.0.1.evil"):
                status, headers, _ = server.request("OPTIONS", "/v1/completions", None, {"Origin": origin})
                self.assertNotIn("Access-Control-Allow-Origin", headers)
                status, headers, answer = server.request("POST", "/tokenize", {"content": "x"}, {"Origin": origin, **key})
                self.assertEqual((status, answer["error"]["code"]), (403, "origin_not_allowed"), origin)
                self.assertNotIn("Access-Control-Allow-Origin", headers)
                self.assertNotIn("Access-Control-Allow-Origin", server.request("GET", "/health", None, {"Origin": origin})[1])

    def test_everybody(self):
        with Server("-q", "--cors-origin", "*") as server:
            status, headers, _ = server.request("POST", "/tokenize", {"content": "x"}, {"Origin": "https://any.example"})
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "https://any.example"))

    def test_the_page(self):
        with Server("-q", "--api-key", "k") as server:
            status, headers, text = server.request("GET", "/")
            if status == 200:  # built in
                self.assertIn("frame-ancestors 'none'", headers["Content-Security-Policy"])
                self.assertIn("<html", text)
            else:
                self.assertEqual(status, 401)
        with Server("-q", "--no-webui") as server:
            self.assertEqual(server.request("GET", "/")[0], 404)


class Slow(unittest.TestCase):
    def test_slow_senders_are_cut_off(self):
        with Server("-q", "--header-timeout", "1", "--threads-http", "3") as server:
            whole = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
            for begin, drip in ((b"", b"a"), (b"GET /health HTTP/1.1\r\n", b"X-A: b\r\n"), (whole, b" ")):
                raw = server.raw(begin)
                raw.settimeout(0.1)
                for _ in range(10 * PATIENCE):  # a byte now and then, for ever
                    try:
                        raw.sendall(drip)
                        if raw.recv(4096) == b"":
                            break
                    except socket.timeout:
                        continue
                    except OSError:
                        break
                else:
                    self.fail("it may still send")
                raw.close()
                self.assertEqual(server.request("GET", "/health")[0], 200)

    def test_more_connections_than_threads(self):
        with Server("-q", "--header-timeout", "1", "--threads-http", "2") as server:
            with contextlib.ExitStack() as idle:
                for _ in range(6):
                    idle.enter_context(server.raw())
                self.assertEqual(server.request("GET", "/health")[0], 200)  # when those have been cut off

    def test_long_answers_are_not_cut_off(self):
        with Server("-q", "--header-timeout", "1", "--parallel", "1", context=100000) as server:
            first = server.open_stream({"prompt": "Hi", "max_tokens": -1, "ignore_eos": True})
            server.wait_running()
            second = server.open_stream({"prompt": "Ho", "max_tokens": 1})
            server.wait_waiting()
            raw = server.raw(b"GET /health HTTP/1.1\r\n")
            read_until(raw, b"never")  # by now a slow sender is cut off, the others are not
            raw.close()
            first.settimeout(PATIENCE)
            self.assertTrue(first.recv(1000))
            first.close()
            self.assertIn(b"[DONE]", read_until(second, b"[DONE]"))
            second.close()


class Loading(unittest.TestCase):
    def test_it_listens_before_the_model_is_there(self):
        # The template is read before the model: as long as nobody writes it, nothing is loaded.
        pipe = os.path.join(FOLDER.name, "template")
        os.mkfifo(pipe)
        with Server("--chat-template-file", pipe, "--api-key", "k", wait=False) as server:
            status, headers, answer = server.request("GET", "/health")
            self.assertEqual((status, answer["error"]["message"]), (503, "Loading model"))
            self.assertIn("progress", answer)
            self.assertEqual(server.request("GET", "/v1/models")[0], 401)
            key = {"Authorization": "Bearer k"}
            for method, path, body in (("GET", "/v1/models", None), ("GET", "/props", None), ("POST", "/v1/completions", {"prompt": "Hi"})):
                status, headers, answer = server.request(method, path, body, key)
                self.assertEqual((status, answer["error"]["type"]), (503, "unavailable_error"))
                self.assertIn("Retry-After", headers)
            with open(pipe, "w") as out:
                out.write("{% for m in messages %}<{{ m.content }}>{% endfor %}")
            server.wait_for("loaded", lambda: server.request("GET", "/health")[0] == 200)
            self.assertEqual(server.post("/apply-template", {"messages": [{"role": "user", "content": "Tea"}]}, key)["prompt"], "<Tea>")

    def test_a_model_that_cannot_be_loaded(self):
        done = subprocess.run([PROGRAM, "serve", "-m", "/no/such.gguf", "--port", "0"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such.gguf", done.stderr)


    def test_logits_that_are_no_numbers_fail_their_request_only(self):
        huge = os.path.join(FOLDER.name, "huge.gguf")
        subprocess.run([MAKE_TINY, huge, "--huge"], check=True)
        with Server(model=huge) as server:
            for _ in range(2):
                status, _, answer = server.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 4})
                self.assertEqual((status, answer["error"]["type"]), (500, "server_error"))
                self.assertIn("position 2", answer["error"]["message"])
            self.assertEqual(server.request("GET", "/health")[0], 200)


class Tls(unittest.TestCase):
    def test_with_a_certificate(self):
        cert, key, other = (os.path.join(FOLDER.name, name) for name in ("cert.pem", "key.pem", "other.pem"))
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True)
        subprocess.run([*make, "-keyout", other, "-out", os.path.join(FOLDER.name, "other_cert.pem")], check=True, capture_output=True)
        trusting = ssl.create_default_context(cafile=cert)
        with Server("-q", "--ssl-cert-file", cert, "--ssl-key-file", key, "--parallel", "1", context=100000, tls=trusting) as server:
            self.assertIn("https://", server.lines[-1])
            self.assertEqual(server.get("/health"), {"status": "ok"})
            events = server.stream("/v1/completions", {"prompt": "Hi", "max_tokens": 5, "ignore_eos": True})
            self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length")
            with socket.create_connection(("127.0.0.1", server.port)) as plain, self.assertRaises(ssl.SSLError):  # nobody vouches for it
                ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
            plain = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertNotIn(b"200 OK", plain.recv(1000))
            plain.close()
            leaving = server.open_stream({"prompt": "Hi", "max_tokens": -1, "ignore_eos": True})
            server.wait_running()
            leaving.close()
            server.wait_cancelled()
        for files, word in (((cert, ""), "--ssl-key-file"), (("/no/cert", key), "/no/cert"), ((cert, other), other), ((MODEL, key), MODEL)):
            flags = ["--ssl-cert-file", files[0], "--ssl-key-file", files[1]]
            done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--port", "0", "-c", "100", *flags], capture_output=True, text=True,
                                  timeout=PATIENCE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(word, done.stderr)


class OddValues(WithServer):
    """Requests of the other protocols with values of any kind in any place: an answer, or a 4xx in the protocol's form."""
    FLAGS = ("-n", "64")
    CONTEXT = 600
    SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
    BODIES = (
        ("/v1/messages", {"max_tokens": 8, "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "messages": [
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "c", "signature": ""}, {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "d"}], "is_error": True}]}],
            "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 5}, "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
            "context_management": {"edits": [{"type": "clear_thinking_20251015"}]}, "chat_template_kwargs": {}, "stop_sequences": ["x"], "stream": True}),
        ("/v1/responses", {"max_output_tokens": 8, "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "b"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "1", "output": "c"}],
            "instructions": "d", "text": {"verbosity": "low", "format": {"type": "json_schema", "schema": SCHEMA}}, "reasoning": {"effort": "low"},
            "include": ["reasoning.encrypted_content"], "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, "chat_template_kwargs": {}, "metadata": {}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
                                    {"role": "tool", "tool_name": "f", "content": "b"}], "tools": [{"type": "function", "function": {"name": "f"}}], "think": True,
                       "format": SCHEMA, "stream": False, "options": {"num_predict": 8, "stop": ["x"], "chat_template_kwargs": {}}}),
        ("/api/generate", {"prompt": "a", "system": "b", "stream": False, "options": {"num_predict": 8}}))
    ODD = (None, True, 0, -1, 1.5, 1e300, "", "x", [], {}, [1], ["a"], {"type": "text"}, [[]], [None], [{}], "\0", {"type": "tool_use"})

    def places(self, value, above=()):
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            yield (*above, key)
            yield from self.places(value[key], (*above, key))

    def test_odd_values(self):
        taken = refused = 0
        for path, body in self.BODIES:
            for place in self.places(body):
                for odd in self.ODD:
                    changed = copy.deepcopy(body)
                    holder = changed
                    for key in place[:-1]:
                        holder = holder[key]
                    holder[place[-1]] = odd
                    status, _, answer = self.server.request("POST", path, changed)
                    taken, refused = taken + (status == 200), refused + (status == 400)
                    self.assertIn(status, (200, 400), (path, place, odd, answer))
                    if status == 400:
                        text = answer["error"] if path.startswith("/api/") else answer["error"]["message"]
                        self.assertTrue(text and "json.exception" not in text, (path, place, odd, text))
        self.assertGreater(taken, 100)
        self.assertGreater(refused, 1000)


if __name__ == "__main__":
    main()
