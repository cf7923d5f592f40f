"""Answers on their way: iterators of text, for threads and for event loops."""
from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from . import _core
from ._options import Wanted
from ._results import Piece, Result, TokenInfo, make_result


class _Answer:
    """A request that runs. Dropping it cancels the request."""

    def __init__(self, call: _core.Call, wanted: Wanted) -> None:
        self._call = call
        self._wanted = wanted
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._pieces: list[Piece] = []  # the next one is the last
        self._closed = False

    def cancel(self) -> None:
        """Ends the request; `result` then has what there is, with the reason "cancelled"."""
        self._call.cancel()

    def _take(self) -> bool:
        """Fetches what has come; false: nothing more comes."""
        done = self._call.done()  # before the pieces: what comes in between is fetched with the next call
        scored = self._wanted.logprobs >= 0
        for text, tokens in self._call.take():
            infos = [TokenInfo(token, depth, logprob if scored else None) for token, depth, logprob in tokens]
            self._pieces.append(Piece(text, infos))
        self._pieces.reverse()
        return bool(self._pieces) or not done

    def _close(self) -> None:
        self.cancel()
        self._pieces.clear()
        self._closed = True

    def _finish(self) -> Result:
        if self._error is not None:
            raise self._error
        if self._result is None:
            try:
                self._result = make_result(self._call.result(), self._wanted.schema)
            except BaseException as error:
                self._error = error
                raise
        return self._result

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self._call.cancel()


Answer = TypeVar("Answer", bound=_Answer)


class Stream(_Answer):
    """An iterator over the pieces of an answer. Closing it, or leaving its `with` block, cancels the request."""

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            if self._closed:
                raise StopIteration
            if not self._call.done():
                self._call.wait()
            if not self._take():
                self._finish()  # raises what the request failed with
                raise StopIteration
        return self._pieces.pop()

    @property
    def result(self) -> Result:
        """The whole answer; waits for it."""
        self._call.wait_done()
        return self._finish()

    def close(self) -> None:
        """Cancels the request; the iterator ends, and `result` has what there is."""
        self._close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class AsyncStream(_Answer):
    """The same for `async for`. Cancelling the task that waits cancels the request."""

    async def _wait(self, *, pieces: bool) -> None:
        """Waits until the answer is whole, or for pieces, too."""
        loop, fd = asyncio.get_running_loop(), self._call.descriptor()
        ready: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)
        loop.add_reader(fd, wake)
        pause = self._call.pause()
        timer = loop.call_later(pause, self._call.arm) if pieces and pause > 0 else None
        if pieces and timer is None:
            self._call.arm()
        try:
            await ready
            self._call.clear_descriptor()
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        finally:
            loop.remove_reader(fd)
            if timer is not None:
                timer.cancel()

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Piece:
        while not self._pieces:
            if self._closed:
                raise StopAsyncIteration
            if not self._call.done():
                await self._wait(pieces=True)
            if not self._take():
                self._finish()
                raise StopAsyncIteration
        return self._pieces.pop()

    async def result(self) -> Result:
        """The whole answer."""
        while not self._call.done():
            await self._wait(pieces=False)
        return self._finish()

    async def aclose(self) -> None:
        """Cancels the request; the iterator ends, and `result()` has what there is."""
        self._close()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()
