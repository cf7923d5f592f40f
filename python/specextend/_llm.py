"""The class that people use first."""
from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence, Union, cast, overload

from . import _core
from ._eval import Data, Evaluation, evaluate, lists
from ._hub import find_model
from ._options import Keywords, Wanted
from ._results import Explanation, Message, Result, Verification
from ._streams import Answer, AsyncStream, Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

    from ._session import Session

Prompt = Union[str, Sequence[int]]  # a text, or its tokens
Messages = Union[str, Sequence[Message], Sequence[Mapping[str, Any]]]  # a text: one message of the user


def presets() -> dict[str, str]:
    """The ways to speculate, by name, and what they do. `specextend methods` says more."""
    return dict(_core.presets())


class LLM:
    """A model, ready to answer.

    model: a GGUF file, a Hugging Face folder, or a name like "owner/name:Q4_K_M" of the Hugging Face hub, which is fetched
        if huggingface_hub is installed; None: the default model in the user's cache folder.
    spec: how to speculate, e.g. "suffix" or "sd:nodes=8" (`presets()` lists the names); it never changes the text. "auto"
        decides in every round what drafts, if anything: the draft model, copies from the text, both or neither; "off": plain
        decoding. None: as `specextend generate` without --spec: $SPECEXTEND_SPEC, "sd" with a draft_model, else "auto".
    draft_model: a draft model or head for a `spec` that drafts with one; without it a shipped one that was trained for the
        model, if there is one.
    device: "cpu", "cuda", "cuda:1"; "auto": a CUDA device if there is one and the package was built for it.
    context: tokens that prompt and answer can have together; 0: what the model was trained for.
    parallel: requests that run at a time and sessions that are open, all together. Each has its own KV cache.

    All methods may be called from any number of threads and event loops; requests that come together share passes of the
    model, and the answer to each is the same as if it had come alone. The GIL is free while the model runs. After fork(), a
    child opens its own.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, *, spec: str | None = None, draft_model: str | os.PathLike[str] = "",
                 device: str = "auto", context: int = 0, threads: int = 0, parallel: int = 4, kv_type: str = "",
                 chat_template: str = "") -> None:
        path = find_model(model)
        self._flags = ["-m", path, "--device", device, "-c", str(context), "-t", str(threads),
                       *(["--kv-type", kv_type] if kv_type else []), *(["-md", os.fspath(draft_model)] if draft_model else [])]
        if spec is None:
            spec = os.environ.get("SPECEXTEND_SPEC") or ("sd" if draft_model else "auto")
        self._engine = _core.open(model=path, spec=spec, draft_model=os.fspath(draft_model), device=device, context=context,
                                  threads=threads, parallel=parallel, kv_type=kv_type, chat_template=chat_template)
        for warning in self._engine.warnings:
            warnings.warn(warning, stacklevel=2)

    # ---- answers

    @overload
    def generate(self, prompt: str, **keywords: Unpack[Keywords]) -> Result: ...
    @overload
    def generate(self, prompt: Sequence[int], **keywords: Unpack[Keywords]) -> Result: ...
    @overload
    def generate(self, prompt: list[str] | tuple[str, ...], **keywords: Unpack[Keywords]) -> list[Result]: ...

    def generate(self, prompt: Any, **keywords: Unpack[Keywords]) -> Result | list[Result]:
        """Continues a text, a list of tokens, or several texts in one batch. Keywords: max_tokens, temperature, top_k, top_p,
        min_p, seed, stop, grammar, schema, logprobs and those of `specextend generate` (docs/python.md has all)."""
        if not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], str):
            return self.batch(prompt, **keywords)
        return self.stream(prompt, _pieces=False, **keywords).result

    def batch(self, prompts: Iterable[Prompt], **keywords: Unpack[Keywords]) -> list[Result]:
        """Continues several texts at once; `parallel` of them share each pass of the model. If one fails, the others are
        cancelled."""
        streams = [self.stream(prompt, _pieces=False, **keywords) for prompt in prompts]
        try:
            return [stream.result for stream in streams]
        finally:
            for stream in streams:
                stream.cancel()

    def stream(self, prompt: Prompt, *, _pieces: bool = True, **keywords: Unpack[Keywords]) -> Stream:
        """The same as an iterator over the pieces of the text, which are strings with their tokens. Closing it cancels."""
        return self._start(Stream, self.tokenize(prompt), keywords, pieces=_pieces)

    def chat(self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None,
             template_variables: Mapping[str, Any] | None = None, **keywords: Unpack[Keywords]) -> Result:
        """Answers a conversation through the model's chat template."""
        prompt = self.chat_tokens(messages, tools=tools, template_variables=template_variables)
        return self._start(Stream, prompt, keywords, pieces=False).result

    def chat_stream(self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None,
                    template_variables: Mapping[str, Any] | None = None, **keywords: Unpack[Keywords]) -> Stream:
        """The same as an iterator."""
        prompt = self.chat_tokens(messages, tools=tools, template_variables=template_variables)
        return self._start(Stream, prompt, keywords, pieces=True)

    # ---- the same for event loops

    async def agenerate(self, prompt: Prompt, **keywords: Unpack[Keywords]) -> Result:
        """`generate` for one prompt. Cancelling the task that awaits it cancels the request."""
        return await self._start(AsyncStream, self.tokenize(prompt), keywords, pieces=False).result()

    def astream(self, prompt: Prompt, **keywords: Unpack[Keywords]) -> AsyncStream:
        """`stream` for `async for`. It is no coroutine: the request starts with the call."""
        return self._start(AsyncStream, self.tokenize(prompt), keywords, pieces=True)

    async def achat(self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None,
                    template_variables: Mapping[str, Any] | None = None, **keywords: Unpack[Keywords]) -> Result:
        """`chat`."""
        prompt = self.chat_tokens(messages, tools=tools, template_variables=template_variables)
        return await self._start(AsyncStream, prompt, keywords, pieces=False).result()

    async def abatch(self, prompts: Iterable[Prompt], **keywords: Unpack[Keywords]) -> list[Result]:
        """`batch`. Cancelling the task cancels all of its requests."""
        streams = [self._start(AsyncStream, self.tokenize(prompt), keywords, pieces=False) for prompt in prompts]
        try:
            return [await stream.result() for stream in streams]
        finally:
            for stream in streams:
                stream.cancel()

    # ---- how likely a text is

    def score(self, text: Prompt) -> npt.NDArray[np.float64]:
        """Log-probabilities of the tokens of a text behind the first, each behind those before it. exp(-mean) is the
        perplexity."""
        call = self._open.submit(self.tokenize(text), Wanted({"max_tokens": 0}).options, -1, False, True, None)
        call.wait()
        return cast("npt.NDArray[np.float64]", call.result()["scores"])

    # ---- sessions

    def session(self, document: str = "", *, system: str = "", load: str | os.PathLike[str] | None = None) -> Session:
        """A document that is read once, for many questions; or one that `Session.save` has kept."""
        from ._session import Session
        return Session(self, document, system=system, load=load)

    # ---- text and tokens

    def tokenize(self, text: Prompt, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Tokens of a text as `generate` sees it; a list of tokens is returned as it is."""
        if isinstance(text, str):
            return self._open.tokenize(text, add_special, parse_special)
        return [int(token) for token in text]

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False, continues: bool = True) -> str:
        """The text of tokens. continues: they stand behind others, as an answer does behind its prompt."""
        return self._open.detokenize(list(tokens), show_special, continues)

    def token_bytes(self, token: int) -> bytes:
        """What a token adds behind other tokens; it may be part of a character."""
        return self._open.token_bytes(token)

    def chat_prompt(self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None,
                    template_variables: Mapping[str, Any] | None = None, add_generation_prompt: bool = True) -> str:
        """The text of a conversation by the model's chat template."""
        conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        return self._open.chat_prompt(json.dumps(conversation), add_generation_prompt, json.dumps(tools) if tools else "",
                                      json.dumps(template_variables) if template_variables else "")

    def chat_tokens(self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None,
                    template_variables: Mapping[str, Any] | None = None) -> list[int]:
        """Its tokens, as `chat` sees them."""
        return self.tokenize(self.chat_prompt(messages, tools=tools, template_variables=template_variables), add_special=False)

    # ---- what speculation does

    def verify_lossless(self, prompt: Prompt, **keywords: Unpack[Keywords]) -> Verification:
        """Runs a prompt without and with speculation and compares every byte of the text and every bit of the logits."""
        keywords.setdefault("max_tokens", 128)
        return Verification(**self._open.verify(self.tokenize(prompt), Wanted(keywords).options))

    def explain(self, prompt: Prompt, *, compare: bool = False, **keywords: Unpack[Keywords]) -> Explanation:
        """Continues a prompt and returns a page that shows how drafts, verification and retrieval went."""
        keywords.setdefault("max_tokens", 128)
        return Explanation(*self._open.explain(self.tokenize(prompt), Wanted(keywords).options, compare))

    def eval(self, data: Data = None, *, spec: Sequence[str] = ("off", "suffix"), lengths: Sequence[int] = (),
             max_tokens: Sequence[int] = (64,), temperatures: Sequence[float] = (0,), batches: Sequence[int] = (1,),
             repetitions: int = 3, limit: int = 0, chat: bool = False, out: str | os.PathLike[str] | None = None,
             quiet: bool = True) -> Evaluation:
        """Runs data sets with several presets, interleaved, and reports speed and texts: `specextend eval` (docs/eval.md).

        data: a file of JSON lines, or rows like {"prompt": ..., "reference": ...}; None: a few built-in prompts.
        out: a folder that keeps the results; one that has some goes on where it stopped. It runs in a process of its own,
        with the same model and device, so there must be memory for a second one.
        """
        flags = [*self._flags, *lists("--length", lengths), *lists("-n", max_tokens), *lists("--temp", temperatures),
                 *lists("--batch", batches), "--repetitions", str(repetitions), *(["--limit", str(limit)] if limit else []),
                 *(["--chat"] if chat else [])]
        return evaluate(flags, data, spec, out, quiet)

    # ---- about it

    @property
    def context(self) -> int:
        """Tokens that prompt and answer can have together."""
        return self._open.context

    @property
    def vocab(self) -> int:
        """Tokens that the model knows."""
        return self._open.vocab

    @property
    def backend(self) -> str:
        """E.g. "cpu (neon-i8mm, 2 threads)"."""
        return self._open.backend

    @property
    def model(self) -> str:
        """Path of the model."""
        return self._open.model

    @property
    def spec(self) -> str:
        """Name of the preset that it speculates with."""
        return self._open.spec

    @property
    def draft_model(self) -> str:
        """Path of the draft model or head; empty: there is none."""
        return self._open.draft_model

    @property
    def spec_settings(self) -> dict[str, Any]:
        """All settings of speculation."""
        return dict(json.loads(self._open.settings))

    # ---- its end

    def close(self) -> None:
        """Ends what runs and frees the model. Sessions are closed, too."""
        engine: _core.Engine | None = self.__dict__.pop("_engine", None)
        if engine is not None:
            engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.model!r}, spec={self.spec!r}, {self.backend})" if "_engine" in self.__dict__ else "LLM(closed)"

    @property
    def _open(self) -> _core.Engine:
        if "_engine" not in self.__dict__:
            raise _core.Error("this LLM is closed")
        return self._engine

    def _start(self, kind: type[Answer], prompt: list[int], keywords: Mapping[str, Any], *, pieces: bool,
               session: _core.Session | None = None) -> Answer:
        wanted = Wanted(keywords)
        return kind(self._open.submit(prompt, wanted.options, wanted.logprobs, pieces, False, session), wanted)
