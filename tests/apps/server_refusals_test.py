#!/usr/bin/env python3
"""What `specextend serve` refuses, and whom: see server_harness.py."""
import json
import os
import socket
import ssl
import subprocess
import unittest

from server_harness import FOLDER, MODEL, PATIENCE, PROGRAM, Server, WithServer, main, read_until


class Refusals(WithServer):
    FLAGS = ("--max-body", "1", "-n", "100")
    CONTEXT = 300

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


if __name__ == "__main__":
    main()
