"""The classes for LangChain and LlamaIndex in examples/python: whole and streamed answers have the package's own text."""
import asyncio
import os
import sys
import unittest

import bed
from specextend import LLM

sys.path.insert(0, os.path.join(sys.argv.pop(1), "examples", "python"))


class Friends(unittest.TestCase):
    def test_they_are_short(self):
        for name in ("langchain", "llama_index"):
            with open(os.path.join(sys.path[0], f"{name}_specextend.py"), encoding="utf-8") as file:
                self.assertLess(len(file.readlines()), 80)

    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(bed.tiny_model(), spec="suffix", device="cpu")
        cls.text = cls.llm.chat(bed.FOX, max_tokens=20).text

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_langchain(self):
        from langchain_specextend import ChatSpecExtend
        model = ChatSpecExtend(llm=self.llm, max_tokens=20)
        self.assertEqual(model.invoke(bed.FOX).content, self.text)
        self.assertEqual("".join(str(chunk.content) for chunk in model.stream(bed.FOX)), self.text)
        self.assertEqual([answer.content for answer in model.batch([bed.FOX, bed.FOX])], [self.text] * 2)

        async def run():
            self.assertEqual((await model.ainvoke(bed.FOX)).content, self.text)
            self.assertEqual("".join([str(chunk.content) async for chunk in model.astream(bed.FOX)]), self.text)
        asyncio.run(run())
        first = self.text[len(self.text) // 2]
        self.assertEqual(model.invoke(bed.FOX, stop=[first]).content, self.text.split(first)[0])

    def test_llama_index(self):
        from llama_index.core.base.llms.types import ChatMessage
        from llama_index_specextend import SpecExtend
        model = SpecExtend(llm=self.llm, max_tokens=20)
        text = self.llm.generate(bed.FOX, max_tokens=20).text
        self.assertEqual(model.complete(bed.FOX).text, text)
        self.assertEqual([r.delta for r in model.stream_complete(bed.FOX)], list(self.llm.stream(bed.FOX, max_tokens=20)))
        messages = [ChatMessage(role="user", content=bed.FOX)]
        self.assertEqual(model.chat(messages).message.content, self.text)
        self.assertEqual("".join(r.delta for r in model.stream_chat(messages)), self.text)
        self.assertEqual(model.metadata.context_window, self.llm.context)


if __name__ == "__main__":
    unittest.main()
