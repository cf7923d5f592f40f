"""Random calls of the package, from threads, event loops and batches, some of them cancelled: every answer has the bytes and tokens of
the program's, which runs without speculation. 100 drawn cases make 1,290 calls here; SX_RANDOM_CALLS draws more."""
import asyncio
import concurrent.futures
import os
import random
import unittest

import bed
from specextend import LLM

REFERENCES = int(os.environ.get("SX_RANDOM_CALLS", "100"))
WORDS = ["A fox", ", a dog", " and", " the", " river", " one two", " three", "\n", " 1 2 3", " é", " {\"a\": ", "."]
GRAMMARS = ['root ::= [a-z ]+ "." ', 'root ::= ("yes" | "no") " " [0-9]+', 'root ::= (" fox" | " dog" | ",")*']
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def random_case(rng):
    keywords = {"max_tokens": rng.choice([1, 5, 16, 24, 40]), "seed": rng.randrange(2**63)}
    if rng.random() < 0.6:
        keywords["temperature"] = rng.choice([0.5, 0.8, 1.0, 1.5])
        keywords["top_k"] = rng.choice([0, 5, 40])
        keywords["top_p"] = rng.choice([0.5, 0.95, 1.0])
        keywords["min_p"] = rng.choice([0.0, 0.05])
    if rng.random() < 0.3:
        keywords["repeat_penalty"], keywords["repeat_last_n"] = 1.25, rng.choice([-1, 8])
    if rng.random() < 0.2:
        keywords["presence_penalty"], keywords["frequency_penalty"] = 0.5, 0.25
    if rng.random() < 0.2:
        keywords["logit_bias"] = {rng.randrange(100): 2.5}
    if rng.random() < 0.3:
        keywords["stop"] = rng.sample(["e", " a", "fox", "x", "\n"], 2)
    if rng.random() < 0.5:
        keywords["ignore_end"] = True
    kind = rng.random()
    if kind < 0.15:
        keywords["grammar"] = rng.choice(GRAMMARS)
    elif kind < 0.25:
        keywords["schema"] = SCHEMA
    prompt = "".join(rng.choices(WORDS, k=rng.randrange(1, 30)))
    return prompt, keywords


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        rng = random.Random(29)
        cls.cases = [random_case(rng) for _ in range(REFERENCES)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            cls.expected = list(pool.map(lambda case: bed.program(case[0], **case[1]), cls.cases))
        cls.llm = LLM(bed.tiny_model(), spec="sd:cost-model=off", draft_model=bed.tiny_model(), device="cpu", parallel=3)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def same(self, result, expected):
        self.assertEqual(result.text.encode(), expected["text"].encode())
        self.assertEqual(result.tokens, expected["tokens"])
        self.assertEqual(result.finish_reason, expected["finish_reason"])
        self.assertEqual(len(result.depths), len(result.tokens))

    def all(self):
        return zip(self.cases, self.expected)

    def test_generate(self):
        drafted = 0
        for (prompt, keywords), expected in self.all():
            result = self.llm.generate(prompt, **keywords)
            self.same(result, expected)
            drafted += sum(depth > 0 for depth in result.depths)
        self.assertGreater(drafted, 100)  # the draft is the target itself

    def test_without_speculation(self):
        for (prompt, keywords), expected in self.all():
            result = self.llm.generate(prompt, speculate=False, **keywords)
            self.same(result, expected)
            self.assertEqual(sum(result.depths), 0)

    def test_stream(self):
        for (prompt, keywords), expected in self.all():
            stream = self.llm.stream(prompt, **keywords)
            pieces = list(stream)
            self.assertEqual("".join(pieces), expected["text"])
            self.assertEqual([info.token for piece in pieces for info in piece.tokens], expected["tokens"])
            self.same(stream.result, expected)

    def test_result_before_pieces(self):
        for (prompt, keywords), expected in list(self.all())[:20]:
            stream = self.llm.stream(prompt, **keywords)
            self.same(stream.result, expected)
            self.assertEqual("".join(stream), expected["text"])

    def test_threads(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            waiting = [(pool.submit(self.llm.generate, prompt, **keywords), expected)
                       for (prompt, keywords), expected in [*self.all(), *self.all()]]
            for future, expected in waiting:
                self.same(future.result(), expected)

    def test_streams_side_by_side(self):
        streams = [(iter(self.llm.stream(prompt, **keywords)), expected) for (prompt, keywords), expected in self.all()]
        texts = [""] * len(streams)
        live = set(range(len(streams)))
        while live:
            for index in sorted(live):
                piece = next(streams[index][0], None)
                if piece is None:
                    live.discard(index)
                else:
                    texts[index] += piece
        for text, (_, expected) in zip(texts, streams):
            self.assertEqual(text, expected["text"])

    def test_batch(self):
        for (_, keywords), _ in list(self.all())[:10]:
            prompts = [prompt for prompt, _ in self.cases[:6]]
            for prompt, result in zip(prompts, self.llm.generate(prompts, **keywords)):
                alone = self.llm.generate(prompt, speculate=False, **keywords)
                self.assertEqual((result.text, result.tokens), (alone.text, alone.tokens))

    def test_asyncio(self):
        async def streamed(prompt, keywords):
            text = ""
            async with self.llm.astream(prompt, **keywords) as pieces:
                async for piece in pieces:
                    text += piece
            return text

        async def everything():
            whole = [self.llm.agenerate(prompt, **keywords) for prompt, keywords in self.cases]
            pieces = [streamed(prompt, keywords) for prompt, keywords in self.cases]
            return await asyncio.gather(*whole, *pieces)
        answers = asyncio.run(everything())
        for result, text, expected in zip(answers, answers[REFERENCES:], self.expected):
            self.same(result, expected)
            self.assertEqual(text, expected["text"])

    def test_cancellation(self):
        """What a cancelled answer has is the beginning of the whole one, and others are not touched."""
        rng = random.Random(7)
        for (prompt, keywords), expected in self.all():
            stream, other = self.llm.stream(prompt, **keywords), self.llm.stream(prompt, **keywords)
            taken = [piece for piece, _ in zip(stream, range(rng.randrange(3)))]
            stream.cancel()
            result = stream.result
            self.assertTrue(expected["text"].startswith("".join(taken)))
            self.assertTrue(expected["text"].startswith(result.text))
            self.assertEqual(result.tokens, expected["tokens"][:len(result.tokens)])
            self.assertIn(result.finish_reason, ("cancelled", expected["finish_reason"]))
            self.same(other.result, expected)

    def test_cancelled_tasks(self):
        async def run():
            cancelled = 0
            for (prompt, keywords), expected in list(self.all())[:20]:
                task = asyncio.create_task(self.llm.agenerate(prompt, **{**keywords, "max_tokens": 2000}))
                await asyncio.sleep(0)
                task.cancel()
                try:  # a short answer may have ended before
                    self.assertTrue((await task).text.startswith(expected["text"]))
                except asyncio.CancelledError:
                    cancelled += 1
                self.same(await self.llm.agenerate(prompt, **keywords), expected)
            return cancelled
        self.assertGreater(asyncio.run(run()), 0)

    def test_dropped_iterators(self):
        for prompt, keywords in self.cases:
            next(self.llm.stream(prompt, **{**keywords, "max_tokens": 2000}), None)  # dropped at once
        self.same(self.llm.generate(self.cases[0][0], **self.cases[0][1]), self.expected[0])

    def test_chat(self):
        for prompt in ("Hi", "A fox?"):
            expected = bed.program(prompt, chat=True, max_tokens=20)
            self.same(self.llm.chat(prompt, max_tokens=20), expected)
            self.same(self.llm.chat([{"role": "user", "content": prompt}], max_tokens=20), expected)
            self.assertEqual("".join(self.llm.chat_stream(prompt, max_tokens=20)), expected["text"])
            self.same(asyncio.run(self.llm.achat(prompt, max_tokens=20)), expected)


if __name__ == "__main__":
    unittest.main()
