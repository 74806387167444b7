"""What a watcher tells, and what it must never tell."""

from __future__ import annotations

import json
import logging

import pytest

from airflow.providers.watermark.testing.contract import SourceContract
from airflow.providers.watermark.testing.source import WatchedSource

__all__ = ["TellingContract"]


class TellingContract(SourceContract):
    """Events, states, logs and stored arguments are read by many."""

    async def test_no_secret_is_told(self, source: WatchedSource) -> None:
        if not source.secrets:
            pytest.skip(f"{type(source).__name__} names no secrets")
        await self.put(source, "a")
        async with self.watch(source) as watcher:
            events = await watcher.deliver()
            told = list(watcher.recorder.saved)
            if "errors" not in source.lacks:
                await source.break_down()
                await watcher.deliver(2)
                await source.mend()
                await watcher.deliver(2)
                told += watcher.recorder.saved
            assert events
            formatter = logging.Formatter()
            logged = [formatter.format(record) for record in watcher.records]
            assert logged
            trigger = watcher.trigger
            texts = [
                *logged,
                json.dumps([event.payload for event in events]),
                json.dumps(told),
                repr(trigger),
                trigger.source,
                json.dumps(trigger.arguments()),
            ]
        assert not [secret for secret in source.secrets for text in texts if secret in text]
