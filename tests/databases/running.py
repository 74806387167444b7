"""Run a watcher as the triggerer does, in real time, through Airflow's own shared streams."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from airflow.providers.watermark.events import RowChange, read_changes
from airflow.providers.watermark.position import decode_position
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.providers.watermark.watermark import WatermarkState
from airflow.sdk import Asset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from airflow.providers.watermark.position import Position
    from devtools.databases import Database

POLL = 0.05
"""Seconds between two polls of a watcher under test; each commit is as fast."""

PATIENCE = 60.0
"""Seconds after which what has not happened fails the test, on a machine that has much else to do."""

_NUMBERS = itertools.count(1)


@contextlib.contextmanager
def connection(database: Database, **extra: object) -> Iterator[str]:
    """Make an Airflow connection to a database, and give its id."""
    conn_id = f"{database.name}_{next(_NUMBERS)}"
    name = f"AIRFLOW_CONN_{conn_id.upper()}"
    os.environ[name] = database.airflow_connection_json(**extra)
    try:
        yield conn_id
    finally:
        del os.environ[name]


async def eventually(condition: Callable[[], Any], what: object = "", *, patience: float = PATIENCE) -> Any:
    """Wait until something is true, and give it."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what() if callable(what) else what}"
        await asyncio.sleep(0.01)
    return value


def make_trigger(conn_id: str, **arguments: Any) -> SQLUpdatedAtTrigger:
    """Make a watcher of the table ``events`` that is as quick as a test wants it."""
    defaults = {
        "asset_name": f"rows-{next(_NUMBERS)}",
        "conn_id": conn_id,
        "start_from": "beginning",
        "poll_interval": POLL,
        "commit_delay": POLL,
        "late_arrival": 0.1,
    }
    if "query" not in arguments:
        defaults["table"] = "events"
    if arguments.get("payload", "window") != "window":
        defaults["primary_key"] = "id"
    trigger = SQLUpdatedAtTrigger(**{**defaults, **arguments})
    trigger.serialize()  # as the Dag processor does: it checks the arguments
    return trigger


class Window(NamedTuple):
    """What an event in window mode says."""

    low: Position
    high: Position
    count: int


