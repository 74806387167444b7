"""What a watcher tells of itself: a status beside its watermark, lines in the log, and Airflow's metrics."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.watermark.delivery import Committer
from airflow.providers.watermark.exceptions import WatermarkError
from airflow.providers.watermark.position import Position
from airflow.providers.watermark.version_compat import stats
from airflow.providers.watermark.watermark import WatermarkState

if TYPE_CHECKING:
    from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger

__all__ = ["Health", "age_of"]

STATUS_INTERVAL: Final = 300.0
"""Seconds from one save of the status to the next, while nothing but its figures changes."""

_first_metric: Final = threading.Lock()


class Health:
    """
    Follows how one watcher fares.

    The status is a mapping of texts: ``polled`` (when the source was last read to its end, ISO 8601, UTC),
    ``delivered`` (changes, or rows of windows, handed over by this process), ``seen`` (entries in the state),
    what the watcher's own ``facts`` say, and while it fails ``error``, ``since`` and ``errors`` (how often in
    a row). It is stored at once when it begins to fail, fails for another cause or recovers, and every five
    minutes.

    :param trigger: The watcher.
    :param committer: Stores the status.
    """

    def __init__(self, trigger: BaseWatermarkTrigger, committer: Committer) -> None:
        self._trigger = trigger
        self._committer = committer
        self._log = trigger.log
        self._tags = {
            "asset": trigger.asset_name,
            "watcher": trigger.watcher_name,
            "source": trigger.source,  # an asset may have two watchers of a kind
        }
        self._stats = stats()
        self._cause: str | None = None
        self._since = ""
        self._delivered = 0
        self._polled: str | None = None
        self._saved_at = time.monotonic()
        self.failures = 0
        self.covered: Position | None = None

    async def begin(self) -> None:
        """
        Send a first metric, from a thread: the first in a process makes Airflow 3.3 parse a list of metrics.

        On the loop that would hold all triggers for 30 ms and more.
        """
        with contextlib.suppress(Exception):  # the next one tells
            await asyncio.to_thread(self._send_first)

    def _send_first(self) -> None:
        with _first_metric:
            self._stats.gauge("watermark.uncommitted", self._committer.uncommitted, tags=self._tags)

    def count(self, payload: Mapping[str, Any]) -> None:
        """Note an event that is handed over."""
        self._delivered += payload["count"]
        self._stats.incr("watermark.events", tags=self._tags)
        self._stats.incr("watermark.changes", payload["count"], tags=self._tags)

    async def succeed(self, seconds: float) -> None:
        """
        Note that the source was read to its end.

        :param seconds: How long that took, with what was handed over.
        """
        if self.failures:
            self._log.info("Recovered after %d failed attempts; nothing was lost", self.failures)
        self.failures, self._cause = 0, None
        self._polled = _now()
        self._stats.timing("watermark.poll_duration", seconds * 1000, tags=self._tags)
        stored = self._stored
        known = all(stored.get(name) == text for name, text in self._trigger.facts.items())
        await self._report(self._figures(), urgent="error" in stored or not known)

    async def fail(self, error: Exception) -> None:
        """Note an error: tell it once per cause, and keep it in the stored status until it is mended."""
        self.failures += 1
        self._stats.incr("watermark.errors", tags=self._tags)
        known = isinstance(error, WatermarkError)
        cause = f"{type(error).__name__}: {error}"
        is_new = cause != self._cause
        if is_new:
            self._cause, self._since = cause, _now()
            if known:
                self._log.error("%s", error)
            else:
                self._log.error("An unexpected error; it is tried again, and nothing is lost", exc_info=error)
        # An unexpected error's text may hold anything; it stays in the log, where Airflow masks secrets.
        text = str(error) if known else type(error).__name__
        trouble = {"error": text, "since": self._since, "errors": str(self.failures)}
        await self._report({**self._figures(), **trouble}, urgent=is_new)

    @property
    def _stored(self) -> Mapping[str, str]:
        committed = self._committer.committed
        return (committed.status if committed is not None else None) or {}

    @property
    def _state(self) -> WatermarkState | None:
        return self._committer.head or self._committer.committed

    @property
    def _seen(self) -> int:
        return 0 if self._state is None else len(self._state.seen)

    def _figures(self) -> dict[str, str]:
        polled = self._polled or self._stored.get("polled")
        return {
            **({"polled": polled} if polled else {}),
            "delivered": str(self._delivered),
            "seen": str(self._seen),
            **self._trigger.facts,
        }

    async def _report(self, status: Mapping[str, str], *, urgent: bool) -> None:
        self._measure()
        now = time.monotonic()
        save = urgent or now - self._saved_at >= STATUS_INTERVAL
        if save:
            self._saved_at = now
        await self._committer.report(status, save=save)

    def _measure(self) -> None:
        """
        Set the gauges.

        The lag is the age, by this machine's clock, of the cut up to which all has been handed over: that of
        the last reading that came to its end, since a low watermark of windows stays where it is while
        nothing is new.
        """
        covered = self.covered
        if covered is None and self._state is not None:
            covered = self._state.low
        if (lag := age_of(covered)) is not None:
            self._stats.gauge("watermark.lag_seconds", lag, tags=self._tags)
        self._stats.gauge("watermark.uncommitted", self._committer.uncommitted, tags=self._tags)
        self._stats.gauge("watermark.seen", self._seen, tags=self._tags)
        requests = self._trigger.facts.get("requests")
        if requests is not None:
            self._stats.gauge("watermark.requests", int(requests), tags=self._tags)


def age_of(position: Position | None) -> float | None:
    """Give the age of a position in seconds, by this machine's clock; ``None`` if it tells no instant."""
    if not isinstance(position, datetime) or position.tzinfo is None:
        return None
    return (datetime.now(UTC) - position).total_seconds()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
