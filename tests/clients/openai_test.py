"""A conversation with the `openai` package: all that it can ask for and that the server offers."""
import asyncio
import json
import math
import unittest

import bed
import openai
import pydantic
from typing import Literal

USER = [{"role": "user", "content": "Tea?"}]


def client_of(server, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=more.pop("api_key", "none"), max_retries=0, timeout=600, **more)


class Weather(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Paris", "Oslo", "Rome"]
    celsius: bool


class Conversation(bed.Bed):
    def setUp(self):
        self.client = client_of(self.server)

    def chat(self, **fields):
        fields = {"model": "tiny", "messages": USER, "max_tokens": 20, "seed": 7} | fields
        return self.client.chat.completions.create(**fields)

    def complete(self, **fields):
        fields = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 20, "seed": 7} | fields
        return self.client.completions.create(**fields)

    def streamed(self, **fields):
        return list(self.chat(stream=True, **fields))

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")

    def test_chat_of_two_turns(self):
        first = self.chat(extra_body={"ignore_eos": True})
        message = first.choices[0].message
        self.assertEqual((message.role, first.choices[0].finish_reason), ("assistant", "length"))
        self.assertEqual(first.usage.total_tokens, first.usage.prompt_tokens + 20)
        again = USER + [{"role": "assistant", "content": message.content}, {"role": "user", "content": "And coffee?"}]
        second = self.chat(messages=again)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 0)

    def test_stream_equals_whole(self):
        whole = self.chat(extra_body={"ignore_eos": True})
        chunks = self.streamed(extra_body={"ignore_eos": True}, stream_options={"include_usage": True})
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks[:-1]), whole.choices[0].message.content)
        self.assertEqual([c.choices[0].finish_reason for c in chunks[:-1]][-1], "length")
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 20))
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertTrue(all(c.usage is None for c in self.streamed()))

    def test_stream_helper(self):
        whole = self.chat().choices[0].message.content
        stop = whole[10:13]  # it takes an answer of full length for an error
        with self.client.chat.completions.stream(model="tiny", messages=USER, max_tokens=20, seed=7, stop=stop) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
            final = stream.get_final_completion()
        self.assertEqual(text, final.choices[0].message.content)
        self.assertEqual(text, whole[:whole.index(stop)])

    def test_stream_helper_of_a_full_answer(self):
        """Its events come to the end; only what parses the whole calls a full answer an error, as with OpenAI's own server."""
        with self.client.chat.completions.stream(model="tiny", messages=USER, max_tokens=20, seed=7, extra_body={"ignore_eos": True}) as stream:
            events = list(stream)
            snapshot = stream.current_completion_snapshot
            with self.assertRaises(openai.LengthFinishReasonError) as raised:
                stream.get_final_completion()
        self.assertEqual("".join(e.delta for e in events if e.type == "content.delta"), snapshot.choices[0].message.content)
        self.assertEqual(snapshot.choices[0].finish_reason, "length")
        self.assertEqual(raised.exception.completion.choices[0].message.content, snapshot.choices[0].message.content)

    def test_request_ids(self):
        raw = self.client.chat.completions.with_raw_response.create(model="tiny", messages=USER, max_tokens=2)
        self.assertTrue(raw.parse()._request_id.startswith("req_"))
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.chat.completions.create(model="tiny", messages=USER, extra_body={"use_beam_search": True})
        self.assertTrue(raised.exception.request_id.startswith("req_"))
        self.assertEqual(raised.exception.param, "use_beam_search")

    def test_completion_with_logprobs(self):
        fields = {"max_tokens": 12, "logprobs": 2, "temperature": 0}
        answer = self.complete(**fields, extra_body={"ignore_eos": True})
        lp = answer.choices[0].logprobs
        self.assertEqual([len(lp.tokens), len(lp.token_logprobs), len(lp.top_logprobs), len(lp.text_offset)], [12] * 4)
        self.assertEqual(sorted(lp.text_offset), lp.text_offset)
        for token, value, top in zip(lp.tokens, lp.token_logprobs, lp.top_logprobs):
            self.assertLessEqual(value, 0)
            self.assertGreaterEqual(len(top), 1)  # tokens that are spelt alike share a place
            self.assertEqual(top[token], value)
            self.assertEqual(max(top.values()), value)  # temperature 0 takes the likeliest
        plain = self.complete(**fields, extra_body={"ignore_eos": True, "speculate": False})
        self.assertEqual(plain.choices, answer.choices)

    def test_echo(self):
        prompt = "Once upon a time"
        text = self.complete(prompt=prompt, max_tokens=5).choices[0].text
        self.assertEqual(self.complete(prompt=prompt, max_tokens=5, echo=True).choices[0].text, prompt + text)
        chunks = list(self.complete(prompt=prompt, max_tokens=5, echo=True, stream=True))
        self.assertEqual("".join(c.choices[0].text for c in chunks), prompt + text)
        numbers = [self.complete(prompt=prompt, max_tokens=most, echo=True, logprobs=1).choices[0].logprobs for most in (0, 5)]
        self.assertEqual(len(numbers[1].tokens), len(numbers[0].tokens) + 5)
        self.assertEqual(numbers[1].token_logprobs[:-5], numbers[0].token_logprobs)
        self.assertIsNone(numbers[0].token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in numbers[0].token_logprobs[1:]))
        self.assertEqual("".join(numbers[0].tokens[-2:]), prompt[numbers[0].text_offset[-2]:])

    def test_several_prompts(self):
        prompts = ["Once upon a time", "In the beginning"]
        answer = self.complete(prompt=prompts)
        self.assertEqual([c.text for c in answer.choices], [self.complete(prompt=p).choices[0].text for p in prompts])

    def test_chat_logprobs(self):
        fields = {"logprobs": True, "top_logprobs": 3, "temperature": 0, "extra_body": {"ignore_eos": True}}
        answer = self.chat(**fields)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 20)
        for entry in content:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.logprob, entry.top_logprobs[0].logprob)  # temperature 0 takes the likeliest
            self.assertEqual(entry.token, entry.top_logprobs[0].token)
            self.assertEqual(sorted((t.logprob for t in entry.top_logprobs), reverse=True), [t.logprob for t in entry.top_logprobs])
            self.assertLess(sum(math.exp(t.logprob) for t in entry.top_logprobs), 1.0001)
        spelt = b"".join(bytes(entry.bytes) for entry in content)
        self.assertEqual(spelt.decode(errors="ignore"), answer.choices[0].message.content.replace("\ufffd", ""))
        chunks = [c for chunk in self.streamed(**fields) for c in chunk.choices]
        self.assertEqual([e for c in chunks if c.logprobs for e in c.logprobs.content], content)
        self.assertIsNone(self.chat().choices[0].logprobs)

    def test_several_choices(self):
        answer = self.chat(n=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        texts = [c.message.content for c in answer.choices]
        self.assertEqual(texts, [self.chat(seed=7 + i).choices[0].message.content for i in range(2)])
        self.assertNotEqual(*texts)
        parts = ["", ""]
        for chunk in self.streamed(n=2):
            for choice in chunk.choices:
                parts[choice.index] += choice.delta.content or ""
        self.assertEqual(parts, texts)

    def test_seeds(self):
        text = self.chat(seed=3).choices[0].message.content
        self.assertEqual(self.chat(seed=3).choices[0].message.content, text)
        self.assertNotEqual(self.chat(seed=4).choices[0].message.content, text)

    def test_stop_and_bias(self):
        fields = {"temperature": 0, "max_tokens": 30, "extra_body": {"ignore_eos": True}}
        text = self.complete(**fields).choices[0].text
        stop = text[10:13]
        stopped = self.complete(**fields, stop=["no such text", stop]).choices[0]
        self.assertEqual((stopped.text, stopped.finish_reason), (text[:text.index(stop)], "stop"))
        letter = str(self.server.tokens_of("x")[0])
        self.assertEqual(self.complete(**fields | {"max_tokens": 3}, logit_bias={letter: 100}).choices[0].text, "xxx")

    def call_of(self, answer):
        choice = answer.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        (call,) = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.assertTrue(call.id)
        Weather.model_validate_json(call.function.arguments)
        return call

    def test_tools(self):
        fields = {"tools": [bed.WEATHER_TOOL], "max_tokens": 200}
        answer = self.chat(**fields, tool_choice="required")
        call = self.call_of(answer)
        named = {"type": "function", "function": {"name": "get_weather"}}
        self.call_of(self.chat(**fields, tool_choice=named))
        turns = USER + [answer.choices[0].message.to_dict(),
                        {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"sky": "blue"})}]
        after = self.chat(messages=turns, **fields, tool_choice="none").choices[0]
        self.assertFalse(after.message.tool_calls)
        self.assertIn(after.finish_reason, ("stop", "length"))

    def test_tools_in_a_stream(self):
        fields = {"tools": [bed.WEATHER_TOOL], "max_tokens": 200, "tool_choice": "required"}
        name, written, reasons = "", "", []
        for chunk in self.streamed(**fields):
            for choice in chunk.choices:
                reasons.append(choice.finish_reason)
                for part in choice.delta.tool_calls or []:
                    self.assertEqual(part.index, 0)
                    name += part.function.name or ""
                    written += part.function.arguments or ""
        self.assertEqual((name, reasons[-1]), ("get_weather", "tool_calls"))
        self.assertEqual(json.loads(written), json.loads(self.call_of(self.chat(**fields)).function.arguments))

    def test_structured_output(self):
        fields = {"model": "tiny", "messages": USER, "max_tokens": 200, "seed": 7, "response_format": Weather}
        parsed = self.client.chat.completions.parse(**fields)
        self.assertIsInstance(parsed.choices[0].message.parsed, Weather)
        self.assertEqual(parsed.choices[0].finish_reason, "stop")
        plain = self.client.chat.completions.parse(**fields, extra_body={"speculate": False})
        self.assertEqual(plain.choices[0].message.content, parsed.choices[0].message.content)
        seen = {str(self.client.chat.completions.parse(**fields | {"seed": s}, temperature=2).choices[0].message.parsed)
                for s in range(12)}
        self.assertGreater(len(seen), 1, seen)  # the schema leaves a choice, and the dice take it

    def test_json_object(self):
        # A random model does not close its braces in time; what it writes must begin a JSON object all the same.
        for seed in range(3):
            choice = self.chat(response_format={"type": "json_object"}, max_tokens=60, seed=seed).choices[0]
            self.assertTrue(choice.message.content.lstrip().startswith("{"), choice.message.content)
            if choice.finish_reason == "stop":
                self.assertIsInstance(json.loads(choice.message.content), dict)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=3)
        self.assertEqual((caught.exception.param, caught.exception.type), ("temperature", "invalid_request_error"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt="word " * 3000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("none such")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(stream=True, messages=[])
        self.assertEqual(caught.exception.param, "messages")
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format=schema)
        self.assertEqual(caught.exception.param, "response_format")

    def test_cancel_of_a_stream(self):
        with self.chat(stream=True, **bed.LONG) as stream:
            next(stream), next(stream)
            self.server.wait_until("running", lambda: self.server.running() == 1)
        self.server.wait_until("given up", lambda: self.server.running() == 0)

    def test_cancel_of_a_task(self):
        async def begin_and_cancel():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
                task = asyncio.create_task(client.chat.completions.create(model="tiny", messages=USER, **bed.LONG))
                while self.server.running() == 0:
                    await asyncio.sleep(0.02)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
        asyncio.run(begin_and_cancel())
        self.server.wait_until("given up", lambda: self.server.running() == 0)


class Doors(unittest.TestCase):
    def test_key(self):
        with bed.tiny_server(key="secret") as server:
            with self.assertRaises(openai.AuthenticationError) as caught:
                client_of(server, api_key="wrong").models.list()
            self.assertEqual(caught.exception.code, "invalid_api_key")
            self.assertEqual([m.id for m in client_of(server, api_key="secret").models.list()], ["tiny"])

    def test_full_queue(self):
        with bed.tiny_server("--parallel", "1", "--queue", "1", context=100_000) as server:
            client = client_of(server)

            def begin():
                return client.completions.create(model="tiny", prompt="Hi", stream=True, **bed.LONG)
            with begin() as first:
                next(first)
                server.wait_until("running", lambda: server.running() == 1)
                with begin():
                    server.wait_until("waiting", lambda: server.waiting() == 1)
                    with self.assertRaises(openai.RateLimitError) as caught:
                        client.completions.create(model="tiny", prompt="Hi")
                    self.assertGreaterEqual(int(caught.exception.response.headers["Retry-After"]), 1)
            server.wait_until_idle()
            self.assertTrue(client.completions.create(model="tiny", prompt="Hi").choices)


@bed.needs_model
class RealModel(bed.Bed):
    """What a random model cannot show."""

    @classmethod
    def start(cls):
        return bed.real_server()

    def test_sense(self):
        client = client_of(self.server)
        ask = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
        answer = client.chat.completions.create(model="small", messages=ask, temperature=0, max_tokens=20)
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        ask[0]["content"] = "How is the weather in Paris?"
        answer = client.chat.completions.create(model="small", messages=ask, temperature=0, max_tokens=60, tool_choice="required",
                                                tools=[bed.WEATHER_TOOL])
        self.assertEqual(json.loads(answer.choices[0].message.tool_calls[0].function.arguments)["city"], "Paris")
        answer = client.chat.completions.create(model="small", messages=ask, temperature=0, max_tokens=200,
                                                response_format={"type": "json_object"})
        self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)


if __name__ == "__main__":
    bed.main()
