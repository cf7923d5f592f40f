"""Conversations of agents: the packages of Anthropic, OpenAI (Responses), Ollama, LangChain and instructor against one server,
each with a second turn, tools, streams and errors."""
import json
import typing
import unittest

import anthropic
import bed
import instructor
import ollama
import openai
import pydantic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

ENDLESS = {"ignore_eos": True, "seed": 7}
TOOL = {"name": "get_weather", "description": "The weather of a city", "input_schema": bed.WEATHER}
FUNCTION = {"type": "function", "name": "get_weather", "description": "The weather of a city", "parameters": bed.WEATHER}


class Anthropic(bed.Bed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="none", max_retries=0)

    def ask(self, **fields):
        fields = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "Tea?"}], "extra_body": ENDLESS} | fields
        return self.client.messages.create(**fields)

    def test_message_and_second_turn(self):
        first = self.ask(system=[{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}])
        self.assertEqual((first.type, first.role, first.stop_reason), ("message", "assistant", "max_tokens"))
        self.assertEqual(first.usage.output_tokens, 20)
        turns = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": first.content},
                 {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "coffee?"}]}]
        second = self.ask(system="Be short.", messages=turns)
        self.assertGreater(second.usage.cache_read_input_tokens, 0)
        counted = self.client.messages.count_tokens(model="tiny", system="Be short.", messages=turns).input_tokens
        self.assertEqual(counted, second.usage.input_tokens + second.usage.cache_read_input_tokens)

    def test_same_text_as_a_chat(self):
        chat = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tea?"}], "max_tokens": 20, **ENDLESS})
        self.assertEqual(self.ask().content[0].text, chat["choices"][0]["message"]["content"])

    def test_stream(self):
        whole = self.ask().content[0].text
        with self.client.messages.stream(model="tiny", max_tokens=20, messages=[{"role": "user", "content": "Tea?"}], extra_body=ENDLESS) as stream:
            names = [event.type for event in stream]
            last = stream.get_final_message()
        self.assertEqual((names[0], names[-1]), ("message_start", "message_stop"))
        self.assertEqual(last.content[0].text, whole)
        self.assertEqual((last.stop_reason, last.usage.output_tokens), ("max_tokens", 20))
        raw = self.client.messages.with_raw_response.create(model="tiny", max_tokens=2, messages=[{"role": "user", "content": "a"}])
        self.assertTrue(raw.headers["x-request-id"])

    def test_stop_sequence(self):
        stopped = self.ask(max_tokens=60, stop_sequences=["two"], extra_body={"grammar": 'root ::= "one two three"'})
        self.assertEqual((stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence), ("one ", "stop_sequence", "two"))

    def test_tools(self):
        fields = {"tools": [TOOL], "max_tokens": 200, "extra_body": {"seed": 7}}
        answer = self.ask(**fields, tool_choice={"type": "any"})
        self.assertEqual(answer.stop_reason, "tool_use")
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        self.assertEqual(call.name, "get_weather")
        self.assertIn(call.input["city"], bed.CITIES)
        turns = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": answer.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]},
                                              {"type": "text", "text": "Well?"}]}]
        self.assertIn(self.ask(messages=turns, tools=[TOOL], tool_choice={"type": "none"}).stop_reason, ("max_tokens", "end_turn"))
        with self.client.messages.stream(model="tiny", messages=turns[:1], **fields, tool_choice={"type": "tool", "name": "get_weather"}) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            last = stream.get_final_message()
        self.assertEqual(last.content[-1].input, json.loads("".join(pieces)))
        self.assertIn(last.content[-1].input["city"], bed.CITIES)

    def test_prefill(self):
        turns = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes, with"}]
        prompt = self.server.post("/apply-template", {"messages": turns})["prompt"]
        self.assertTrue(prompt.endswith("Yes, with"), prompt)
        text = self.server.post("/v1/completions", {"prompt": self.server.post("/tokenize", {"content": prompt})["tokens"], "max_tokens": 20,
                                                    **ENDLESS})["choices"][0]["text"]
        self.assertEqual(self.ask(messages=turns).content[0].text, text)

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask(messages=[{"role": "user", "content": "word " * 3000}])
        self.assertIn("prompt is too long", str(caught.exception))
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        for wrong in ({"max_tokens": 0}, {"extra_body": {"temperature": 2}}, {"extra_body": {"unheard_of": 1}}, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
                      {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]}):
            with self.assertRaises(anthropic.BadRequestError, msg=str(wrong)):
                self.ask(**wrong)

    def test_cancel(self):
        stream = self.ask(max_tokens=100_000, stream=True)
        next(iter(stream))
        self.server.wait_until("running", lambda: self.server.running() == 1)
        stream.close()
        self.server.wait_until("given up", lambda: self.server.running() == 0)


