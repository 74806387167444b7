"""
Run one watcher without Airflow, and decide what happens to it.

The watcher is driven the way Airflow's triggerer drives it: its arguments are stored and read with
Airflow's own encoders, a new instance is asked for its ``shared_stream_key``, the producer is made from
``serialize()``, ``open_stream()`` is drained as fast as it gives, and events are resolved in one lane, so
that ``advance()`` gets contiguous prefixes. Only time is the test's: a watcher that rests goes on when the
test wants another sweep, and the committer's naps end when the test says so. Nothing here sleeps.

.. code-block:: python

    async with Harness(trigger) as watcher:
        events = await watcher.sweep()       # one sweep, or one window; the events are in flight
        await watcher.acknowledge(*events)   # Airflow has stored them
        await watcher.commit()               # the acknowledgements age, and the watermark is saved
        await watcher.crash()                # SIGKILL
        again = await watcher.sweep()        # by a new instance
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Self
from unittest.mock import patch

from airflow.providers.watermark.delivery import Committer, Emission
from airflow.providers.watermark.stores import BaseWatermarkStore
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.testing.delivered import Delivery
from airflow.providers.watermark.testing.recorder import RecordingStore, Trouble
from airflow.providers.watermark.testing.stepping import NAPS, SteppedCommitter, mortal
from airflow.providers.watermark.triggers import base
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
from airflow.providers.watermark.version_compat import AdvanceItem, AdvanceOutcome, SharedStreamProducer
from airflow.providers.watermark.watermark import WatermarkState

__all__ = ["Harness", "revive"]

_END: Final = 5.0
"""Seconds of real time that a cancelled watcher may take to end."""

_COMMIT_EVERY: Final = 32
"""Events after which the harness commits while it delivers: a watcher has at most 64 uncommitted ones."""

_CLEAN: Final = AdvanceOutcome(acked=1, failed=0)
_FAILED: Final = AdvanceOutcome(acked=0, failed=1)


def revive(trigger: BaseWatermarkTrigger) -> BaseWatermarkTrigger:
    """
    Make a new instance from a trigger's arguments, as the triggerer does from the metadata database.

    :raises InvalidArgumentError: The arguments are wrong.
    """
    from airflow.serialization.decoders import smart_decode_trigger_kwargs
    from airflow.serialization.encoders import encode_trigger

    stored = json.dumps(encode_trigger(trigger)["kwargs"], allow_nan=False)
    return type(trigger)(**smart_decode_trigger_kwargs(json.loads(stored)))


class Harness:
    """
    One watcher at work.

    :param trigger: As written in a Dag file.
    :param store: Where its watermark lives; it outlives crashes. By default a new memory store.
    :param lull: Awaited when a sweep has found nothing, which is then tried once more: some sources know only
        at a second look what is settled.
    :param patience: Seconds of real time after which a sweep that does not end fails the test.
    :ivar trigger: The running instance.
    :ivar recorder: What the running instance has saved.
    :ivar records: What was logged, over all instances.
    """

    def __init__(
        self,
        trigger: BaseWatermarkTrigger,
        store: BaseWatermarkStore | None = None,
        *,
        lull: Callable[[], Awaitable[None]] | None = None,
        patience: float = 30.0,
    ) -> None:
        self._written = trigger
        self.store = store or MemoryStore()
        self._lull = lull
        self._patience = patience
        self.records: list[logging.LogRecord] = []
        self._handler = _ListHandler(self.records)
        self._logger = logging.getLogger("airflow.providers.watermark.triggers")
        self._pump: asyncio.Task[None] | None = None
        self._received: list[Delivery] = []
        self._outstanding: deque[tuple[Emission, AdvanceOutcome | None]] = deque()
        self._delivering = False
        self._awaits: int | None = None
        self._trouble: Trouble | None = None
        self.trigger = trigger
        self.recorder = RecordingStore(self.store)

    async def __aenter__(self) -> Self:
        self._logger.addHandler(self._handler)
        self._level = self._logger.level
        self._logger.setLevel(logging.DEBUG)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._level)
        await self._end()

    # -- Sweeps ---------------------------------------------------------------------------------------

    async def sweep(self) -> list[Delivery]:
        """
        Let the watcher sweep once; its events are left in flight.

        A watcher that delivers windows stops behind each, until that is committed; the next call lets it go
        on, if it is.
        """
        events = await self._go_on()
        if self._lull is not None and not events and self.is_alive and self._committer.is_resting:
            await self._lull()
            events = await self._go_on()
        return events

    async def deliver(self, sweeps: int = 1) -> list[Delivery]:
        """Let the watcher sweep, acknowledge each event at once, and let it commit all."""
        events: list[Delivery] = []
        self._delivering = True
        try:
            for _ in range(sweeps):
                events += await self.sweep()
                await self.commit()
                while self.is_alive and self._committer.is_under_way:
                    events += await self._go_on()
                    await self.commit()
        finally:
            self._delivering = False
        return events

    async def _go_on(self) -> list[Delivery]:
        self._received = []
        if self._pump is None:
            self._start()
        else:
            self._committer.go_on()
        await self._until_halted()
        return self._received

    async def _until_halted(self) -> None:
        assert self._pump is not None
        halted = asyncio.ensure_future(self._committer.halted.wait())
        try:
            await asyncio.wait(
                [halted, self._pump], timeout=self._patience, return_when=asyncio.FIRST_COMPLETED
            )
            if self.recorder.is_cut:
                await self._end()
            elif self._pump.done():
                await self._pump
                msg = "the stream has ended: Airflow would restart the trigger every two seconds"
                raise AssertionError(msg)
            else:
                assert halted.done(), f"the sweep has not ended within {self._patience:g} s"
        finally:
            halted.cancel()

    # -- What becomes of events -----------------------------------------------------------------------

    async def acknowledge(self, *deliveries: Delivery) -> None:
        """Resolve events as stored in the metadata database."""
        await self._resolve({delivery.emission for delivery in deliveries}, _CLEAN)

    async def fail(self, *deliveries: Delivery) -> None:
        """Resolve events as not stored."""
        await self._resolve({delivery.emission for delivery in deliveries}, _FAILED)

    async def _resolve(self, emissions: set[Emission], outcome: AdvanceOutcome) -> None:
        """Note outcomes, and advance by the resolved contiguous prefix, as Airflow's one lane does."""
        self._outstanding = deque(
            (emission, outcome if emission in emissions else known) for emission, known in self._outstanding
        )
        batch = []
        while self._outstanding and (known := self._outstanding[0][1]) is not None:
            batch.append(AdvanceItem(self._outstanding.popleft()[0], known))
        if batch:
            await self._producer.advance(batch)

    async def commit(self, naps: int = NAPS) -> None:
        """
        Let acknowledgements age, and the committer save what it may.

        :param naps: How many of its naps pass; ten are ``commit_delay``.
        """
        for _ in range(naps):
            if self._pump is None or self.recorder.is_cut or not await self._nap(self._pump):
                break
        if self.recorder.is_cut and asyncio.current_task() is not self._pump:
            await self._end()

    async def _nap(self, pump: asyncio.Task[None]) -> bool:
        nap = asyncio.ensure_future(self._committer.nap())
        await asyncio.wait([nap, pump], return_when=asyncio.FIRST_COMPLETED)
        return not nap.cancel() and nap.result()

    async def stored(self) -> WatermarkState | None:
        """Read the watermark from the store, past the watcher."""
        wire = await self.store.load(self._written.key)
        return None if wire is None else WatermarkState.from_wire(wire)

    # -- Ends -----------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether there is a running instance; without one the next sweep starts one."""
        return self._pump is not None

    def kill(self) -> None:
        """Begin to end the instance as of SIGKILL; for what happens while it is awaited."""
        self.recorder.cut()
        if self._pump is not None:
            self._pump.cancel()

    def kill_after(self, awaits: int | None) -> None:
        """Let the next instance end as of SIGKILL when it waits for anything once more than so often."""
        self._awaits = awaits

    def trouble(self, trouble: Trouble | None) -> None:
        """Let the next instance meet with some trouble in its store."""
        self._trouble = trouble

    async def crash(self) -> None:
        """End the instance as SIGKILL does: nothing it still does reaches the store."""
        self.recorder.cut()
        await self._end()

    async def stop(self) -> None:
        """
        End the instance as SIGTERM, a pause and an edit do: it is cancelled. The next sweep starts anew.

        :raises AssertionError: It has begun to save something after that, or swallowed its cancellation.
        """
        asked = self.recorder.asked
        result = await self._end()
        assert self.recorder.asked == asked, "a cancelled watcher has saved its watermark"
        if result is not None and not isinstance(result, asyncio.CancelledError):
            raise result

    async def _end(self) -> BaseException | None:
        """Cancel the instance, and let all that is left of it do what it can; return how it has ended."""
        pump, self._pump = self._pump, None
        if pump is None:
            return None
        pump.cancel()
        await asyncio.wait([pump], timeout=_END)
        ended = pump.done()
        pump.cancel()
        (result,) = await asyncio.gather(pump, return_exceptions=True)
        await self._producer.aclose()
        self._committer.unleash()
        for _ in range(4 * NAPS):
            await asyncio.sleep(0)
        self._outstanding.clear()
        if not ended:
            return AssertionError(f"a cancelled watcher has not ended within {_END:g} s")
        return result or AssertionError("a cancelled watcher has swallowed its cancellation")

    # -- As Airflow does ------------------------------------------------------------------------------

    def _revive(self, written: BaseWatermarkTrigger) -> BaseWatermarkTrigger:
        return revive(written)

    def _start(self) -> None:
        self.trigger = trigger = self._revive(self._written)
        trigger.trigger_id = 1
        self.recorder = RecordingStore(self.store, broken=self.recorder.broken)
        self.recorder.trouble, self._trouble = self._trouble, None
        vars(trigger)["make_store"] = functools.partial(_same, self.recorder)
        trigger.shared_stream_key()
        _, kwargs = trigger.serialize()
        committers: list[SteppedCommitter] = []

        def build(*args: Any, **options: Any) -> Committer:
            committers.append(SteppedCommitter(*args, **options))
            return committers[0]

        with patch.object(base, "Committer", build):
            self._producer: SharedStreamProducer = type(trigger).create_shared_stream_producer(kwargs)
        (self._committer,) = committers
        self._pump = asyncio.create_task(self._live(self._awaits))
        self._awaits = None

    async def _live(self, awaits: int | None) -> None:
        if awaits is None:
            await self._drain()
        else:
            await mortal(self._drain(), awaits, self.kill)

    async def _drain(self) -> None:
        received = 0
        async for payload, emission in self._producer.open_stream():
            self._outstanding.append((emission, None))
            deliveries = [
                Delivery(json.loads(json.dumps(event.payload, allow_nan=False)), emission)
                async for event in self.trigger.filter_shared_stream(_once(payload))
            ]
            self._received += deliveries
            # What gives no event is resolved as soon as Airflow asks for the next.
            if self._delivering or not deliveries:
                await self._resolve({emission}, _CLEAN)
                received += 1
            if self._delivering and received % _COMMIT_EVERY == 0:
                await self.commit()


def _same(store: BaseWatermarkStore) -> BaseWatermarkStore:
    return store


async def _once(payload: Any) -> AsyncIterator[Any]:
    yield payload


class _ListHandler(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.DEBUG)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)