class Running:
    """
    One watcher at work.

    :param trigger: As written in a Dag file.
    :param store: Where its watermark lives; by default a new memory store.
    :param on_event: Called with each payload as soon as it comes, before it counts as stored.
    :ivar events: The payloads so far, each with the time by ``time.monotonic`` at which it came.
    :ivar records: What was logged by this watcher.
    :ivar polls: When it asked for the settled bound, by ``time.monotonic``.
    """

    _ids: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(
        self,
        trigger: SQLUpdatedAtTrigger,
        store: MemoryStore | None = None,
        on_event: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        self.store = store or MemoryStore()
        self.trigger = trigger = type(trigger)(**trigger.arguments())
        trigger.trigger_id = next(self._ids)
        vars(trigger)["make_store"] = lambda: self.store
        vars(trigger)["get_high_watermark"] = self._poll
        self._on_event = on_event
        self.events: list[tuple[dict[str, Any], float]] = []
        self.records: list[logging.LogRecord] = []
        self.polls: list[float] = []
        self._handler = _Keep(self.records, f"[asset={trigger.asset_name} ")
        self._logger = logging.getLogger("airflow.providers.watermark.triggers")

    async def __aenter__(self) -> Self:
        self._logger.addHandler(self._handler)
        self._logger.setLevel(logging.DEBUG)
        self._task = asyncio.create_task(self._consume())
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._task.done():
            self._task.cancel()
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        self._logger.removeHandler(self._handler)
        if not isinstance(result, asyncio.CancelledError):
            raise result or AssertionError("the stream has ended")

    async def _poll(self) -> Any:
        self.polls.append(time.monotonic())
        return await type(self.trigger).get_high_watermark(self.trigger)

    async def _consume(self) -> None:
        # The contracts are kept below Airflow 3.3, too, which has no shared streams.
        from airflow.triggers.shared_stream import SharedStreamManager

        manager, trigger = SharedStreamManager(), self.trigger
        key, number = trigger.shared_stream_key(), trigger.trigger_id
        subscription = manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            async for event in trigger.filter_shared_stream(subscription):
                at = time.monotonic()
                seq = manager.bind_pending_event(trigger_id=number, key=key)
                payload = json.loads(json.dumps(event.payload, allow_nan=False))
                if self._on_event is not None:
                    await self._on_event(payload)
                self.events.append((payload, at))
                assert seq is not None
                manager.confirm_persisted([seq])
        finally:
            await manager.unsubscribe(number, key)

    # -- What came ------------------------------------------------------------------------------------

    @property
    def payloads(self) -> list[dict[str, Any]]:
        """The payloads so far."""
        return [payload for payload, _ in self.events]

    @property
    def changes(self) -> list[RowChange]:
        """The changes so far, in the order of delivery, repeats and all."""
        return [change for payload in self.payloads for change in typed(payload)]

    @property
    def keys(self) -> list[Any]:
        """The (first column of the) keys of the changes so far."""
        return [next(iter(change.key.values())) for change in self.changes]

    @property
    def windows(self) -> list[Window]:
        """The windows so far."""
        return [
            Window(
                decode_position(payload["watermark"]["low"]),
                decode_position(payload["watermark"]["high"]),
                payload["count"],
            )
            for payload in self.payloads
        ]

    @property
    def rows(self) -> int:
        """How many rows the events so far speak of."""
        return sum(payload["count"] for payload in self.payloads)

    def messages(self, level: int) -> list[str]:
        """What was logged at a level."""
        return [record.getMessage() for record in self.records if record.levelno == level]

    @property
    def errors(self) -> list[str]:
        """The errors that were logged."""
        return self.messages(logging.ERROR)

    @property
    def warnings(self) -> list[str]:
        """The warnings that were logged."""
        return self.messages(logging.WARNING)

    # -- Waiting --------------------------------------------------------------------------------------

    async def sweeps(self, count: int = 2) -> None:
        """Wait until whole sweeps have passed that began after now."""
        assert not self._task.done()
        wanted = len(self.polls) + count + 1
        await eventually(lambda: len(self.polls) >= wanted, lambda: self.errors)

    async def until(self, condition: Callable[[Running], Any]) -> Any:
        """Wait until something is true of this watcher, and give it."""
        return await eventually(lambda: self._task.done() or condition(self), lambda: self.errors)

    async def error(self, text: str) -> str:
        """Wait for an error, which must be the only one until then; give it."""
        await self.until(lambda watcher: watcher.errors)
        (error,) = self.errors
        assert text in error, error
        return error

    async def stored(self, condition: Callable[[WatermarkState], Any]) -> None:
        """Wait until something is true of the stored state."""
        deadline = time.monotonic() + PATIENCE
        while not condition(state := await self.state()):
            assert time.monotonic() < deadline, state
            await asyncio.sleep(0.05)

    async def state(self) -> WatermarkState:
        """Read the stored state."""
        wire = await self.store.load(self.trigger.key)
        assert wire is not None
        return WatermarkState.from_wire(wire)


def typed(payload: dict[str, Any]) -> list[Any]:
    """Read the changes of one event, as a consumer does."""
    asset = Asset(name="rows")
    return read_changes({asset: [SimpleNamespace(extra={"from_trigger": True, "payload": payload})]}, asset)


@contextlib.asynccontextmanager
async def running(conn_id: str, **arguments: Any) -> AsyncIterator[Running]:
    """Run a watcher with these arguments."""
    async with Running(make_trigger(conn_id, **arguments)) as watcher:
        yield watcher


class _Keep(logging.Handler):
    """Keeps the records of one watcher."""

    def __init__(self, records: list[logging.LogRecord], prefix: str) -> None:
        super().__init__(logging.DEBUG)
        self._records = records
        self._prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self._prefix):
            self._records.append(record)
