"""SpecExtend: speculative decoding for long inputs whose output has the bytes of plain decoding.

    from specextend import LLM
    llm = LLM("model.gguf")
    for piece in llm.stream("Once upon a time", max_tokens=100):
        print(piece, end="", flush=True)
"""
import atexit

from ._core import Error, close_all, version as __version__, why_no_cuda
from ._eval import Evaluation
from ._llm import LLM, presets
from ._results import Explanation, Message, Piece, Result, TokenInfo, Verification
from ._session import Session
from ._streams import AsyncStream, Stream

atexit.register(close_all)
del atexit, close_all

__all__ = ["LLM", "AsyncStream", "Error", "Evaluation", "Explanation", "Message", "Piece", "Result", "Session", "Stream", "TokenInfo",
           "Verification", "__version__", "presets", "why_no_cuda"]
