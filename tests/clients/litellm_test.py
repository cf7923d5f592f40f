"""A conversation with the `litellm` package, which many proxies and agents speak through."""
import asyncio
import json
import unittest

import bed
import litellm

USER = [{"role": "user", "content": "Tea?"}]


def ask(server, **fields):
    fields = {"model": "openai/tiny", "messages": USER, "max_tokens": 20, "seed": 7, "api_base": server.url + "/v1",
              "api_key": "none", "num_retries": 0, "max_retries": 0, "timeout": 600} | fields
    return litellm.completion(**fields)


class Conversation(bed.Bed):
    def ask(self, **fields):
        return ask(self.server, **fields)

    def test_completion_and_second_turn(self):
        first = self.ask(extra_body={"ignore_eos": True})
        message = first.choices[0].message
        self.assertEqual((message.role, first.choices[0].finish_reason), ("assistant", "length"))
        self.assertEqual(first.usage.completion_tokens, 20)
        turns = USER + [{"role": "assistant", "content": message.content}, {"role": "user", "content": "And coffee?"}]
        second = self.ask(messages=turns)
        self.assertGreater(second.usage.prompt_tokens, first.usage.prompt_tokens)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 0)

    def test_text_completion(self):
        answer = litellm.text_completion(model="text-completion-openai/tiny", prompt="Once upon", max_tokens=12, seed=7,
                                         api_base=self.server.url + "/v1", api_key="none", extra_body={"ignore_eos": True})
        self.assertEqual(answer.choices[0].text, self.server.post("/v1/completions", {
            "prompt": "Once upon", "max_tokens": 12, "seed": 7, "ignore_eos": True})["choices"][0]["text"])

    def test_stream(self):
        whole = self.ask(extra_body={"ignore_eos": True}).choices[0].message.content
        chunks = list(self.ask(stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole)
        self.assertEqual([c.usage.completion_tokens for c in chunks if getattr(c, "usage", None)], [20])
        self.assertEqual(litellm.stream_chunk_builder(chunks).choices[0].message.content, whole)

    def test_tools(self):
        fields = {"tools": [bed.WEATHER_TOOL], "max_tokens": 200}
        answer = self.ask(**fields, tool_choice="required")
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        (call,) = answer.choices[0].message.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        self.assertIn(json.loads(call.function.arguments)["city"], bed.CITIES)
        turns = USER + [answer.choices[0].message.model_dump(exclude_none=True),
                        {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        self.assertFalse(self.ask(messages=turns, **fields, tool_choice="none").choices[0].message.tool_calls)
        built = litellm.stream_chunk_builder(list(self.ask(**fields, tool_choice="required", stream=True)))
        self.assertEqual(built.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)

    def test_schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": bed.WEATHER, "strict": True}}
        answer = json.loads(self.ask(response_format=form, max_tokens=200).choices[0].message.content)
        self.assertEqual(set(answer), {"city", "celsius"})
        self.assertIn(answer["city"], bed.CITIES)
        self.assertIsInstance(answer["celsius"], bool)

    def test_logprobs(self):
        answer = self.ask(logprobs=True, top_logprobs=2, temperature=0, extra_body={"ignore_eos": True})
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 20)
        self.assertTrue(all(e.logprob == e.top_logprobs[0].logprob >= e.top_logprobs[1].logprob for e in content))

    def test_errors(self):
        with self.assertRaises(litellm.BadRequestError):
            self.ask(temperature=3)
        with self.assertRaises(litellm.BadRequestError) as caught:
            self.ask(messages=[{"role": "user", "content": "word " * 3000}])
        self.assertIsInstance(caught.exception, litellm.ContextWindowExceededError)

    def test_other_protocols(self):
        """The same text through Anthropic's Messages and OpenAI's Responses, a call through each."""
        fields = {"messages": USER, "max_tokens": 20, "api_key": "none", "num_retries": 0, "temperature": 0, "ignore_eos": True}
        whole = self.ask(temperature=0, extra_body={"ignore_eos": True}).choices[0].message.content
        said = litellm.completion(model="anthropic/tiny", api_base=self.server.url, **fields)
        self.assertEqual((said.choices[0].message.content, said.choices[0].finish_reason), (whole, "length"))
        chunks = litellm.completion(model="anthropic/tiny", api_base=self.server.url, stream=True, **fields)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), whole)
        called = litellm.completion(model="anthropic/tiny", api_base=self.server.url, tools=[bed.WEATHER_TOOL], tool_choice="required",
                                    **fields | {"max_tokens": 200, "ignore_eos": False})
        self.assertIn(json.loads(called.choices[0].message.tool_calls[0].function.arguments)["city"], bed.CITIES)
        answer = litellm.responses(model="openai/tiny", input="Tea?", max_output_tokens=20, api_base=self.server.url + "/v1", api_key="none",
                                   temperature=0, extra_body={"ignore_eos": True})
        self.assertEqual(answer.output[0].content[0].text, whole)

    def test_cancel(self):
        stream = self.ask(stream=True, **bed.LONG)
        next(stream), next(stream)
        self.server.wait_until("running", lambda: self.server.running() == 1)
        stream.completion_stream.close()
        self.server.wait_until("given up", lambda: self.server.running() == 0)

    def test_cancel_of_a_task(self):
        async def begin_and_cancel():
            task = asyncio.create_task(litellm.acompletion(model="openai/tiny", messages=USER, api_base=self.server.url + "/v1",
                                                           api_key="none", num_retries=0, **bed.LONG))
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
            with self.assertRaises(litellm.AuthenticationError):
                ask(server, api_key="wrong")
            self.assertTrue(ask(server, api_key="secret").choices)

    def test_full_queue(self):
        with bed.tiny_server("--parallel", "1", "--queue", "1", context=100_000) as server:
            first = ask(server, stream=True, **bed.LONG)
            next(first)
            server.wait_until("running", lambda: server.running() == 1)
            second = ask(server, stream=True, **bed.LONG)
            server.wait_until("waiting", lambda: server.waiting() == 1)
            with self.assertRaises(litellm.RateLimitError):
                ask(server)
            first.completion_stream.close()
            second.completion_stream.close()
            server.wait_until_idle()


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    bed.main()
