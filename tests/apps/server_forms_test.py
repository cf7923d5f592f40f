#!/usr/bin/env python3
"""Forms of answers of `specextend serve` - choices, log-probabilities, grammars, tools, details: see server_harness.py."""
import json
import math
import os
import subprocess
import tempfile
import unittest

from server_harness import DRAFTS, FOLDER, MAKE_TINY, MODEL, Server, WithServer, in_threads, joined, main

SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}, "kind": {"enum": ["x", "yy", 3]}}, "required": ["yes", "kind"],
          "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "paint", "description": "Paints.", "parameters": {
    "type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"], "additionalProperties": False}}}
USER = [{"role": "user", "content": "Paint it."}]


class Forms(WithServer):
    FLAGS = (*DRAFTS, "-a", "tiny", "--parallel", "4", "--spec", "ngram:cost-model=off", "--spec", "off")

    def test_several_prompts(self):
        ask = {"max_tokens": 12, "seed": 3, "ignore_eos": True}
        prompts = ["One day", "Another day", self.server.tokens("A third day")]
        both = self.server.complete(**ask, prompt=prompts, n=2)
        self.assertEqual([c["index"] for c in both["choices"]], list(range(6)))
        for p, prompt in enumerate(prompts[:2]):
            for i in range(2):
                single = self.server.text(**{**ask, "seed": 3 + i}, prompt=prompt)
                self.assertEqual(both["choices"][2 * p + i]["text"], single)
        self.assertEqual(both["usage"]["completion_tokens"], 72)
        events = self.server.stream("/v1/completions", {**ask, "prompt": prompts, "n": 2})
        self.assertEqual([joined(events, False, i) for i in range(6)], [c["text"] for c in both["choices"]])
        self.assertEqual(len({e["id"] for e in events}), 1)

    def test_several_chats(self):
        ask = {"messages": USER, "max_tokens": 12, "seed": 3, "ignore_eos": True, "n": 3}
        whole = self.server.post("/v1/chat/completions", ask)
        texts = [c["message"]["content"] for c in whole["choices"]]
        self.assertEqual(len(set(texts)), 3)
        events = self.server.stream("/v1/chat/completions", ask)
        self.assertEqual([joined(events, True, i) for i in range(3)], texts)
        roles = [c["index"] for e in events for c in e["choices"] if c["delta"].get("role") == "assistant"]
        self.assertEqual(sorted(roles), [0, 1, 2])

    def test_echo(self):
        ask = {"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        plain = self.server.text(**ask)
        self.assertEqual(self.server.text(**ask, echo=True), "Once upon" + plain)
        self.assertEqual(joined(self.server.stream("/v1/completions", {**ask, "echo": True}), False), "Once upon" + plain)

    def test_echo_of_pieces(self):
        """SentencePiece's kind of vocabulary: the answer keeps its first space, streamed, echoed, in log-probabilities and grammars."""
        for model, form in (("pieces.gguf", "--pieces"), ("pieces", "--hf-pieces")):
            path = os.path.join(FOLDER.name, model)
            subprocess.run([MAKE_TINY, path, form], check=True)
            with Server(*DRAFTS, model=path) as server:
                ask = {"prompt": "b a", "max_tokens": 20, "grammar": 'root ::= " a" " a"', "logprobs": 1}
                answer = server.complete(**ask)["choices"][0]
                self.assertEqual((answer["text"], "".join(answer["logprobs"]["tokens"])), (" a a", " a a"))
                self.assertEqual(server.text(**ask, echo=True), "b a a a")
                self.assertEqual(joined(server.stream("/v1/completions", {**ask, "echo": True}), False), "b a a a")
                tokens = server.tokens("b a")
                self.assertEqual(server.text(**{**ask, "prompt": tokens}, echo=True), "b a a a")
                chat = {"messages": USER, "max_tokens": 20, "grammar": ask["grammar"]}
                self.assertEqual(server.post("/v1/chat/completions", chat)["choices"][0]["message"]["content"], " a a")

    def test_tokenize_switches(self):
        """Either name of the switch goes with either name of the text, with a vocabulary that opens texts by a token."""
        with open(MODEL, "rb") as file:
            model = bytearray(file.read())
        key = b"tokenizer.ggml.add_bos_token"
        value = model.index(key) + len(key) + 4  # behind its type
        self.assertEqual(model[value], 0)
        model[value] = 1
        path = os.path.join(FOLDER.name, "opened.gguf")
        with open(path, "wb") as file:
            file.write(model)
        with Server(model=path) as server:
            for name in ("prompt", "content"):
                for switch in ("add_special", "add_special_tokens"):
                    opened, bare = (server.post("/tokenize", {name: "Tea?", switch: on})["tokens"] for on in (True, False))
                    self.assertEqual(opened, [0, *bare], (name, switch))

    def test_template_that_does_not_parse(self):
        path = os.path.join(FOLDER.name, "odd")
        subprocess.run([MAKE_TINY, path, "--hf"], check=True)
        with open(os.path.join(path, "chat_template.jinja"), "w", encoding="utf-8") as out:
            out.write("{% if %}")
        with Server(model=path) as server:
            self.assertTrue(any("warning: chat template of" in line for line in server.lines))
            self.assertTrue(server.text(prompt="Once upon", max_tokens=4, ignore_eos=True))
            status, _, answer = server.request("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 4})
            self.assertEqual(status, 400)
            self.assertIn("chat template of", answer["error"]["message"])

    def test_timings_with_every_event(self):
        ask = {"max_tokens": 30, "ignore_eos": True, "seed": 4}
        for path, prompt in (("/v1/completions", {"prompt": "one two one two"}), ("/v1/chat/completions", {"messages": USER})):
            body = {**ask, **prompt}
            plain = self.server.stream(path, body)
            self.assertEqual([e for e in plain[:-1] if "timings" in e], [])
            events = self.server.stream(path, {**body, "timings_per_token": True})
            events = [e for e in events if "role" not in e["choices"][0].get("delta", {})]
            counts = [e["timings"]["predicted_n"] for e in events]
            self.assertEqual(counts, sorted(counts))
            self.assertGreater(counts[0], 0)
            self.assertEqual(counts[-1], 30)
            times = [e["timings"]["predicted_ms"] for e in events]
            self.assertEqual(times, sorted(times))
            last = events[-1]["timings"]
            for event in events:
                self.assertEqual([event["timings"][k] for k in ("prompt_n", "cache_n", "prompt_ms")],
                                 [last[k] for k in ("prompt_n", "cache_n", "prompt_ms")])
                self.assertLessEqual(event["timings"]["draft_n_accepted"], last["draft_n_accepted"])
            self.assertEqual(events[-2]["timings"]["draft_n"], last["draft_n"])

    def scores(self, **ask):
        """Tokens and log-probabilities of a prompt and its answer, whole; a stream must say the same."""
        choices = self.server.complete(**ask, echo=True)["choices"]
        events = self.server.stream("/v1/completions", {**ask, "echo": True})
        for i, choice in enumerate(choices):
            self.assertEqual(joined(events, False, i), choice["text"])
            pieces = [c["logprobs"] for e in events for c in e["choices"] if c["index"] == i and c["logprobs"]]
            for key, value in choice["logprobs"].items():
                self.assertEqual([v for piece in pieces for v in piece[key] or []], value or [])
            self.assertEqual(choice["logprobs"]["token_logprobs"][0], None)
        return choices

    def test_logprobs_of_the_prompt(self):
        ask = {"prompt": "one two one two one two, Wörld 你好", "temperature": 0, "ignore_eos": True, "logprobs": 4}
        plain = self.server.complete(**ask, max_tokens=40)["choices"][0]
        answer = plain["logprobs"]
        both = self.scores(**ask, max_tokens=40)[0]
        self.assertEqual(both["text"], ask["prompt"] + plain["text"])
        count = len(both["logprobs"]["tokens"]) - 40
        for key in ("tokens", "token_logprobs", "top_logprobs"):
            self.assertEqual(both["logprobs"][key][count:], answer[key])
        start = len(ask["prompt"])
        self.assertEqual(both["logprobs"]["text_offset"][count:], [start + o for o in answer["text_offset"]])
        # Every token as a prompt has the numbers it had as an answer, whatever is asked for beside.
        prompt = self.server.post("/tokenize", {"content": ask["prompt"], "add_special": True})["tokens"]
        self.assertEqual(len(prompt), count)
        tokens = self.server.post("/completion", {"prompt": prompt, "n_predict": 40, "temperature": 0, "ignore_eos": True,
                                                  "return_tokens": True})["tokens"]
        whole = {**ask, "prompt": prompt + tokens}
        for more in ({"max_tokens": 0}, {"max_tokens": 3}, {"max_tokens": 0, "speculate": False}, {"max_tokens": 0, "cache_prompt": False}):
            choice = self.scores(**whole, **more)[0]
            for key in ("token_logprobs", "top_logprobs"):
                self.assertEqual(choice["logprobs"][key][:count + 40], both["logprobs"][key])
            self.assertEqual(len(choice["logprobs"]["tokens"]), count + 40 + more["max_tokens"])
        self.assertEqual((choice["finish_reason"], choice["text"][-1:]), ("length", plain["text"][-1:]))

    def test_scores_of_several(self):
        prompts = [f"Text {i} " + "of words " * (7 * i) for i in range(5)]
        ask = {"max_tokens": 4, "seed": 3, "ignore_eos": True, "logprobs": 2, "n": 2}
        single = [self.scores(**ask, prompt=p) for p in prompts]
        both = self.scores(**ask, prompt=prompts)
        self.assertEqual([c["logprobs"] for c in both], [c["logprobs"] for one in single for c in one])
        self.assertNotEqual(both[0]["text"], both[1]["text"])
        self.assertEqual(in_threads(5, lambda i: self.scores(**ask, prompt=prompts[i])), single)
        stop = single[1][0]["text"][len(prompts[1]):][:1]
        stopped = self.scores(**ask, prompt=prompts[1], stop=stop)[0]
        self.assertEqual((stopped["text"], stopped["finish_reason"]), (prompts[1], "stop"))
        self.assertEqual(stopped["logprobs"]["token_logprobs"][:-1], single[1][0]["logprobs"]["token_logprobs"][:-4])

    def test_logprobs(self):
        for spec in (True, False):
            ask = {"prompt": "one two one two one two", "max_tokens": 20, "temperature": 0, "ignore_eos": True, "logprobs": 4,
                   "speculate": spec}
            choice = self.server.complete(**ask)["choices"][0]
            l = choice["logprobs"]
            self.assertEqual([len(l[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")], [20] * 4)
            for token, value, top in zip(l["tokens"], l["token_logprobs"], l["top_logprobs"]):
                self.assertAlmostEqual(max(top.values()), value, places=9)  # greedy: the top one
                self.assertLessEqual(sum(math.exp(v) for v in top.values()), 1 + 1e-9)
            events = self.server.stream("/v1/completions", ask)
            streamed = [v for e in events for c in e["choices"] if c["logprobs"] for v in c["logprobs"]["token_logprobs"]]
            self.assertEqual(streamed, l["token_logprobs"])
            first = l if spec else first
            self.assertEqual(l, first)  # not a bit different without drafts
        chat = {"messages": USER, "max_tokens": 10, "temperature": 1, "seed": 5, "ignore_eos": True, "logprobs": True, "top_logprobs": 3}
        content = self.server.post("/v1/chat/completions", chat)["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 10)
        for one in content:
            self.assertEqual(len(one["top_logprobs"]), 3)
            self.assertLessEqual(one["logprob"], one["top_logprobs"][0]["logprob"])
            self.assertLessEqual(sum(math.exp(t["logprob"]) for t in one["top_logprobs"]), 1 + 1e-9)
        whole = b"".join(bytes(one["bytes"]) for one in content)
        self.assertTrue(whole)

    def test_schemas(self):
        formats = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        for temperature in (0, 1):
            for seed in range(3):
                ask = {"messages": USER, "temperature": temperature, "seed": seed, "response_format": formats}
                on = self.server.post("/v1/chat/completions", ask)["choices"][0]
                off = self.server.post("/v1/chat/completions", {**ask, "speculate": False})["choices"][0]
                self.assertEqual(on, off)
                self.assertEqual(on["finish_reason"], "stop")
                value = json.loads(on["message"]["content"])
                self.assertEqual(set(value), {"yes", "kind"})
                self.assertIn(value["kind"], ["x", "yy", 3])
                self.assertIsInstance(value["yes"], bool)
                streamed = joined(self.server.stream("/v1/chat/completions", ask), True)
                self.assertEqual(streamed, on["message"]["content"])

    def test_any_json(self):
        # A model that has not learnt anything would never close its strings: let it prefer to.
        close = {str(self.server.tokens(c)[0]): 30 for c in "\"}"}
        ask = {"prompt": "JSON: ", "max_tokens": 200, "temperature": 0, "logit_bias": close, "response_format": {"type": "json_object"}}
        on, off = self.server.complete(**ask), self.server.complete(**ask, speculate=False)
        self.assertEqual(on["choices"], off["choices"])
        self.assertEqual(on["choices"][0]["finish_reason"], "stop")
        self.assertIsInstance(json.loads(on["choices"][0]["text"]), dict)

    def test_grammars(self):
        ask = {"prompt": "Say: ", "max_tokens": 50, "seed": 1, "grammar": 'root ::= ("yes" | "no") " sir"{1,3} "."'}
        text = self.server.text(**ask)
        self.assertRegex(text, r"^(yes|no)( sir){1,3}\.$")
        self.assertEqual(self.server.text(**ask, speculate=False), text)
        status, _, answer = self.server.request("POST", "/v1/completions", {"prompt": "x", "grammar": "root ::= ("})
        self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
        status, _, answer = self.server.request("POST", "/v1/completions", {"prompt": "x", "grammar": "root ::= (", "stream": True})
        self.assertEqual(status, 400)

    def test_a_grammar_too_ambiguous_in_the_middle(self):
        doubled = "".join(f'r{i} ::= r{i + 1} "x" | r{i + 1} "y"\n' for i in range(20))
        ask = {"prompt": "x", "grammar": 'root ::= "abcdefgh" r0\n' + doubled + 'r20 ::= "z"'}
        for speculate in (True, False):
            status, _, answer = self.server.request("POST", "/v1/completions", {**ask, "speculate": speculate})
            self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
            self.assertRegex(answer["error"]["message"], "too ambiguous.*in the rule")
            self.assertEqual(answer["error"]["param"], "grammar")
            _, _, text = self.server.request("POST", "/v1/completions", {**ask, "speculate": speculate, "stream": True})
            events = [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]
            self.assertEqual("".join(c["text"] for e in events[:-1] for c in e["choices"]), "abcdefg")
            self.assertNotIn("stop", [c["finish_reason"] for e in events[:-1] for c in e["choices"]])
            self.assertIn("too ambiguous", events[-1]["error"]["message"])
            self.assertEqual(events[-1]["error"]["param"], "grammar")

    def test_tools(self):
        ask = {"messages": USER, "tools": [TOOL], "tool_choice": "required", "seed": 2}
        choice = self.server.post("/v1/chat/completions", ask)["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        call = choice["message"]["tool_calls"][0]
        self.assertEqual((call["type"], call["function"]["name"]), ("function", "paint"))
        arguments = json.loads(call["function"]["arguments"])
        self.assertIn(arguments["colour"], ("red", "blue"))
        plain = self.server.post("/v1/chat/completions", {**ask, "speculate": False})["choices"][0]
        self.assertEqual(json.loads(plain["message"]["tool_calls"][0]["function"]["arguments"]), arguments)
        events = self.server.stream("/v1/chat/completions", ask)
        deltas = [c["delta"] for e in events for c in e["choices"]]
        spelled = "".join(t["function"].get("arguments", "") for d in deltas for t in d.get("tool_calls", []))
        self.assertEqual(json.loads(spelled), arguments)
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")

    def test_tools_in_the_form_of_the_template(self):
        """What is forced is what the template shows, and comes back as a call; earlier calls are shown as the client sends them."""
        shown = "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}" \
                "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
        named = "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"
        coder = "<tool_call>\\n<function={{ c.function.name }}>\\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\\n{{ v }}\\n" \
                "</parameter>\\n{% endfor %}</function>\\n</tool_call>"
        kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ c.function.name }}:0<|tool_call_argument_begin|>" \
               "{{ c.function.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>"
        python = "<|tool_call_start|>[{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}='{{ v }}'{% endfor %})]<|tool_call_end|>"
        gemma = "<|tool_call>call:{{ c.function.name }}{% raw %}{{% endraw %}{% for k, v in c.function.arguments | items %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}}<tool_call|>"
        past = [*USER, {"role": "assistant", "content": None, "reasoning_content": "Blue.", "tool_calls": [
            {"id": "abcdefgh1", "type": "function", "function": {"name": "paint", "arguments": "{\"colour\":\"blue\"}"}}]},
            {"role": "tool", "tool_call_id": "abcdefgh1", "content": "ok"}]
        for call, text in ((named, '[TOOL_CALLS]paint[ARGS]{"colour": "blue"}'),
                           (kimi, '<|tool_calls_section_begin|><|tool_call_begin|>functions.paint:0<|tool_call_argument_begin|>{"colour": "blue"}'
                                  '<|tool_call_end|><|tool_calls_section_end|>'),
                           (python, "<|tool_call_start|>[paint(colour='blue')]<|tool_call_end|>"),
                           (gemma, '<|tool_call>call:paint{colour:<|"|>blue<|"|>}<tool_call|>'),
                           (coder.replace("\\n", "\n"), "<tool_call>\n<function=paint>\n<parameter=colour>\nblue\n</parameter>\n</function>\n</tool_call>")):
            with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
                template.write(shown.replace("CALL", call))
                template.flush()
                with Server("-q", *DRAFTS, "--chat-template-file", template.name) as server:
                    prompt = server.post("/apply-template", {"messages": past, "tools": [TOOL]})["prompt"]
                    self.assertTrue(prompt.endswith(f"[assistant]<think>Blue.</think>{text}[tool]ok"), prompt)
                    ask = {"messages": USER, "tools": [TOOL], "tool_choice": "required", "seed": 2}
                    found = [server.post("/v1/chat/completions", {**ask, "speculate": speculate})["choices"][0] for speculate in (True, False)]
                    events = server.stream("/v1/chat/completions", ask)
                    deltas = [t for e in events for c in e["choices"] for t in c["delta"].get("tool_calls", [])]
            spelled = "".join(t["function"]["arguments"] for t in deltas)
            for choice in found:
                self.assertEqual(choice["finish_reason"], "tool_calls")
                self.assertEqual(choice["message"]["tool_calls"][0]["function"], {"name": deltas[0]["function"]["name"], "arguments": spelled})
            self.assertIn(json.loads(spelled), [{"colour": "red"}, {"colour": "blue"}])
            self.assertEqual(joined(events, True), "")
            self.assertEqual([t["index"] for t in deltas], [0] * len(deltas))
            self.assertEqual([t for t in deltas if "id" in t], deltas[:1])  # the rest are pieces of its arguments

    def test_reasoning(self):
        """Thoughts are told apart by the template's marks; a grammar binds what follows them; a field switches that off."""
        source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]OPEN{# </think> #}"
        ask = {"messages": USER, "max_tokens": 24, "seed": 3, "ignore_eos": True}
        for opened in ("<think>", ""):
            with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
                template.write(source.replace("OPEN", opened))
                template.flush()
                with Server("-q", *DRAFTS, "--chat-template-file", template.name) as server:
                    found = server.post("/v1/chat/completions", ask)["choices"][0]["message"]
                    plain = server.post("/v1/chat/completions", {**ask, "reasoning_format": "none"})["choices"][0]["message"]
                    events = server.stream("/v1/chat/completions", ask)
                    told = server.post("/v1/messages", ask)["content"]
                    less, = server.tokens("<")
                    bound = {**ask, "grammar": 'root ::= "yes"', "logit_bias": [[less, False]]}
                    forced = [server.post("/v1/chat/completions", {**bound, "speculate": speculate})["choices"][0] for speculate in (True, False)]
            thought = "".join(c["delta"].get("reasoning_content", "") for e in events for c in e["choices"])
            self.assertNotIn("reasoning_content", plain)
            self.assertEqual(forced[0], forced[1])
            if opened:  # the thought never ends: nothing is content, and the grammar has not begun
                self.assertEqual((found["content"], found["reasoning_content"].strip()), ("", plain["content"].strip()))
                self.assertEqual((thought, joined(events, True)), (found["reasoning_content"], ""))
                self.assertEqual((told[0]["type"], told[0]["thinking"]), ("thinking", thought))
                self.assertEqual(forced[0]["finish_reason"], "length")
            else:
                self.assertEqual((found["content"], thought, joined(events, True)), (plain["content"], "", plain["content"]))
                self.assertEqual((forced[0]["message"]["content"], forced[0]["finish_reason"]), ("yes", "stop"))

    def test_forced_marks_are_control_tokens(self):
        """A vocabulary that has the marks of calls as control tokens: the forced call is written with these, drafted or not."""
        model = os.path.join(FOLDER.name, "marks.gguf")
        subprocess.run([MAKE_TINY, model, "--marks"], check=True)
        source = "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}" \
                 "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write(source)
            template.flush()
            with Server("-q", *DRAFTS, "--chat-template-file", template.name, model=model) as server:
                ask = {"messages": USER, "tools": [TOOL], "tool_choice": "required", "logprobs": True}
                for seed in range(3):
                    on, off = (server.post("/v1/chat/completions", {**ask, "seed": seed, "speculate": s})["choices"][0] for s in (True, False))
                    self.assertEqual(on["logprobs"], off["logprobs"])
                    self.assertEqual(on["message"]["tool_calls"][0]["function"], off["message"]["tool_calls"][0]["function"])
                    self.assertEqual((on["finish_reason"], on["message"]["content"]), ("tool_calls", None))
                    tokens = [t["token"] for t in on["logprobs"]["content"]]
                    self.assertEqual((tokens[0], tokens.count("")), ("", 2))  # a control token has no bytes of its own
                    self.assertRegex("".join(tokens), r'^paint\{\s*"colour"\s*:\s*"(red|blue)"\s*\}$')

    def test_native(self):
        ask = {"prompt": "Once upon", "n_predict": 20, "temperature": 0, "ignore_eos": True}
        whole = self.server.post("/completion", ask)
        self.assertEqual(whole["content"], self.server.text(prompt="Once upon", max_tokens=20, temperature=0, ignore_eos=True))
        self.assertEqual((whole["stop"], whole["timings"]["predicted_n"]), (True, 20))
        status, headers, text = self.server.request("POST", "/completion", {**ask, "stream": True})
        events = [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]
        self.assertEqual("".join(e["content"] for e in events), whole["content"])
        self.assertEqual([e["stop"] for e in events], [False] * (len(events) - 1) + [True])

    def test_presets(self):
        self.assertEqual(self.server.get("/props")["presets"], ["suffix", "ngram", "off"])
        ask = {"prompt": "one two one two one two one two", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
        answers = [self.server.complete(**ask, spec_preset=name) for name in ("suffix", "ngram", "off")]
        self.assertEqual(len({a["choices"][0]["text"] for a in answers}), 1)
        drafted = [a["metrics"]["speculative_decoding"]["num_draft_tokens"] for a in answers]
        self.assertTrue(drafted[0] > 0 and drafted[1] > 0 and drafted[2] == 0, drafted)
        self.assertNotEqual(drafted[0], drafted[1])
        few = self.server.complete(**ask, spec_depth=1)
        self.assertEqual(few["choices"], answers[0]["choices"])
        block = few["metrics"]["speculative_decoding"]
        self.assertLessEqual(block["num_accepted_draft_tokens"], block["num_spec_steps"])
        mixed = in_threads(6, lambda i: self.server.text(**ask, spec_preset=("suffix", "ngram", "off")[i % 3]))
        self.assertEqual(set(mixed), {answers[0]["choices"][0]["text"]})
        status, _, answer = self.server.request("POST", "/v1/completions", {**ask, "spec_preset": "tea"})
        self.assertEqual((status, answer["error"]["param"]), (400, "spec_preset"))

    def test_details(self):
        ask = {"prompt": "one two", "max_tokens": 60, "ignore_eos": True, "temperature": 0,
               "logit_bias": {str(self.server.tokens("x")[0]): 100}}  # xxx: easy to guess
        events = self.server.stream("/v1/completions", {**ask, "spec_details": True})
        text = joined(events, False)
        self.assertEqual(text, self.server.text(**ask))
        details = [e["specextend"] for e in events if "specextend" in e]
        self.assertEqual("".join(t["text"] for d in details for t in d["tokens"]), text)
        rounds = [r for d in details for r in d["rounds"]]
        self.assertEqual(sum(r["accepted"] + 1 for r in rounds), 60)
        self.assertGreater(sum(r["accepted"] for r in rounds), 0)
        self.assertTrue(any(t["depth"] > 0 for d in details for t in d["tokens"]))
        self.assertTrue(all(r["verified"] >= r["accepted"] for r in rounds))

    def test_decisions(self):
        with tempfile.TemporaryDirectory() as folder:
            draft = os.path.join(folder, "draft.gguf")
            subprocess.run([MAKE_TINY, draft], check=True)
            with Server("-q", "--parallel", "2", "--spec", "auto", "--spec", "suffix", "-md", draft) as server:
                ask = {"prompt": "one two", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
                plain = server.text(**ask, speculate=False)
                for fields in ({}, {"spec_preset": "suffix"}, {"speculate": False}):
                    events = server.stream("/v1/completions", {**ask, **fields, "spec_details": True})
                    self.assertEqual(joined(events, False), plain)
                    rounds = [r for e in events if "specextend" in e for r in e["specextend"]["rounds"]]
                    self.assertEqual(sum(r["accepted"] + 1 for r in rounds), 60)
                    told = [r for r in rounds if "decision" in r]
                    if fields:
                        self.assertEqual(told, [])  # only a controller decides
                        continue
                    self.assertGreater(len(told), 0)
                    for r in told:
                        self.assertIn(r["decision"], ("without", "try", "model"))
                        self.assertEqual(r["levels"] > 0, r["decision"] != "without")
                        self.assertGreater(len(r["why"]), 5)
                        self.assertGreater(r["expected_tokens"], 0.5)
                    self.assertIn(True, [r["levels"] > 0 for r in told])  # the draft is the target: it is right
                texts = in_threads(2, lambda i: server.text(**ask))
                self.assertEqual(set(texts), {plain})

    def test_progress(self):
        ask = {"prompt": "Progress! " * 100, "max_tokens": 2, "cache_prompt": False}
        events = self.server.stream("/v1/completions", {**ask, "return_progress": True})
        told = [e["prompt_progress"] for e in events if "prompt_progress" in e]
        self.assertGreater(len(told), 0)
        self.assertEqual(told[-1]["processed"], told[-1]["total"])
        self.assertEqual([p["processed"] for p in told], sorted(p["processed"] for p in told))
        self.assertFalse(any("prompt_progress" in e for e in self.server.stream("/v1/completions", ask)))

    def test_the_role_comes_with_the_first_token(self):
        words = " ".join(f"word{i}" for i in range(150))
        ask = {"messages": [{"role": "user", "content": words}], "max_tokens": 3, "ignore_eos": True, "return_progress": True, "cache_prompt": False}
        events = self.server.stream("/v1/chat/completions", ask)
        roles = [i for i, e in enumerate(events) if e["choices"] and "role" in e["choices"][0]["delta"]]
        progress = [i for i, e in enumerate(events) if "prompt_progress" in e]
        self.assertEqual(len(roles), 1)
        self.assertLess(max(progress), roles[0])
        self.assertTrue(events[roles[0] + 1]["choices"][0]["delta"].get("content"))

    def test_timings(self):
        answer = self.server.complete(prompt="Once upon", max_tokens=20, ignore_eos=True)
        timings = answer["timings"]
        self.assertEqual((timings["predicted_n"], timings["prompt_n"] + timings["cache_n"]), (20, answer["usage"]["prompt_tokens"] - 1))
        self.assertGreater(timings["predicted_per_second"], 0)

    def test_description(self):
        api = self.server.get("/openapi.json")
        self.assertTrue(api["openapi"].startswith("3."))
        for path in ("/v1/chat/completions", "/v1/completions", "/completion", "/v1/models", "/health", "/props", "/slots", "/metrics",
                     "/tokenize", "/detokenize", "/apply-template", "/slots/{id_slot}"):
            self.assertIn(path, api["paths"])


if __name__ == "__main__":
    main()
