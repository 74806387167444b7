"""How hard a store is asked: as many requests at a time as it bears, and a failed one again, alone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final, Literal

from airflow.providers.watermark.exceptions import SourceError, ThrottledError
from airflow.providers.watermark.objects.listing import Interest, KeyRange, Listing, ObjectStore

__all__ = ["Pace"]

MAX_TRIES: Final = 3
FIRST_BACKOFF: Final = 0.1
"""Seconds at the most before a page is tried again; twice as many each time."""
MAX_SECONDS: Final = 30.0
"""Seconds after which a page that fails is not tried again: whoever has waited so long has tried enough."""

GROW_AFTER: Final = 16
"""Pages without a complaint after which one more request at a time is dared."""


class Pace:
    """
    A store that is asked with patience and with care.

    When it complains, half as many requests are sent at a time; when it no longer does, one more after each
    16 pages, up to what is allowed.

    :param store: The store.
    :param concurrency: The most requests at a time, at least 1.
    :param say: Told what to warn about, and ``False`` once it is over.
    :ivar limit: How many requests may be under way now. Whoever sends them keeps to it.
    """

    def __init__(
        self, store: ObjectStore, concurrency: int, say: Callable[[str | Literal[False]], None]
    ) -> None:
        self._store = store
        self._say = say
        self._complaints = 0
        self._pages = 0
        self._under_way = 0
        self.concurrency = concurrency
        self.limit = concurrency

    @property
    def where(self) -> str:
        """Name the store in an error."""
        return self._store.where

    async def list_page(
        self, keys: KeyRange, interest: Interest, *, token: str | None = None, limit: int | None = None
    ) -> Listing:
        """List a page, trying again while the store fails, but not for long."""
        began, tries = time.monotonic(), 0
        while True:
            complaints = self._complaints
            self._under_way += 1
            try:
                page = await self._store.list_page(keys, interest, token=token, limit=limit)
            except SourceError as error:
                is_complaint = isinstance(error, ThrottledError)
                # Requests that are under way together complain of the same.
                if is_complaint and complaints == self._complaints:
                    self._slow_down()
                # To ask for less is no mere trial, as long as there is less to ask for.
                tries += not (is_complaint and self.limit > 1)
                if tries == MAX_TRIES or time.monotonic() - began > MAX_SECONDS:
                    raise
            else:
                self._speed_up()
                return page
            finally:
                self._under_way -= 1
            await _rest(2 ** (tries + 1))
            while self._under_way >= self.limit:
                await _rest(1)

    def _slow_down(self) -> None:
        self._complaints += 1
        self._pages = 0
        self.limit = max(1, self.limit // 2)
        self._say(
            f"{self.where}: the store asks for fewer requests and is listed more slowly; nothing is lost. If "
            f"it goes on so, lower list_concurrency={self.concurrency}, or the load of its other clients"
        )

    def _speed_up(self) -> None:
        if self.limit == self.concurrency:
            self._say(False)  # noqa: FBT003
            return
        self._pages += 1
        if self._pages >= GROW_AFTER:
            self._pages = 0
            self.limit += 1


async def _rest(times: int) -> None:
    """Wait a random time, so that those who failed together do not come back together."""
    await asyncio.sleep(random.uniform(0, FIRST_BACKOFF * times))  # noqa: S311 - jitter
