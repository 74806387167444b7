"""A watcher, its source and its operator do what they like, and the promises hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow.providers.watermark.change import Change
from airflow.providers.watermark.testing import Harness
from airflow.providers.watermark.testing.doubles import Entry, WatchedList, _change
from tests.property.model import Model

LATE_ARRIVAL = 8
MAX_SEEN = 4
NAMES = st.sampled_from("abcdef")
SECONDS = st.sampled_from([1, 1, 2, LATE_ARRIVAL // 2, LATE_ARRIVAL, 2 * LATE_ARRIVAL])


class WatcherMachine(RuleBasedStateMachine):
    """The rules say what can happen; the model says what must follow."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.source = WatchedList()
        self.model = Model(max_seen=MAX_SEEN)
        self.uploads: dict[str, Callable[[], Awaitable[None]]] = {}
        self.version = 0

    @initialize(
        delivery=st.sampled_from(["eager", "settled"]),
        start=st.sampled_from(["beginning", "now"]),
        limit=st.integers(1, 3),
    )
    def start(self, delivery: str, start: str, limit: int) -> None:
        trigger = self.source.make_trigger(
            asset_name="orders",
            delivery=delivery,
            start_from=start,
            late_arrival=float(LATE_ARRIVAL),
            max_seen=MAX_SEEN,
            max_entries_per_event=limit,
        )
        if start == "now":
            self.model.start = self.source.now() - timedelta(seconds=1)
        self.watcher = Harness(trigger)
        self.run(self.watcher.__aenter__())
        self.sweep()

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        try:
            if hasattr(self, "watcher"):
                self.let_settle()
        finally:
            if hasattr(self, "watcher"):
                self.run(self.watcher.__aexit__())
            self.runner.close()

    # -- The source -----------------------------------------------------------------------------------

    @rule(names=st.sets(NAMES, min_size=1), ago=st.sampled_from([1, LATE_ARRIVAL // 2, LATE_ARRIVAL - 1]))
    def put_late(self, names: set[str], ago: int) -> None:
        """Put things, or overwrite some, late by less than the margin."""
        self.version += 1
        self.run(self.source.put(*names, ago=ago, version=self.version))
        for name in names:
            self.model.appears(self.current(name))

    @rule(names=st.sets(NAMES, min_size=1), version=st.sampled_from([-1, -2]))
    def put(self, names: set[str], version: int) -> None:
        """Put things, or overwrite some: within a second a version may come back."""
        self.run(self.source.put(*names, version=version))
        for name in names:
            self.model.appears(self.current(name))

    @rule(name=NAMES, ahead=st.integers(1, 3 * LATE_ARRIVAL))
    def put_in_the_future(self, name: str, ahead: int) -> None:
        self.version += 1
        self.run(self.source.put(name, ago=-ahead, version=self.version))
        self.model.appears(self.current(name))

    @rule(name=NAMES)
    def begin(self, name: str) -> None:
        if name not in self.uploads:
            self.uploads[name] = self.run(self.source.begin(name))

    @precondition(lambda self: self.uploads)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Finish what was begun, however long ago."""
        name = data.draw(st.sampled_from(sorted(self.uploads)))
        begun = self.source.list.uploads[name]
        self.run(self.uploads.pop(name)())
        self.version += 1
        self.source.list.entries[name] = Entry(self.version, begun)
        self.model.appears(self.current(name))

    @rule(seconds=SECONDS)
    def advance(self, seconds: int) -> None:
        self.run(self.source.advance(seconds))

    def current(self, name: str) -> Change:
        return _change(name, self.source.list.entries[name])

    # -- The watcher ----------------------------------------------------------------------------------

    @rule()
    def sweep(self) -> None:
        self.model.receive(self.run(self.watcher.sweep()))

    @rule(accesses=st.integers(0, 3), name=NAMES, seconds=SECONDS)
    def sweep_while_something_lands(self, accesses: int, name: str, seconds: int) -> None:
        async def land() -> None:
            nonlocal accesses
            accesses -= 1
            if accesses >= 0:
                self.source.between_accesses(land)
                return
            self.version += 1
            await self.source.put(name, version=self.version)
            self.model.appears(self.current(name))
            await self.source.advance(seconds)

        self.source.between_accesses(land)
        self.sweep()
        self.source.list.after_access = None

    @precondition(lambda self: self.model.flights)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.model.flights)))
        self.model.acknowledge(self.model.flights[:count])
        self.run(self.watcher.acknowledge(*(flight.delivery for flight in self.model.flights[:count])))

    @precondition(lambda self: any(not flight.acknowledged for flight in self.model.flights))
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """Of the events that are not yet resolved, all up to one are stored, and that one is not."""
        count = sum(not flight.acknowledged for flight in self.model.flights)
        self.fail_at(data.draw(st.integers(0, count - 1)))

    def fail_at(self, index: int) -> None:
        waiting = [flight for flight in self.model.flights if not flight.acknowledged]
        self.run(self.watcher.acknowledge(*(flight.delivery for flight in waiting[:index])))
        self.run(self.watcher.fail(waiting[index].delivery))
        self.model.acknowledge(waiting[:index])
        waiting[index].acknowledged = True  # resolved, that is
        if not waiting[index].dropped:
            self.model.interrupt()

    @rule()
    def commit(self) -> None:
        self.run(self.watcher.commit())
        self.model.commit()

    @rule()
    def deliver(self) -> None:
        """Let everything go well."""
        self.sweep()
        self.resolve(len(self.model.flights))

    @rule(resolved=st.integers(0, 4), how=st.sampled_from(["crash", "stop", "fail"]))
    def interrupt_a_delivery(self, resolved: int, how: str) -> None:
        self.sweep()
        self.resolve(resolved)
        if how != "fail":
            self.interrupt(how)
        elif self.model.flights:
            self.fail_at(0)

    def resolve(self, count: int) -> None:
        """Have the first events stored, and committed."""
        self.model.acknowledge(self.model.flights[:count])
        self.run(self.watcher.acknowledge(*(flight.delivery for flight in self.model.flights[:count])))
        self.commit()

    @rule(naps=st.integers(1, 9))
    def age_a_little(self, naps: int) -> None:
        """Some acknowledgements may then be old enough, and some not."""
        self.run(self.watcher.commit(naps))

    @rule(how=st.sampled_from(["crash", "stop"]))
    def interrupt(self, how: str) -> None:
        self.run(getattr(self.watcher, how)())
        self.model.end()

    @rule(ago=st.integers(0, 4 * LATE_ARRIVAL))
    def rewind(self, ago: int) -> None:
        """Set the watermark back, or forth."""
        low = self.source.now() - timedelta(seconds=ago)
        watermark = self.watcher.trigger.asset_watermark
        self.run(watermark.aset_value(low, self.watcher.store))
        state = self.run(self.watcher.stored())
        self.model.rewind(low, state.epoch)

    # -- What must follow -----------------------------------------------------------------------------

    @invariant()
    def what_is_stored_is_true(self) -> None:
        if hasattr(self, "watcher") and (state := self.run(self.watcher.stored())) is not None:
            self.model.check(state)

    @precondition(lambda self: hasattr(self, "watcher"))
    @rule()
    def let_settle(self) -> None:
        """Without interruptions everything is delivered at last, and then nothing more."""
        for _ in range(4):
            self.run(self.source.advance(2 * LATE_ARRIVAL))
            self.deliver()
        self.model.check_all_delivered()


WatcherMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestWatcher = WatcherMachine.TestCase
