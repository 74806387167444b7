"""The committer, with its clock in the test's hands."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from airflow.providers.watermark.delivery import Committer

__all__ = ["NAPS", "SteppedCommitter"]

NAPS: Final = 12
"""Naps after which an acknowledgement has aged for certain."""


class SteppedCommitter(Committer):
    """Rests, and naps, as long as the test wants."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "commit_delay": 0.0})
        self.resting = asyncio.Event()
        self._going_on = asyncio.Event()
        self._naps_allowed = asyncio.Semaphore(0)
        self._naps_over = asyncio.Semaphore(0)

    async def rest(self, seconds: float) -> None:  # noqa: ARG002 - the test decides how long
        """Wait until the test wants another sweep."""
        self._going_on.clear()
        self.resting.set()
        await self._going_on.wait()

    def go_on(self) -> None:
        """End the rest."""
        self.resting.clear()
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
