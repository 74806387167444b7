"""The committer, with its clock in the test's hands; and a coroutine that dies at one of its awaits."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from airflow.providers.watermark.delivery import Committer, StaleError

__all__ = ["NAPS", "SteppedCommitter", "mortal"]

NAPS: Final = 12
"""Naps after which an acknowledgement has aged for certain."""


class SteppedCommitter(Committer):
    """
    Rests, and naps, as long as the test wants.

    :ivar halted: Set while the watcher waits for the test: it rests, or it waits until what it has delivered
        is committed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "commit_delay": 0.0})
        self.halted = asyncio.Event()
        self._settling = False
        self._going_on = asyncio.Event()
        self._naps_allowed = asyncio.Semaphore(0)
        self._naps_over = asyncio.Semaphore(0)

    async def rest(self, seconds: float) -> None:  # noqa: ARG002 - the test decides how long
        """Wait until the test wants another sweep."""
        self._halt(settling=False)
        await self._going_on.wait()

    async def settle(self) -> None:
        """Wait until all is committed or dropped, and until the test wants more."""
        self._halt(settling=True)
        try:
            await super().settle()
        except StaleError:
            await self._going_on.wait()
            raise
        await self._going_on.wait()

    def _halt(self, *, settling: bool) -> None:
        self._settling = settling
        self._going_on.clear()
        self.halted.set()

    @property
    def is_resting(self) -> bool:
        """Whether the watcher rests between two sweeps."""
        return self.halted.is_set() and not self._settling

    @property
    def is_under_way(self) -> bool:
        """Whether the watcher is in the midst of a sweep, and nothing but the test holds it."""
        return self._settling and not self._in_flight

    def go_on(self) -> None:
        """End the halt; who waits for a commit goes on waiting."""
        if not self._settling or not self._in_flight:
            self.halted.clear()
            self._going_on.set()

    async def _commit(self) -> None:
        await self._naps_allowed.acquire()
        try:
            await super()._commit()
        finally:
            self._naps_over.release()

    async def nap(self) -> bool:
        """Let one nap pass, and what is then committed be saved; tell whether there was anything to age."""
        if not self._in_flight:
            return False
        self._naps_allowed.release()
        await self._naps_over.acquire()
        return True

    def unleash(self) -> None:
        """Let all naps pass: for what should have been cancelled."""
        for _ in range(2 * NAPS):
            self._naps_allowed.release()


@types.coroutine
def mortal(
    life: Coroutine[Any, Any, None], awaits: int, kill: Callable[[], None]
) -> Generator[Any, Any, None]:
    """
    Live as long as a coroutine, and be killed at one of its awaits.

    :param life: What is run.
    :param awaits: How many times it may wait before.
    :param kill: Called once it waits for the next time.
    """
    error: BaseException | None = None
    for number in itertools.count():
        try:
            waits_for = life.send(None) if error is None else life.throw(error)
        except StopIteration:
            return
        if number == awaits:
            kill()
        error = None
        try:
            yield waits_for
        except BaseException as thrown:  # noqa: BLE001 - a cancellation belongs to what is run
            error = thrown
