"""A conversation with `llm`, the command line program and its library, through its file of OpenAI-compatible models."""
import json
import os
import pathlib
import subprocess
import sys

import bed
import llm

FOLDER = pathlib.Path(bed.FOLDER.name)
OPTIONS = {"max_tokens": 20, "seed": 7}
# The program in a process of its own, behind the same fence as the library here. What leaves is seen by its exit status.
COMMAND = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from fence import stay_on_this_machine
stay_on_this_machine(fatal=True)
from llm.cli import cli
cli()
"""


def models_file(server):
    rows = [{"model_id": name, "model_name": "tiny", "api_base": address, "supports_schema": True, "supports_tools": True, **more}
            for name, address, more in (("tiny", server.url + "/v1", {}), ("tiny-completion", server.url + "/v1", {"completion": True}),
                                        ("nowhere", server.url + "/nowhere", {}))]
    (FOLDER / "extra-openai-models.yaml").write_text(json.dumps(rows))  # JSON is YAML


class Conversation(bed.Bed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        models_file(cls.server)

    def chat(self, text, **fields):
        return self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **OPTIONS, **fields}
                                )["choices"][0]["message"]["content"]

    def run_llm(self, *arguments, status=0):
        done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, timeout=300,
                              stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONIOENCODING": "utf-8:replace"})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def test_prompt(self):
        response = llm.get_model("tiny").prompt("Tea?", stream=False, **OPTIONS)
        self.assertEqual(response.text(), self.chat("Tea?"))
        self.assertGreater(response.usage().output, 0)

    def test_stream(self):
        response = llm.get_model("tiny").prompt("Tea?", stream=True, **OPTIONS)
        self.assertEqual("".join(response), self.chat("Tea?"))

    def test_completion_model(self):
        text = llm.get_model("tiny-completion").prompt("Once upon", stream=False, **OPTIONS).text()
        self.assertEqual(text, self.server.post("/v1/completions", {"prompt": "Once upon", **OPTIONS})["choices"][0]["text"])

    def test_second_turn(self):
        conversation = llm.get_model("tiny").conversation()
        first = conversation.prompt("Tea?", stream=False, **OPTIONS).text()
        second = conversation.prompt("And coffee?", stream=False, **OPTIONS).text()
        turns = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": first},
                 {"role": "user", "content": "And coffee?"}]
        answer = self.server.post("/v1/chat/completions", {"messages": turns, **OPTIONS})
        self.assertEqual(second, answer["choices"][0]["message"]["content"])

    def test_schema(self):
        response = llm.get_model("tiny").prompt("Weather?", schema=bed.WEATHER, stream=False, max_tokens=200, seed=7)
        self.assertIn(json.loads(response.text())["city"], bed.CITIES)

    def test_tools(self):
        called = []

        def get_weather(city: str) -> str:
            """The weather of a city"""
            called.append(city)
            return "rain"

        # llm leaves the choice to the model, so a random one need not call; that the exchange goes through is what counts.
        tool = llm.Tool.function(get_weather)
        text = llm.get_model("tiny").chain("Weather?", tools=[tool], options=dict(OPTIONS)).text()
        self.assertIsInstance(text, str)
        result = llm.ToolResult(name="get_weather", output="rain", tool_call_id="call_1")
        conversation = llm.get_model("tiny").conversation(tools=[tool])
        self.assertIsInstance(conversation.prompt("Weather?", tool_results=[result], stream=False, **OPTIONS).text(), str)

    def test_errors(self):
        with self.assertRaises(Exception) as caught:
            llm.get_model("tiny").prompt("word " * 3000, stream=False).text()
        self.assertIn("context_length_exceeded", str(caught.exception))
        with self.assertRaises(Exception) as caught:
            llm.get_model("nowhere").prompt("Tea?", stream=False).text()
        self.assertIn("404", str(caught.exception))

    def test_cancel(self):
        # llm caps nothing by itself: a text without end, left in the middle.
        response = llm.get_model("tiny").prompt("Tea?", stream=True, max_tokens=100_000, logit_bias={"0": -100, "2": -100})
        pieces = iter(response)
        next(pieces)
        self.server.wait_until("running", lambda: self.server.running() == 1)
        pieces.close()
        del pieces, response
        self.server.wait_until("given up", lambda: self.server.running() == 0)

    def test_program(self):
        flags = ("-m", "tiny", "-o", "max_tokens", "20", "-o", "seed", "7")
        said = self.run_llm("prompt", *flags, "--no-stream", "Tea?").stdout
        self.assertEqual(said.rstrip("\n"), self.chat("Tea?").rstrip("\n"))
        streamed = self.run_llm("prompt", *flags, "-c", "And coffee?").stdout  # goes on with the conversation it has logged
        self.assertTrue(streamed.strip())
        logged = json.loads(self.run_llm("logs", "list", "--json", "-n", "2").stdout)
        self.assertEqual(len({entry["conversation_id"] for entry in logged}), 1)
        answer = self.run_llm("prompt", "-m", "tiny", "-o", "max_tokens", "200", "--no-stream", "--schema", json.dumps(bed.WEATHER), "Go")
        self.assertIn(json.loads(answer.stdout)["city"], bed.CITIES)
        self.assertIn("temperature", self.run_llm("prompt", "-m", "tiny", "-o", "temperature", "3", "Go", status=1).stderr)


if __name__ == "__main__":
    bed.main()
