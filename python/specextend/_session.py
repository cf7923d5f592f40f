"""A document that is read once, for many questions."""
from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Mapping

from . import _core
from ._results import Result
from ._streams import Answer, AsyncStream, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._llm import LLM
    from ._options import Keywords


class Session:
    """Made by `LLM.session(document)`. It holds one of the `parallel` sessions of its LLM until it is closed.

    The answer to a question is that of `LLM.chat` to one message of the user: the document, an empty line, the question.
    Questions do not see each other unless they are asked with remember=True.
    """

    def __init__(self, llm: LLM, document: str = "", *, system: str = "", load: str | os.PathLike[str] | None = None) -> None:
        self._llm = llm
        self._handle = _core.Session(llm._open)
        self.document = document
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self._asked = False  # a question behind the document is among the messages
        if load is not None:
            if document or system:
                raise ValueError("load: the file has the document; give only one of them")
            self.load(load)
        elif document:
            self._start(Stream, "", {"max_tokens": 0}, pieces=False).result  # reads it

    def ask(self, question: str, *, remember: bool = False, **keywords: Unpack[Keywords]) -> Result:
        """Answers a question. remember: later questions see it and its answer."""
        return self._kept(question, self._start(Stream, question, keywords, pieces=False).result, remember)

    def stream(self, question: str, **keywords: Unpack[Keywords]) -> Stream:
        """The same as an iterator."""
        return self._start(Stream, question, keywords, pieces=True)

    async def aask(self, question: str, *, remember: bool = False, **keywords: Unpack[Keywords]) -> Result:
        """The same for event loops."""
        return self._kept(question, await self._start(AsyncStream, question, keywords, pieces=False).result(), remember)

    @property
    def tokens(self) -> list[int]:
        """What it holds: document, last question and answer."""
        return self._handle.tokens()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what has been read, target's and draft's part, to `path`, and the texts to `path`.json. An LLM with the same
        model, draft and types goes on from there, also in another process: LLM.session(load=path)."""
        self._handle.save(os.fspath(path))
        with open(os.fspath(path) + ".json", "w", encoding="utf-8") as file:
            json.dump({"document": self.document, "messages": self.messages, "asked": self._asked}, file)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Takes what `save` has written, in place of what the session holds."""
        with open(os.fspath(path) + ".json", encoding="utf-8") as file:
            kept = json.load(file)
        self._handle.load(os.fspath(path))
        self.document, self.messages, self._asked = kept["document"], kept["messages"], kept["asked"]

    def close(self) -> None:
        """Gives its place back to the LLM, once the request that runs on it has ended."""
        self._handle.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _message(self, question: str) -> dict[str, str]:
        first = self.document and not self._asked
        return {"role": "user", "content": f"{self.document}\n\n{question}" if first else question}

    def _start(self, kind: type[Answer], question: str, keywords: Mapping[str, Any], *, pieces: bool) -> Answer:
        prompt = self._llm.chat_tokens([*self.messages, self._message(question)])
        return self._llm._start(kind, prompt, keywords, pieces=pieces, session=self._handle)

    def _kept(self, question: str, result: Result, remember: bool) -> Result:
        if remember:
            self.messages += [self._message(question), {"role": "assistant", "content": result.text}]
            self._asked = True
        return result
