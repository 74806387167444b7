"""
Delivery: when a watermark may be committed.

Yielding an event proves nothing: the triggerer resumes the generator at once, and another process stores
the event a second or two later. So a state goes through three stages here. It is *in flight* once its event
has been yielded; it is *acknowledged* once Airflow says that the event is in the metadata database (the
shared streams' ack mode, Airflow 3.3 and later); and it is *committed*, that is saved in the store, once the
acknowledgement has aged by ``commit_delay``.

Below Airflow 3.3 nothing says so. There every third nap has to end with an answer of the supervisor, the
process that stores events, or it and all later ones do not count; and whatever was in flight before such a
question is taken for acknowledged. The triggerer hands events over once a second, in the order in which the
supervisor is asked, and a nap is no shorter. So a state is committed only after three answers or more, with
three naps after each but the last: by the second the event had been handed over, by the third it had been
stored or dropped, and whoever was to be cancelled was. A supervisor that stalls does not look like a stored
event: while it does not answer, nothing ages.

It has to age because of one hole: when the trigger's row is gone (the Dag was paused, the trigger edited)
Airflow drops the event and acknowledges it all the same (``Trigger.submit_event``), and the cancellation of
the trigger comes with the same answer of the supervisor, or with the next. Whoever waits is cancelled first,
and commits nothing. Age is counted in naps that were really slept, not in time that went by: a process that
was stopped for an hour has not aged.

Acknowledgements count only as a contiguous prefix. Anything but a clean one drops all uncommitted work, and
the watcher goes on from what the store has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow.providers.watermark.exceptions import StoreError, WatermarkConflictError
from airflow.providers.watermark.stores.base import BaseWatermarkStore, WatermarkKey
from airflow.providers.watermark.version_compat import HAS_ACK_MODE, AdvanceItem, SharedStreamProducer
from airflow.providers.watermark.watermark import WatermarkState, is_reset

__all__ = [
    "DEFAULT_COMMIT_DELAY",
    "MIN_COMMIT_DELAY",
    "AckModeProducer",
    "Committer",
    "Emission",
    "StaleError",
]

DEFAULT_COMMIT_DELAY: Final = 5.0 if HAS_ACK_MODE else 10.0
"""Seconds between the acknowledgement of an event and the commit of its watermark."""

MIN_COMMIT_DELAY: Final = 0.0 if HAS_ACK_MODE else 10.0
"""Seconds below which ``commit_delay`` is not followed: without acknowledgements a nap lasts a second."""

MAX_UNACKNOWLEDGED: Final = 64
"""Events of one watcher that Airflow may have to store at a time: about a second's work for its supervisor,
and far fewer than a subscriber's queue holds."""

MAX_UNCOMMITTED: Final = 512
"""Events of one watcher that may wait to be committed: those of ``commit_delay`` and a little more."""

_NAPS: Final = 10
_NAPS_PER_ROUND_TRIP: Final = 3


class StaleError(Exception):
    """What is in memory no longer follows from what is stored: drop it, and load again."""


@dataclass(slots=True, eq=False)
class Emission:
    """
    An event on its way, with the state that holds once it is delivered.

    :param payload: The event's payload, or ``None`` if only progress is to be saved, or once it is stored.
    :param state: The state to commit after it.
    :param worth_saving: Whether a state without an event is saved, or only replaces the one in memory.
    :param acknowledged: The nap count at the acknowledgement.
    :param handed_over: Whether its consumer has asked for more since. Where nothing acknowledges events, no
        answer of the supervisor counts before: the triggerer writes its log before it takes an event.
    """

    payload: dict[str, Any] | None
    state: WatermarkState
    worth_saving: bool = True
    acknowledged: int | None = None
    handed_over: bool = False


