"""
The algorithm: one watcher at work.

An error never leaves :meth:`Watch.run`, so Airflow never restarts the trigger in a hot loop; an error never
becomes an event, so it starts no Dag run; and it never moves the watermark.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.watermark.change import HighWatermark, Window, digest
from airflow.providers.watermark.delivery import Committer, Emission, StaleError
from airflow.providers.watermark.events import Batch, window_payload
from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.heap import freeze
from airflow.providers.watermark.position import BEGINNING, Position, is_after
from airflow.providers.watermark.triggers.health import Health
from airflow.providers.watermark.watermark import MAX_PENDING, Pending, Sweep, WatermarkState

if TYPE_CHECKING:
    from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger

__all__ = ["Watch"]

CHECKPOINT_INTERVAL: Final = 30.0
"""Seconds after which a long sweep saves how far it has come, news or not."""

WAKE_AFTER: Final = 30.0
"""
Seconds of silence after which an event without changes follows a burst of events.

Airflow starts no run for an event that is stored while an earlier one of the same asset is still queued for
the Dag, until yet another event comes (apache/airflow#56050): the queue keeps the earlier one's time, and the
run takes events up to it. Without this last event the end of a burst would wait for the next change.
"""

MIN_SECONDS: Final = 0.01
MAX_SECONDS: Final = 1e9

MAX_SET_BACK: Final = timedelta(seconds=1)
"""By how much a source's clock may go back without a word, beside its step."""

UNKNOWN: Final = timedelta(days=1)
"""For how long a source may have had another clock, when the watcher has just begun and cannot know."""

MAX_BACKOFF: Final = 300.0
"""Seconds that a watcher waits at the most after an error."""


class Watch:
    """
    Loads the state, sweeps the source, and hands over what is new.

    :param trigger: Says what is watched, and how.
    :param committer: Owns the stored state; whoever consumes :meth:`run` acknowledges each emission to it.
    """

    def __init__(self, trigger: BaseWatermarkTrigger, committer: Committer) -> None:
        self._trigger = trigger
        self._committer = committer
        self._log = trigger.log
        self._health = Health(trigger, committer)
        self._restless = False
        self._event_at: float | None = None
        self._asked_at: float | None = None
        self._trusted_at: float | None = None
        """When the source was asked last without any doubt of its clock, by ``time.monotonic``."""
        self._clock: tuple[datetime, float] | None = None
        self._set_back = False

    async def run(self) -> AsyncGenerator[Emission, None]:
        """Watch for ever: sweep, hand over what is new, rest."""
        trigger, committer = self._trigger, self._committer
        self._log.info("Watching, as %r", trigger)
        if unknown := trigger.unknown_arguments:
            self._log.warning("Arguments unknown to this release are ignored: %s", sorted(unknown))
        saver = asyncio.create_task(committer.run())
        health, is_open, begins = self._health, False, True
        try:
            await health.begin()
            while True:
                began = time.monotonic()
                try:
                    if not is_open:
                        await trigger.open()
                        is_open = True
                        freeze(begins=begins)
                        begins = False
                    state = await self._state()
                    reading = self._windows(state) if trigger.delivers_windows else self._sweep(state)
                    async with aclosing(reading) as emissions:
                        async for emission in emissions:
                            if emission.payload is None and not emission.worth_saving:
                                committer.advance(emission.state)
                                continue
                            await committer.admit(emission)
                            if emission.payload is not None:
                                health.count(emission.payload)
                            yield emission
                    # In here, since an argument that another release has stored may be anything.
                    pause = _seconds(trigger.poll_interval, 60.0) * random.uniform(0.9, 1.1)  # noqa: S311
                except StaleError:
                    continue
                except Exception as error:  # noqa: BLE001 - nothing may end the watch
                    is_open = False
                    await health.fail(error)
                    await trigger.close()
                    # Full jitter: watchers that fail together do not come back together.
                    await committer.rest(random.uniform(0, min(MAX_BACKOFF, 2.0 ** min(health.failures, 16))))  # noqa: S311
                else:
                    freeze()  # what the first sweeps have loaded
                    await health.succeed(time.monotonic() - began)
                    await committer.rest(pause)
        finally:
            saver.cancel()
            try:
                await asyncio.gather(saver, return_exceptions=True)
            finally:
                await trigger.close()

    async def _state(self) -> WatermarkState:
        """Give the state to sweep from: the one in memory, the stored one, or a first one."""
        committer = self._committer
        if committer.head is not None:
            await committer.check()
            return committer.head
        state = await committer.load()
        if state is not None:
            self._restless = state.restless
            if self._event_at is None:
                self._event_at = time.monotonic()  # who knows when the last event was, before this start
        else:
            state = await committer.create(await self._first_state())
            self._log.info("A new watermark was stored; start_from=%r", self._trigger.start_from)
        return state

    def _emission(
        self, payload: dict[str, Any] | None, state: WatermarkState, *, worth_saving: bool = True
    ) -> Emission:
        """Note when events come, and whether one more is owed."""
        if payload is not None:
            now = time.monotonic()
            self._restless = self._event_at is not None and now - self._event_at < WAKE_AFTER
            self._event_at = now
        return Emission(payload, replace(state, restless=self._restless), worth_saving)

    @property
    def _owes_event(self) -> bool:
        return self._restless and time.monotonic() - (self._event_at or 0.0) >= WAKE_AFTER

    async def _first_state(self) -> WatermarkState:
        """Make the state that ``start_from`` asks for."""
        trigger, source = self._trigger, self._trigger.fingerprint
        if trigger.start_from == "beginning":
            return WatermarkState(source=source, low=BEGINNING)
        bounds = await trigger.get_high_watermark()
        low = await trigger.first_position(bounds)
        if trigger.start_from != "now":
            return WatermarkState(source=source, low=low, asked=low)
        slots = await self._late_slots(bounds, low, {})
        return WatermarkState(source=source, low=low, seen=await trigger.first_seen(low), pending=slots)

    async def _late_slots(
        self, bounds: HighWatermark, low: Position, pending: Mapping[str, Pending]
    ) -> dict[str, Pending]:
        """
        Give slots to what is late at or before the low watermark and has none.

        Its upload began before the watcher did, or could not be seen for a while. What is visible of it now
        is old news.
        """
        late = {
            identity: since
            for identity, since in (bounds.late or {}).items()
            if not is_after(since, low) and digest(identity) not in pending
        }
        room = MAX_PENDING - len(pending)
        if len(late) > room:
            self._trigger.say_once(
                "late slots",
                f"{len(late)} uploads began before the low watermark; of these, the {room} begun last are "
                "watched for",
            )
            late = dict(sorted(late.items(), key=lambda item: item[1])[len(late) - room :])
        if not late:
            return dict(pending)
        current = await self._trigger.find_changes(list(late))
        # What ended while it was looked up may itself be what was found: then it is news.
        still = (await self._trigger.get_high_watermark()).late or ()
        slots = dict(pending)
        for identity, since in late.items():
            change = current.get(identity) if identity in still else None
            # What lies after the low watermark is news all the same.
            is_old = (
                change is not None
                and not is_after(since, change.position)
                and not is_after(change.position, low)
            )
            last = change.id if change is not None and is_old else None
            slots[digest(identity)] = Pending(since, last)
        return slots

    async def _ask_bounds(self) -> HighWatermark:
        """Ask how far the source is settled, and see whether its clock has gone back since."""
        asked_at = time.monotonic()
        bounds = await self._trigger.get_high_watermark()
        due, before = bounds.clock or bounds.due, self._clock
        if isinstance(due, datetime) and due.tzinfo is not None:
            if before is not None:
                passed = timedelta(seconds=asked_at - before[1])  # at the least
                leeway = bounds.step + min(MAX_SET_BACK, timedelta(seconds=self._trigger.lateness))
                self._set_back = self._set_back or due < before[0] + passed - leeway
            self._clock = due, time.monotonic()
        self._asked_at = asked_at
        return bounds

    def _pull_back(self, state: WatermarkState, bounds: HighWatermark) -> WatermarkState:
        """
        Take back a low watermark, or a sweep under way, that a wrong clock of the source's has made.

        What has been stamped since is at or before it, and would never be looked for. The clock may have been
        set right soon after it was asked last: what has been stamped since then comes, too.
        """
        reached = state.low if state.high is None else state.high
        asked_for = state.high is None and state.low == state.asked
        ahead = bounds.due is not None and is_after(reached, bounds.due)
        told = f"the low watermark, {reached!r}, is ahead of the source's clock, {bounds.due!r}; "
        told += "changes are watched for from then on" if asked_for else "it is taken back"
        self._trigger.say_once("clock", ahead and told)
        # Without a settled bound yet, from a barrier that still stands, there is nothing to take it back to.
        if bounds.bound is BEGINNING:
            return state
        unwatched = UNKNOWN
        if self._trusted_at is not None:
            unwatched = timedelta(seconds=time.monotonic() - self._trusted_at)
        low = _earlier(bounds.bound, unwatched)
        must = (ahead or self._set_back) and not asked_for and is_after(reached, low)
        if must and not ahead:
            self._log.warning("The source's clock was set back; changes from %r on are looked for again", low)
        self._trusted_at, self._set_back = self._asked_at, False
        return state.pull_back(low) if must else state

    async def _sweep(self, state: WatermarkState) -> AsyncGenerator[Emission, None]:
        """Read the source once, from the state's low watermark or from where an earlier sweep broke off."""
        trigger = self._trigger
        bounds = await self._ask_bounds()
        state = self._pull_back(state, bounds).follow_rule(bounds.stray_rule, bounds.step)
        slots = await self._late_slots(bounds, state.low, state.pending)
        state = replace(state, pending=slots)
        sweep = Sweep(state, bounds, trigger.max_seen if trigger.eager else 0)
        batch = Batch(
            watcher=trigger.watcher_name,
            source=trigger.source,
            low=sweep.low,
            high=sweep.high,
            epoch=state.epoch,
            max_changes=trigger.max_changes_per_event,
            max_bytes=trigger.max_event_bytes,
        )
        # How far strays are delivered is worth a save by itself: to look for them takes long.
        worth_saving, saved_at = state.high is not None or sweep.stray_high is not None, time.monotonic()
        try:
            async with aclosing(trigger.read_changes(sweep)) as pages:
                async for page in pages:
                    for change in page.changes:
                        if not sweep.admits(change):
                            continue
                        if not batch.add(change):
                            yield self._emission(batch.close(), sweep.snapshot())
                            worth_saving, saved_at = True, time.monotonic()
                            batch.add(change)
                        sweep.take(change)
                    sweep.read_to(page)
                    if time.monotonic() - saved_at >= CHECKPOINT_INTERVAL:
                        yield self._emission(batch.close(), sweep.snapshot())
                        worth_saving, saved_at = True, time.monotonic()
        except Exception:
            # What was read counts: deliver it, and go on behind it.
            yield self._emission(batch.close(), sweep.snapshot(), worth_saving=False)
            raise
        self._say_what_waits(sweep)
        payload = batch.close()
        if payload is None and self._owes_event:
            payload = batch.close_empty()
        self._health.covered = sweep.high
        # A first anchor is saved at once: to find it took a reading of all there is.
        is_anchored = sweep.anchor is not None and state.anchor is None
        yield self._emission(payload, sweep.finish(), worth_saving=worth_saving or is_anchored)

    async def _windows(self, state: WatermarkState) -> AsyncGenerator[Emission, None]:
        """
        Deliver what is settled, window by window.

        A window is stored as intended before it is handed over, and the next one is found only when it has
        been committed: so after a crash the very same window comes again, and no other that overlaps it.
        """
        trigger, committer = self._trigger, self._committer
        bounds = await self._ask_bounds()
        if (pulled := self._pull_back(state, bounds)) is not state:
            # In a new epoch, or its windows would overlap with those that were delivered.
            state = await committer.intend(replace(pulled, epoch=state.epoch + 1))
        bound = bounds.final
        while (window := await trigger.find_window(state.low, bound, state.high)) is not None:
            if not is_after(window.high, state.low):
                msg = f"{trigger.source}: a window ends at {window.high!r}, which is not after {state.low!r}"
                raise SourceError(msg)
            if state.high is None:
                state = await committer.intend(replace(state, high=window.high))
            payload = self._window_payload(state, window)
            state = replace(state, low=window.high, high=None)
            yield self._emission(payload, state)
            await committer.settle()
        self._health.covered = bound
        if self._owes_event:
            yield self._emission(self._window_payload(state, Window(high=state.low, count=0)), state)

    def _window_payload(self, state: WatermarkState, window: Window) -> dict[str, Any]:
        trigger = self._trigger
        return window_payload(
            watcher=trigger.watcher_name,
            source=trigger.source,
            low=state.low,
            high=window.high,
            epoch=state.epoch,
            count=window.count,
            column=trigger.window_column,
        )

    def _say_what_waits(self, sweep: Sweep) -> None:
        trigger = self._trigger
        trigger.say_once(
            "full",
            sweep.full
            and f"more than max_seen={trigger.max_seen} changes within "
            f"late_arrival={trigger.lateness:g} s: further ones are delivered once they are that old",
        )
        trigger.say_once(
            "held back",
            sweep.held_back
            and f"more than {MAX_PENDING} uploads are in progress: changes are remembered until some end",
        )
        first = sweep.future
        trigger.say_once(
            "future",
            first is not None
            and f"{sweep.future_count} changes are dated in the future and wait until then; the first is "
            f"{first.identity!r} at {first.position!r}",
        )


def _earlier(position: Position, passed: timedelta) -> Position:
    """Give the position so long before one of a clock."""
    try:
        if isinstance(position, datetime):
            return position - passed
        if isinstance(position, date):
            return position - timedelta(days=1 + passed.days)
    except OverflowError:
        return BEGINNING
    return position


def _seconds(value: object, default: float) -> float:
    """Read a duration that another release may have stored: whatever it is, it must not make a hot loop."""
    if isinstance(value, int | float) and MIN_SECONDS <= value <= MAX_SECONDS:
        return float(value)
    return default
