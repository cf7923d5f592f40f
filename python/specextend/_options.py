"""Keywords of requests, and how they become the library's options."""
from __future__ import annotations

import json
from typing import Any, Mapping, Sequence, TypedDict

from . import _core


class Keywords(TypedDict, total=False):
    """The keywords that every kind of request takes, with the program's defaults."""
    max_tokens: int  # -1: until the model ends the text or the context is full
    temperature: float  # 0: greedy
    top_k: int  # 40; 0: all
    top_p: float  # 0.95
    min_p: float  # 0.05
    seed: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int  # tokens the penalties look back at; -1: all
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]  # the text ends before the first of these
    stop_tokens: Sequence[int]
    ignore_end: bool  # go on after end-of-text tokens
    show_special: bool  # control tokens appear in the text
    grammar: str  # GBNF that the text follows
    schema: Any  # a JSON schema as a dict or text, or a Pydantic model; the text follows it
    logprobs: int  # with log-probabilities of the tokens, and of so many alternatives each
    speculate: bool  # False: plain decoding; the text is the same
    draft_nodes: int
    draft_depth: int


class Wanted:
    """A request's options."""

    def __init__(self, keywords: Mapping[str, Any]) -> None:
        self.options = _core.Options()
        self.logprobs = -1
        self.schema: Any = None
        for name, value in keywords.items():
            if value is None:
                continue
            if name == "schema":
                self.schema = value
            elif name == "logprobs":
                self.logprobs = int(value)
                if self.logprobs < 0:
                    raise ValueError(f"logprobs={value}: 0 or more alternatives are expected")
            elif name == "stop":
                self.options.stop = [value] if isinstance(value, str) else list(value)
            elif name == "logit_bias":
                self.options.logit_bias = [(int(token), float(bias)) for token, bias in dict(value).items()]
            elif name in Keywords.__annotations__:
                try:
                    setattr(self.options, name, list(value) if name == "stop_tokens" else value)
                except TypeError:
                    raise TypeError(f"{name}={value!r} has the wrong type or is out of range") from None
            else:
                known = ", ".join(sorted(Keywords.__annotations__))
                raise TypeError(f"there is no keyword '{name}'; there are {known}")
        if self.schema is not None:
            if self.options.grammar:
                raise ValueError("schema and grammar exclude each other: give one of them")
            self.options.grammar = _core.schema_to_grammar(schema_text(self.schema))


def schema_text(schema: Any) -> str:
    """The JSON schema of a dict, a text or a Pydantic model."""
    if isinstance(schema, str):
        return schema
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if not isinstance(schema, Mapping):
        raise TypeError(f"schema={schema!r}: a dict, a JSON text or a Pydantic model is expected")
    return json.dumps(schema)
