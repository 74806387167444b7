"""What the tests of watchers that deliver windows have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from airflow.providers.watermark.position import BEGINNING, is_after
from airflow.providers.watermark.stores import BaseWatermarkStore
from airflow.providers.watermark.testing.contract import SourceContract
from airflow.providers.watermark.testing.delivered import Delivery
from airflow.providers.watermark.testing.harness import Harness
from airflow.providers.watermark.testing.source import WatchedSource
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger

__all__ = ["WindowSourceContract"]


class WindowSourceContract(SourceContract):
    """A window is told by its bounds; what is in it is asked of the source."""

    def arguments(self, source: WatchedSource, **arguments: Any) -> dict[str, Any]:
        """Give the arguments of a watcher under test."""
        return super().arguments(source, **{"delivery": "settled", **arguments})

    def drive(
        self,
        source: WatchedSource,
        trigger: BaseWatermarkTrigger,
        store: BaseWatermarkStore | None = None,
        harness: type[Harness] = Harness,
    ) -> Harness:
        """Drive a trigger, and let things settle where it finds nothing."""
        return harness(trigger, store, lull=source.settle)

    async def put(self, source: WatchedSource, *names: str, version: int = 1) -> None:
        """Put things at one position, and let them settle."""
        await source.put(*names, version=version)
        await source.settle()

    async def deliver_all(self, source: WatchedSource, watcher: Harness) -> list[Delivery]:
        """Deliver what has settled; without a clock, a watcher made anew has to see it twice before."""
        events = await watcher.deliver()
        if "clock" in source.lacks:
            await source.settle()
            events += await watcher.deliver()
        return events

    async def put_apart(self, source: WatchedSource, *names: str) -> None:
        """Put things, each at a position of its own."""
        for name in names:
            await source.put(name)
            await source.advance(source.step)

    def inside(self, source: WatchedSource, event: Delivery) -> list[str]:
        """Ask the source what is in a window now."""
        return sorted(source.between(None if event.low is BEGINNING else event.low, event.high))

    def names(self, source: WatchedSource, deliveries: Iterable[Delivery]) -> list[str]:
        """Tell what is in windows now, window by window."""
        return [name for event in deliveries for name in self.inside(source, event)]

    def ids(self, deliveries: Iterable[Delivery]) -> list[str]:
        """Tell windows by their bounds, in the order of delivery."""
        return [
            json.dumps([event.payload["watermark"]["low"], event.payload["watermark"]["high"]])
            for event in deliveries
        ]

    def check(self, source: WatchedSource, events: list[Delivery], *names: str) -> None:
        """
        Check all windows of one epoch from the beginning.

        They follow one another without gap or overlap; what comes again is the very same window; each has as
        many things in it as its event says; and all things are in one.
        """
        distinct = {event.event_id: event for event in events}
        for event in events:
            assert (event.low, event.high) == (distinct[event.event_id].low, distinct[event.event_id].high)
            assert event.payload["count"] == len(self.inside(source, event))
        windows = sorted(distinct.values(), key=_high)
        assert windows[0].low is BEGINNING
        assert all(is_after(window.high, window.low) for window in windows)
        assert [one.high for one, _ in pairwise(windows)] == [two.low for _, two in pairwise(windows)]
        assert sorted(self.names(source, windows)) == sorted(names)


def _high(event: Delivery) -> Any:
    return event.high