class Committer:
    """
    Owns the stored state of one running watcher: loads it, and commits what has been delivered.

    :param make_store: Gives the store; asked at the first load, so that its errors are met there.
    :param key: The watermark's name.
    :param source: The fingerprint of what is watched; a stored state of another source is refused.
    :param commit_delay: Seconds that an acknowledgement ages, above 0.
    :param log: Where to say that saving fails, once per cause.
    :param round_trip: Where nothing acknowledges events: returns once the triggerer's supervisor answers.
    """

    def __init__(
        self,
        make_store: Callable[[], BaseWatermarkStore],
        key: WatermarkKey,
        *,
        source: Mapping[str, Any],
        commit_delay: float,
        log: logging.Logger | logging.LoggerAdapter[Any],
        round_trip: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._make_store = make_store
        self._store: BaseWatermarkStore | None = None
        self._key = key
        self._source = source
        self._nap = commit_delay / _NAPS
        self._log = log
        self._round_trip = round_trip
        self._lock = asyncio.Lock()
        self._in_flight: deque[Emission] = deque()
        self._unacknowledged = 0
        # Two, since each is cleared by the one task that waits for it: what a task clears for itself another
        # one could miss.
        self._taken = asyncio.Event()
        self._moved = asyncio.Event()
        self._stale = asyncio.Event()
        self._naps = 0
        self._status: Mapping[str, str] | None = None
        self._unsure: WatermarkState | None = None
        self._wire: dict[str, Any] | None = None
        self._epoch = 1
        self.committed: WatermarkState | None = None
        self.head: WatermarkState | None = None

    async def load(self) -> WatermarkState | None:
        """
        Drop all uncommitted work and load what is stored.

        :return: The state, or ``None`` if it is known that none is stored.
        :raises StoreError: It cannot be found out.
        :raises StateError: What is stored cannot be used, or belongs to another source.
        """
        async with self._lock:
            self._drop()
            self._stale.clear()
            self._unsure = self._wire = self.committed = None
            self._epoch = 1
            wire = await self._load()
            if wire is None:
                return None
            if is_reset(wire):
                self._wire, self._epoch = wire, wire["epoch"]
                return None
            state = WatermarkState.from_wire(wire)
            state.require_source(self._source, self._key)
            self._status = state.status
            self._wire = wire
            self.committed = self.head = state
            return state

    async def check(self) -> None:
        """
        Read the store again, to see what an operator or another triggerer changed.

        A watermark that is missing or cannot be read changes nothing: what is in memory is known to be true.

        :raises StaleError: Another state is stored than the one committed last.
        """
        async with self._lock:
            try:
                wire = await self._load()
            except StoreError as error:
                self._log.debug("The watermark could not be read again: %s", error)
                return
            self._settle(wire)
            if wire is not None and wire != self._wire:
                self._log.info("The stored watermark was changed by somebody else; it is adopted")
                self._drop()
        self._raise_if_stale()

    async def create(self, state: WatermarkState) -> WatermarkState:
        """
        Save a first state at once, in the epoch that a reset has begun.

        :return: The state in that epoch: what to go on from.
        """
        state = replace(state, epoch=self._epoch)
        async with self._lock:
            await self._save(state)
            self.head = self.committed
        return state

    async def intend(self, state: WatermarkState) -> WatermarkState:
        """
        Save at once, before anything is delivered, what is about to be.

        :param state: Makes no new claim of delivery.
        :return: The state as it is stored.
        """
        async with self._lock:
            await self._save(state)
            self.head = self.committed
        return state

    async def settle(self) -> None:
        """
        Wait until all that was admitted is committed.

        :raises StaleError: It was dropped instead.
        """
        while self._in_flight:
            self._raise_if_stale()
            self._moved.clear()
            await self._first_of(self._moved, self._stale)
        self._raise_if_stale()

    async def report(self, status: Mapping[str, str] | None, *, save: bool = True) -> None:
        """
        Note the watcher's status, to be saved with the next state.

        :param save: Save it at once, if there is a watermark and the store can be reached.
        """
        self._status = status
        if not save:
            return
        async with self._lock:
            if self.committed is None or self.committed.status == status:
                return
            try:
                await self._save(self.committed)
            except Exception as error:  # noqa: BLE001 - a status is never worth an error
                self._log.debug("The status could not be saved: %s", error)

    async def admit(self, emission: Emission) -> None:
        """
        Take an event in flight, as soon as there is room.

        :raises StaleError: The event follows from a state that is no longer the stored one.
        """
        await asyncio.sleep(0)  # a backlog must not keep the loop to itself
        while self._unacknowledged >= MAX_UNACKNOWLEDGED or len(self._in_flight) >= MAX_UNCOMMITTED:
            self._raise_if_stale()
            self._moved.clear()
            await self._first_of(self._moved, self._stale)
        self._raise_if_stale()
        self._unacknowledged += 1
        self._in_flight.append(emission)
        self.head = emission.state
        self._taken.set()

    def advance(self, state: WatermarkState) -> None:
        """
        Go on from a state that brought no news, and that is not worth a save.

        :raises StaleError: It follows from a state that is no longer the stored one.
        """
        self._raise_if_stale()
        self.head = state

    def acknowledge(self, emission: Emission) -> None:
        """Note that an event is stored; what is no longer in flight is ignored."""
        if emission.acknowledged is None and emission in self._in_flight:
            emission.acknowledged = self._naps
            emission.payload = None
            self._unacknowledged -= 1
            self._moved.set()

    def fail(self, emission: Emission) -> None:
        """Note that an event may not be stored: everything uncommitted is delivered again."""
        if emission in self._in_flight:
            self._log.warning("Airflow did not store an event; what is not yet committed is delivered again")
            self._drop()

    def abandon(self) -> None:
        """Commit nothing more of what is in flight: the watcher was cancelled."""
        self._drop()

    @property
    def uncommitted(self) -> int:
        """How many events have been handed over, and not yet committed."""
        return len(self._in_flight)

    async def rest(self, seconds: float) -> None:
        """Sleep, or less if uncommitted work has to be dropped meanwhile."""
        if seconds > 0:
            await self._first_of(self._stale, seconds=seconds)

    async def run(self) -> None:
        """Commit for ever, each time the newest state whose acknowledgement, and all before, have aged."""
        failure: str | None = None
        while True:
            if not self._in_flight:
                self._taken.clear()
                await self._taken.wait()
            await asyncio.sleep(self._nap)
            try:
                await self._presume()
                self._naps += 1
                await self._commit()
            except WatermarkConflictError as error:
                self._log.warning(
                    "%s; the stored one is loaded, what is not yet committed comes again", error
                )
                self._drop()
            except Exception as error:  # noqa: BLE001 - whatever a store does, it is tried again
                if failure != str(error):
                    unexpected = None if isinstance(error, StoreError) else error
                    self._log.warning("The watermark cannot be saved: %s", error, exc_info=unexpected)
                failure = str(error)
            else:
                failure = None

    async def _presume(self) -> None:
        """Where nothing acknowledges events: do so, now and then, once the supervisor has answered."""
        if self._round_trip is None or self._naps % _NAPS_PER_ROUND_TRIP:
            return
        asked_after = [emission for emission in self._in_flight if emission.handed_over]
        await self._round_trip()
        for emission in asked_after:
            self.acknowledge(emission)

    async def _commit(self) -> None:
        async with self._lock:
            aged = 0
            for emission in self._in_flight:
                if emission.acknowledged is None or self._naps - emission.acknowledged <= _NAPS:
                    break
                aged += 1
            if not aged:
                return
            emissions = self._in_flight
            await self._save(emissions[aged - 1].state)
            if emissions is self._in_flight:  # nothing was dropped meanwhile
                for _ in range(aged):
                    emissions.popleft()
                self._moved.set()

    async def _load(self) -> dict[str, Any] | None:
        if self._store is None:
            self._store = self._make_store()
        return await self._store.load(self._key)

    async def _save(self, state: WatermarkState) -> None:
        if self._store is None:
            self._store = self._make_store()
        if self._unsure is not None:
            self._settle(await self._store.load(self._key))
        revision = 0 if self._wire is None else self._wire["revision"]
        state = replace(state, revision=revision + 1, status=self._status)
        wire = state.to_wire()
        self._unsure = state
        await self._store.save(self._key, wire, expected=self._wire)
        self.committed, self._wire, self._unsure = state, wire, None

    def _settle(self, wire: dict[str, Any] | None) -> None:
        """Find out whether a save that failed has happened all the same."""
        if self._unsure is not None and wire == self._unsure.to_wire():
            self.committed, self._wire = self._unsure, wire
        self._unsure = None

    def _drop(self) -> None:
        self._in_flight = deque()
        self._unacknowledged = 0
        if self.head is not None:
            self.head = None
            self._stale.set()
        self._moved.set()

    def _raise_if_stale(self) -> None:
        if self._stale.is_set():
            self._stale.clear()
            raise StaleError

    @staticmethod
    async def _first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
        tasks = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


class AckModeProducer(SharedStreamProducer):
    """
    Connects a watcher to a shared stream in ack mode.

    :param emissions: The watcher at work.
    :param committer: Commits what is delivered of it.
    """

    def __init__(self, emissions: AsyncGenerator[Emission, None], committer: Committer) -> None:
        self._emissions = emissions
        self._committer = committer

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any] | None, Emission]]:
        """Yield each emission's payload, and the emission as what is to be acknowledged."""
        async with aclosing(self._emissions) as emissions:
            async for emission in emissions:
                yield emission.payload, emission

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note how events were resolved. Saving is left to the committer: one pump serves all events."""
        for item in batch:
            if item.outcome.is_clean:
                self._committer.acknowledge(item.broker_payload)
            else:
                self._committer.fail(item.broker_payload)