class Responses(bed.Bed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    def ask(self, **fields):
        return self.client.responses.create(**{"model": "tiny", "input": "Tea?", "max_output_tokens": 20, "extra_body": ENDLESS} | fields)

    def test_turns(self):
        first = self.ask()
        self.assertEqual((first.status, first.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        chat = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tea?"}], "max_tokens": 20, **ENDLESS})
        self.assertEqual(first.output_text, chat["choices"][0]["message"]["content"])
        second = self.ask(input="And coffee?", previous_response_id=first.id)
        given = self.ask(input=[{"role": "user", "content": "Tea?"}, *[item.model_dump(exclude_none=True) for item in first.output],
                                {"role": "user", "content": [{"type": "input_text", "text": "And coffee?"}]}])
        self.assertEqual(second.output_text, given.output_text)
        self.assertGreater(second.usage.input_tokens_details.cached_tokens, 0)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, first.output_text)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(previous_response_id=first.id)
        self.assertEqual(caught.exception.code, "previous_response_not_found")
        unkept = self.ask(store=False)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(unkept.id)

    def test_stream(self):
        whole = self.ask().output_text
        with self.client.responses.stream(model="tiny", input="Tea?", max_output_tokens=20, extra_body=ENDLESS) as stream:
            events = list(stream)
        names = [event.type for event in events]
        self.assertEqual(names[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual(names[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"])
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"), whole)
        self.assertEqual(events[-1].response.output_text, whole)

    def test_tools(self):
        fields = {"tools": [FUNCTION], "max_output_tokens": 200, "extra_body": {"seed": 7}}
        answer = self.ask(**fields, tool_choice="required", instructions="Call.")
        (call,) = answer.output
        self.assertEqual((answer.status, call.type, call.name), ("completed", "function_call", "get_weather"))
        self.assertIn(json.loads(call.arguments)["city"], bed.CITIES)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        self.assertTrue(self.ask(previous_response_id=answer.id, input=[result], **fields, tool_choice="none").id)
        events = list(self.ask(**fields, stream=True, tool_choice={"type": "function", "name": "get_weather"}))
        pieces = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
        self.assertEqual(events[-1].response.output[0].arguments, pieces)
        self.assertIn(json.loads(pieces)["city"], bed.CITIES)

    def test_schema(self):
        form = {"format": {"type": "json_schema", "name": "weather", "schema": bed.WEATHER, "strict": True}}
        answer = self.ask(text=form, max_output_tokens=200, extra_body={"seed": 7})
        self.assertIn(json.loads(answer.output_text)["city"], bed.CITIES)

    def test_errors(self):
        for wrong in ({"extra_body": {"unheard_of": 1}}, {"background": True}, {"tools": [{"type": "web_search"}]}, {"truncation": "auto"},
                      {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]}):
            with self.assertRaises(openai.BadRequestError, msg=str(wrong)):
                self.ask(**wrong)


class Keys(unittest.TestCase):
    def test_answers_of_other_keys(self):
        with bed.tiny_server("--api-key", "one", "--api-key", "two") as server:
            one, two = (openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) for key in ("one", "two"))
            kept = one.responses.create(model="tiny", input="Tea?", max_output_tokens=4)
            self.assertEqual(one.responses.retrieve(kept.id).id, kept.id)
            for action in (lambda: two.responses.retrieve(kept.id), lambda: two.responses.delete(kept.id)):
                self.assertRaises(openai.NotFoundError, action)
            with self.assertRaises(openai.BadRequestError):
                two.responses.create(model="tiny", input="More", previous_response_id=kept.id)
            wrong = anthropic.Anthropic(base_url=server.url, api_key="three", max_retries=0)
            with self.assertRaises(anthropic.AuthenticationError) as caught:
                wrong.messages.create(model="tiny", max_tokens=2, messages=[{"role": "user", "content": "a"}])
            self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")


class Ollama(bed.Bed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = ollama.Client(host=cls.server.url)

    def ask(self, **fields):
        return self.client.chat(**{"model": "tiny", "messages": [{"role": "user", "content": "Tea?"}], "options": {"num_predict": 20, **ENDLESS}} | fields)

    def test_chat(self):
        whole = self.ask()
        self.assertEqual((whole.done, whole.done_reason, whole.eval_count), (True, "length", 20))
        pieces = list(self.ask(stream=True))
        self.assertEqual("".join(piece.message.content for piece in pieces), whole.message.content)
        self.assertEqual([piece.done for piece in pieces][-2:], [False, True])
        turns = [{"role": "user", "content": "Tea?"}, whole.message, {"role": "user", "content": "And coffee?"}]
        self.assertTrue(self.ask(messages=turns).done)

    def test_generate(self):
        fields = {"model": "tiny", "prompt": "Once upon", "options": {"num_predict": 12, "temperature": 0, "ignore_eos": True}}
        raw = self.client.generate(**fields, raw=True)
        self.assertEqual(raw.response, self.server.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 12, "temperature": 0,
                                                                            "ignore_eos": True})["choices"][0]["text"])
        self.assertEqual("".join(piece.response for piece in self.client.generate(**fields, system="Short.", stream=True)),
                         self.client.generate(**fields, system="Short.").response)
        self.assertEqual(self.client.generate(model="tiny", prompt="").done_reason, "load")

    def test_format_and_tools(self):
        options = {"num_predict": 200, "seed": 7}
        self.assertIn(json.loads(self.ask(format=bed.WEATHER, options=options).message.content)["city"], bed.CITIES)
        call = {"function": {"name": "get_weather", "arguments": {"city": "Paris", "celsius": True}}}
        turns = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": [call]},
                 {"role": "tool", "tool_name": "get_weather", "content": "rain"}]
        self.assertTrue(self.ask(messages=turns, tools=[bed.WEATHER_TOOL]).done)

    def test_model_and_errors(self):
        self.assertEqual([model.model for model in self.client.list().models], ["tiny"])
        self.assertIn("completion", self.client.show("tiny").capabilities)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.ask(options={"temperature": "hot"})
        self.assertEqual(caught.exception.status_code, 400)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.embed("tiny", "text")
        self.assertEqual(caught.exception.status_code, 501)


class LangChain(bed.Bed):
    def model(self, **fields):
        return ChatOpenAI(model="tiny", base_url=self.server.url + "/v1", api_key="none", max_retries=0, seed=7, max_tokens=200, **fields)

    def test_chat_and_tools(self):
        for responses in (False, True):
            fields = {"use_responses_api": True, "seed": None} if responses else {}
            model = ChatOpenAI(**{"model": "tiny", "base_url": self.server.url + "/v1", "api_key": "none", "max_retries": 0, "seed": 7,
                                  "max_tokens": 200} | fields)
            tools = model.bind_tools([bed.WEATHER_TOOL], tool_choice="required")
            answer = tools.invoke([HumanMessage("Weather?")])
            (call,) = answer.tool_calls
            self.assertIn(call["args"]["city"], bed.CITIES)
            turns = [HumanMessage("Weather?"), answer, ToolMessage("rain", tool_call_id=call["id"])]
            self.assertIsNotNone(model.bind(max_tokens=8).invoke(turns).content)
            merged = None
            for chunk in tools.stream([HumanMessage("Weather?")]):
                merged = chunk if merged is None else merged + chunk
            self.assertIn(merged.tool_calls[0]["args"]["city"], bed.CITIES)


class Weather(pydantic.BaseModel):
    city: str = pydantic.Field(json_schema_extra={"enum": bed.CITIES})
    celsius: bool


class Week(Weather):  # long enough that it cannot come in one piece
    hours: list[typing.Literal["sun", "rain", "snow"]] = pydantic.Field(min_length=168, max_length=168)


class Instructor(bed.Bed):
    @classmethod
    def start(cls):
        return bed.tiny_server(*cls.flags, context=16000)

    def test_modes(self):
        raw = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.RESPONSES_TOOLS):
            with self.subTest(mode):
                client = instructor.from_openai(raw, mode=mode)
                fields = {"model": "tiny", "response_model": Week, "max_retries": 0, "temperature": 0}
                turns = [{"role": "user", "content": "Weather?"}]
                said = client.chat.completions.create(messages=turns, **fields)
                self.assertIn(said.city, bed.CITIES)
                self.assertEqual(len(said.hours), 168)
                pieces = list(client.chat.completions.create_partial(messages=turns, **fields))
                lengths = [len(piece.hours or []) for piece in pieces]
                self.assertGreater(len(pieces), 1)
                self.assertEqual(lengths, sorted(lengths))
                self.assertEqual((pieces[-1].city in bed.CITIES, lengths[-1]), (True, 168))
                turns.append({"role": "assistant", "content": said.model_dump_json()})
                turns.append({"role": "user", "content": "And tomorrow?"})
                self.assertIn(client.chat.completions.create(messages=turns, **fields).city, bed.CITIES)

    def test_anthropic(self):
        client = instructor.from_anthropic(anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0))
        said = client.messages.create(model="tiny", max_tokens=200, response_model=Weather, max_retries=0, messages=[{"role": "user", "content": "Weather?"}])
        self.assertIn(said.city, bed.CITIES)


if __name__ == "__main__":
    bed.main()
