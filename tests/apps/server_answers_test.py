#!/usr/bin/env python3
"""Answers of `specextend serve`: see server_harness.py."""
import json
import time
import unittest

from server_harness import DRAFTS, Server, WithServer, cached, in_threads, joined, main


class Answers(WithServer):
    FLAGS = (*DRAFTS, "-a", "tiny", "--parallel", "3")

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

    def test_stop_tokens(self):
        ask = {"prompt": "one two one two one", "temperature": 0, "n_predict": 40, "ignore_eos": True, "return_tokens": True}
        tokens = self.server.post("/completion", ask)["tokens"]
        for stop in set(tokens[3:12]):
            for speculate in (True, False):
                answer = self.server.post("/completion", {**ask, "stop_token_ids": [stop], "speculate": speculate})
                self.assertEqual(answer["tokens"], tokens[:tokens.index(stop)])
                self.assertEqual(answer["stop_type"], "eos")
        chat = {"messages": [{"role": "user", "content": "a"}], "temperature": 0, "max_tokens": 20, "stop_token_ids": list(range(250))}
        self.assertEqual(self.server.post("/v1/chat/completions", chat)["choices"][0]["finish_reason"], "stop")

    def test_penalties_take_no_more_memory_than_the_context(self):
        def peak():
            with open(f"/proc/{self.server.process.pid}/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024
        ask = {"prompt": "one two", "max_tokens": 5, "ignore_eos": True, "repeat_penalty": 1.1, "temperature": 0}
        text = self.server.text(**ask, repeat_last_n=-1)
        before = peak()
        self.assertEqual(self.server.text(**ask, repeat_last_n=1 << 24), text)
        self.assertLess(peak() - before, 32)  # MiB; a window of that many tokens has 64

    def test_requests_have_ids(self):
        seen = set()
        for method, path, body in (("GET", "/health", None), ("GET", "/v1/models", None), ("GET", "/nowhere", None), ("GET", "/completion", None),
                                   ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}), ("POST", "/v1/completions", {"prompt": 5}),
                                   ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": True})):
            status, headers, answer = self.server.request(method, path, body)
            name = headers["x-request-id"]
            self.assertRegex(name, "^req_[0-9a-f]{32}$")
            self.assertNotIn(name, seen)
            seen.add(name)
            if status >= 400:
                self.assertEqual(answer["error"]["request_id"], name)
            self.assertEqual(self.server.request(method, path, body, {"X-Request-Id": "my-own_1.2:3"})[1]["x-request-id"], "my-own_1.2:3")
            for strange in ("a b", "x" * 129, "<script>", "ä"):
                self.assertRegex(self.server.request(method, path, body, {"X-Request-Id": strange})[1]["x-request-id"], "^req_")

    def test_parallel_requests_equal_single_ones(self):
        asks = [{"prompt": f"Story {i}: " + "and then " * (i % 7), "max_tokens": 20 + 5 * (i % 5), "seed": i, "ignore_eos": True,
                 "temperature": i % 3 / 2, "speculate": i % 4 != 1} for i in range(18)]
        single = [self.server.text(**ask) for ask in asks]
        self.assertGreater(len(set(single)), 10)

        def run(i):
            if i % 2:
                return joined(self.server.stream("/v1/completions", asks[i]), False)
            return self.server.text(**asks[i])

        self.assertEqual(in_threads(len(asks), run), single)

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


