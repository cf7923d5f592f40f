"""What calls return."""
from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, TypedDict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Message(TypedDict, total=False):
    """One message of a conversation. Templates may know further keys."""
    role: str
    content: str


class TokenInfo(NamedTuple):
    """One token of an answer."""
    token: int
    depth: int  #: in the accepted draft path; 0: the target chose it itself
    logprob: float | None  #: natural logarithm of its probability; None unless `logprobs` was given


class Piece(str):
    """A piece of streamed text, with the tokens that came since the piece before."""
    __slots__ = ("tokens",)
    tokens: list[TokenInfo]

    def __new__(cls, text: str, tokens: list[TokenInfo]) -> Piece:
        piece = super().__new__(cls, text)
        piece.tokens = tokens
        return piece


@dataclasses.dataclass(frozen=True)
class Result:
    """An answer. `str(result)` is its text."""
    text: str
    tokens: list[int]  #: generated, without the end-of-text token
    finish_reason: str  #: "end", "length", "stop", "context" or "cancelled"
    timings: dict[str, float]  #: prompt_tokens, cached_tokens, generated_tokens, prompt_ms, decode_ms, draft_prompt_ms
    depths: list[int]  #: of each token: its depth in the accepted draft path; 0: the target chose it itself
    logprobs: npt.NDArray[np.float64] | None = None  #: [tokens], if `logprobs` was given
    top_tokens: npt.NDArray[np.int32] | None = None  #: [tokens, logprobs], the most likely first
    top_logprobs: npt.NDArray[np.float64] | None = None  #: theirs
    _speculation: str = dataclasses.field(default="{}", repr=False)
    _schema: Any = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def speculation(self) -> dict[str, Any]:
        """Rounds, drafted and accepted tokens, times by phase."""
        return dict(json.loads(self._speculation))

    @property
    def parsed(self) -> Any:
        """The answer to a request with `schema`: an object of the Pydantic model, or what JSON says for a dict. Raises
        ValueError if the answer was cut off."""
        if self._schema is None:
            raise ValueError("parsed: the request had no schema")
        if self.finish_reason not in ("end", "stop"):
            raise ValueError(f"parsed: the answer is not whole, it ended by '{self.finish_reason}'")
        if hasattr(self._schema, "model_validate_json"):
            return self._schema.model_validate_json(self.text)
        return json.loads(self.text)


def make_result(fields: dict[str, Any], schema: Any) -> Result:
    return Result(_speculation=fields.pop("speculation"), _schema=schema, **fields)


@dataclasses.dataclass(frozen=True)
class Verification:
    """What `LLM.verify_lossless` found. It is true if all bytes and bits are equal."""
    equal: bool
    difference: str  #: the first one; empty if there is none
    tokens: int
    logits: int  #: numbers that were compared bit by bit
    plain: Mapping[str, float]  #: timings without speculation
    drafted: Mapping[str, float]  #: timings with it

    def __bool__(self) -> bool:
        return self.equal


class Explanation:
    """The page of `specextend explain`: `html` is the whole page, `data` what it shows. Notebooks show it by themselves."""

    def __init__(self, html: str, data: str) -> None:
        self.html = html
        self._data = data

    @property
    def data(self) -> dict[str, Any]:
        """What the page shows: settings, tokens, rounds, retrieved chunks."""
        return dict(json.loads(self._data))

    def save(self, path: str) -> None:
        """Writes the page, one file that fetches nothing."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)

    def _repr_html_(self) -> str:
        import html
        return (f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" '
                'style="width:100%;height:640px;border:0"></iframe>')
