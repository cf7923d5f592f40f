"""An agent harness of other people, smolagents, with tools: steps of calls and their results until an answer, whole and streamed."""
import contextlib
import io

import bed
from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent
from smolagents.agents import ActionStep
from smolagents.models import ChatMessageStreamDelta

ANSWERS = ["warm", "cold"]


class Weather(Tool):
    name = "get_weather"
    description = "The weather of a city"
    inputs = {"city": {"type": "string", "description": "its name", "enum": bed.CITIES}}
    output_type = "string"

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, city):
        self.asked.append(city)
        return f"It is warm in {city}."


class Answer(Tool):  # a random model would write an endless text into the harness's own
    name = "final_answer"
    description = "Ends the task"
    inputs = {"answer": {"type": "string", "description": "the answer", "enum": ANSWERS}}
    output_type = "string"

    def forward(self, answer):
        return answer


class Harness(bed.Bed):
    SEEDS = range(8)

    @classmethod
    def start(cls):
        return bed.tiny_server(*cls.flags, context=30000)

    def work(self, seed, streamed):
        """The answer, the first call, the cities asked for, and the pieces of the stream."""
        model = OpenAIModel("tiny", api_base=self.server.url + "/v1", api_key="none", seed=seed, temperature=1.0, max_tokens=200)
        weather = Weather()
        agent = ToolCallingAgent([weather, Answer()], model, stream_outputs=streamed, max_steps=60, verbosity_level=LogLevel.OFF)
        with contextlib.redirect_stdout(io.StringIO()):
            pieces = list(agent.run("Is it warm in Oslo?", stream=True))
        steps = [step for step in agent.memory.steps if isinstance(step, ActionStep)]
        for step in steps:
            self.assertIsNone(step.error, step.error)
            self.assertGreater(step.token_usage.output_tokens, 0)
        first = steps[0].tool_calls[0]
        return pieces[-1].output, (first.name, first.arguments), weather.asked, pieces

    def test_tasks(self):
        used = calls = told = 0
        for seed in self.SEEDS:
            answer, first, asked, _ = self.work(seed, False)
            self.assertIn(answer, ANSWERS)
            self.assertTrue(set(asked) <= set(bed.CITIES), asked)
            again, same, asked_again, pieces = self.work(seed, True)
            self.assertIn(again, ANSWERS)
            self.assertEqual(same, first)  # later ones follow upon the calls' ids, which are new each time
            deltas = [piece for piece in pieces if isinstance(piece, ChatMessageStreamDelta)]
            told += sum(bool(call.function.arguments) for delta in deltas for call in delta.tool_calls or [])
            calls += len(asked_again) + 1
            used += len(asked) + len(asked_again)
        self.assertGreater(used, 0, "no tool was used")
        self.assertGreater(told, calls, "arguments came whole")


if __name__ == "__main__":
    bed.main()