class Protocols(WithServer):
    """Messages, Responses and Ollama tell the text of a chat, whole and in streams, in their own forms; with and without /v1."""
    FIELDS = {"seed": 5, "ignore_eos": True}
    MESSAGES = [{"role": "user", "content": "Tea?"}]

    def chat(self):
        return self.server.post("/v1/chat/completions", {"messages": self.MESSAGES, "max_tokens": 16, **self.FIELDS})["choices"][0]["message"]["content"]

    def events(self, path, body):
        status, headers, text = self.server.request("POST", path, {**body, "stream": True})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
        found = []
        for event in text.split("\n\n")[:-1]:
            name, data = event.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            self.assertEqual(name, "event: " + found[-1]["type"])
        return found

    def test_messages(self):
        body = {"messages": self.MESSAGES, "max_tokens": 16, **self.FIELDS}
        for path in ("/v1/messages", "/messages"):
            answer = self.server.post(path, body)
            self.assertEqual((answer["content"], answer["stop_reason"]), ([{"type": "text", "text": self.chat()}], "max_tokens"))
            events = self.events(path, body)
            self.assertEqual([e["type"] for e in events if e["type"] != "content_block_delta"],
                             ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"])
            self.assertEqual("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"), self.chat())
            usage, begun = events[-2]["usage"], events[0]["message"]["usage"]
            for tokens in ("input_tokens", "cache_read_input_tokens"):  # the prompt is in the cache but for its last token
                self.assertEqual(begun[tokens], usage[tokens])
            self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"],
                             self.server.post(path + "/count_tokens", {"messages": self.MESSAGES})["input_tokens"])
            for wrong, word in (({"max_tokens": None}, "max_tokens"), ({"messages": []}, "messages"), ({"odd": 1}, "odd"), ({"system": 5}, "system"),
                                ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
                                ({"tools": [{"name": "f"}]}, "tools.0.input_schema"), ({"thinking": {"type": "odd"}}, "thinking.type")):
                status, _, error = self.server.request("POST", path, {**body, **wrong})
                self.assertEqual((status, error["type"], error["error"]["type"]), (400, "error", "invalid_request_error"))
                self.assertIn(word, error["error"]["message"])

    def test_responses(self):
        body = {"input": "Tea?", "max_output_tokens": 16, **self.FIELDS}
        answer = self.server.post("/v1/responses", body)
        self.assertEqual(answer["output"][0]["content"][0]["text"], self.chat())
        events = self.events("/responses", body)
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual("".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"), self.chat())
        self.assertEqual(events[-1]["type"], "response.incomplete")
        again = self.server.post("/v1/responses", {**body, "input": "More?", "previous_response_id": answer["id"]})
        turns = [*self.MESSAGES, {"role": "assistant", "content": self.chat()}, {"role": "user", "content": "More?"}]
        chat = self.server.post("/v1/chat/completions", {"messages": turns, "max_tokens": 16, **self.FIELDS})
        self.assertEqual(again["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"])
        self.assertEqual(self.server.get("/v1/responses/" + answer["id"]), answer)
        for given, status, word in ((answer["id"] + "/cancel", 400, "Cannot cancel a synchronous response."),
                                    ("resp_x/cancel", 404, "Response with id 'resp_x' not found."), (answer["id"], 404, "there is no /v1/responses/")):
            got, _, error = self.server.request("POST", "/v1/responses/" + given, {})
            self.assertEqual((got, error["error"]["message"][:len(word)]), (status, word))
        told = self.server.post("/v1/responses", {**body, "top_logprobs": 2})["output"][0]["content"][0]
        chat = self.server.post("/v1/chat/completions", {"messages": self.MESSAGES, "max_tokens": 16, "logprobs": True, "top_logprobs": 2, **self.FIELDS})
        self.assertEqual(told["logprobs"], chat["choices"][0]["logprobs"]["content"])
        self.assertEqual(told["text"], self.chat())
        self.assertEqual(self.server.request("DELETE", "/v1/responses/" + answer["id"])[0], 200)
        self.assertEqual(self.server.request("GET", "/v1/responses/" + answer["id"])[0], 404)
        for wrong in ({"input": None}, {"input": [{"type": "odd"}]}, {"odd": 1}, {"previous_response_id": answer["id"]}, {"tools": [{"type": "web_search"}]},
                      {"text": {"format": {"type": "json_schema"}}}, {"background": True}, {"max_output_tokens": 0}):
            status, _, error = self.server.request("POST", "/v1/responses", {**body, **wrong})
            self.assertEqual((status, error["error"]["type"]), (400, "invalid_request_error"), wrong)
            self.assertIn(next(iter(wrong)).split("[")[0], error["error"]["param"])

    def test_ollama(self):
        body = {"messages": self.MESSAGES, "options": {"num_predict": 16, "temperature": 1, "top_k": 0, "top_p": 1, **self.FIELDS}}
        status, headers, text = self.server.request("POST", "/api/chat", body)
        self.assertEqual((status, headers["Content-Type"]), (200, "application/x-ndjson"))
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual("".join(line["message"]["content"] for line in lines), self.chat())
        self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
        self.assertEqual((lines[-1]["done_reason"], lines[-1]["eval_count"]), ("length", 16))
        self.assertEqual(self.server.post("/api/chat", {**body, "stream": False})["message"]["content"], self.chat())
        status, _, error = self.server.request("POST", "/api/chat", {**body, "odd": 1})
        self.assertEqual((status, error), (400, {"error": "'odd' is not supported"}))

    def test_salt(self):
        ask = {"prompt": "A salt of its own keeps a prefix apart.", "max_tokens": 1}
        cached = [self.server.complete(**ask, **salt)["usage"]["prompt_tokens_details"]["cached_tokens"]
                  for salt in ({"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "b"},
                               {"cache_salt": "b", "prompt_cache_key": "mine"})]
        self.assertEqual((cached[0], cached[1]), (0, 0))
        self.assertGreater(cached[2], 10)
        self.assertEqual(cached[3], cached[2])  # a name for it keeps no prefix apart


class Settings(unittest.TestCase):
    """What a server was started with goes for requests that do not say."""
    THINKS = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}{% if messages[0].role == 'no' %}</think>{% endif %}"
    MESSAGES = [{"role": "user", "content": "Tea?"}]

    def prompt(self, server, **more):
        return server.post("/apply-template", {"messages": self.MESSAGES, **more})["prompt"]

    def test_reasoning(self):
        with Server("-q", "--chat-template", self.THINKS, "--reasoning", "off", "--verbose") as server:
            self.assertEqual(self.prompt(server), "Tea?<think>\n</think>")
            self.assertEqual(self.prompt(server, chat_template_kwargs={"enable_thinking": True}), "Tea?<think>\n")
            count = server.post("/v1/chat/completions/input_tokens", {"messages": self.MESSAGES})["input_tokens"]
            self.assertEqual(count, len(server.tokens(self.prompt(server))))
            ask = {"messages": self.MESSAGES, "max_tokens": 2, "ignore_eos": True}
            answer = server.post("/chat/completions", ask)
            self.assertEqual(answer["__verbose"], {"prompt": self.prompt(server)})
            self.assertEqual(answer["usage"]["prompt_tokens"], count)
            self.assertNotIn("__verbose", server.post("/chat/completions", {**ask, "verbose": False}))
        with Server("-q", "--chat-template", self.THINKS, "--reasoning-format", "none") as server:
            self.assertEqual(self.prompt(server), "Tea?<think>\n")
            self.assertNotIn("reasoning_content", server.post("/chat/completions", ask)["choices"][0]["message"])

    def test_templates_by_name(self):
        with Server("-q", "--chat-template", "chatml") as server:
            self.assertEqual(self.prompt(server), "<|im_start|>user\nTea?<|im_end|>\n<|im_start|>assistant\n")
        with self.assertRaisesRegex(RuntimeError, "'odd' is no template, and none of chatml, command-r, gemma, llama3"):
            Server("-q", "--chat-template", "odd")

    def test_a_prompt_that_is_too_long(self):
        with Server("-q", context=100) as server:
            status, _, answer = server.request("POST", "/v1/completions", {"prompt": [5] * 120})
            error = answer["error"]
            self.assertEqual((status, error["type"], error["code"]), (400, "exceed_context_size_error", "context_length_exceeded"))
            self.assertEqual((error["n_prompt_tokens"], error["n_ctx"]), (120, 100))

    def test_counters_of_llama(self):
        with Server("-q", "--parallel", "2") as server:
            begun = time.time()
            in_threads(2, lambda i: server.text(prompt=f"Hi {i}", max_tokens=30, ignore_eos=True, temperature=0))
            status, headers, text = server.request("GET", "/metrics")
            self.assertLess(abs(int(headers["Process-Start-Time-Unix"]) - begun), 60)
            values = dict(line.split(" ") for line in text.splitlines() if line.startswith("llamacpp:"))
            self.assertGreaterEqual(float(values["llamacpp:n_tokens_max"]), 30)
            self.assertTrue(0 < float(values["llamacpp:n_busy_slots_per_decode"]) <= 2, values)


if __name__ == "__main__":
    main()
