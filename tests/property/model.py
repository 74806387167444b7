"""What a watcher promises, as a model: it knows nothing of sweeps, cursors or bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from airflow.providers.watermark.change import Change, digest
from airflow.providers.watermark.position import BEGINNING, Position, is_after
from airflow.providers.watermark.testing import Delivery
from airflow.providers.watermark.watermark import WatermarkState


@dataclass
class Flight:
    """
    An event that the watcher has yielded, and that is not yet committed.

    :param dropped: The watcher has dropped it; Airflow still stores it, and says so.
    """

    delivery: Delivery
    acknowledged: bool = False
    dropped: bool = False


@dataclass
class Model:
    """
    Keeps the promises P1 to P3 in mind, and finds each one that is broken.

    :ivar promised: What has to be delivered at last, by identity: only the last version of a thing is.
    :ivar delivered: What was delivered, by epoch and id, and how often.
    :ivar stored: What of it Airflow has stored: only that counts.
    :ivar last: The id that was stored last, by identity.
    :ivar may_repeat: What may come once more in each epoch, since an interruption found it uncommitted.
    """

    max_seen: int
    promised: dict[str, Change] = field(default_factory=dict)
    delivered: Counter[tuple[int, str]] = field(default_factory=Counter)
    stored: set[tuple[int, str]] = field(default_factory=set)
    last: dict[str, str] = field(default_factory=dict)
    may_repeat: Counter[tuple[int, str]] = field(default_factory=Counter)
    event_of: dict[tuple[int, tuple[str, ...]], str] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    epoch: int = 1
    low: Position | None = None
    start: Position = BEGINNING

    def appears(self, change: Change) -> None:
        """Note a change that the watcher has to deliver, unless it lies before where it was told to start."""
        self.promised.pop(change.identity, None)  # it is replaced, and cannot be read any more
        if is_after(change.position, self.start):
            self.promised[change.identity] = change

    def receive(self, deliveries: list[Delivery]) -> None:
        """Note what was delivered: nothing that was committed, or is in flight, comes again."""
        for delivery in deliveries:
            for change_id in delivery.ids:
                key = (delivery.epoch, change_id)
                if self.delivered[key]:
                    assert self.may_repeat[key], f"{key} comes again though nothing was interrupted"
                    self.may_repeat[key] -= 1
                self.delivered[key] += 1
            self.flights.append(Flight(delivery))

    def acknowledge(self, flights: list[Flight]) -> None:
        """Note that Airflow has stored some events."""
        for flight in flights:
            flight.acknowledged = True
            for change in flight.delivery.payload["changes"]:
                self.stored.add((flight.delivery.epoch, change["id"]))
                self.last[change["name"]] = change["id"]

    def interrupt(self) -> None:
        """Note that everything uncommitted was dropped, and may come again."""
        for flight in self.flights:
            flight.dropped = True
            for change_id in flight.delivery.ids:
                self.may_repeat[flight.delivery.epoch, change_id] = 1

    def end(self) -> None:
        """Note that the instance has ended, and with it all that Airflow would have told it."""
        self.interrupt()
        self.flights.clear()

    def commit(self) -> None:
        """Note that what is acknowledged has been committed, as far as there is no gap."""
        while self.flights and self.flights[0].acknowledged:
            self.flights.pop(0)

    def rewind(self, low: Position, epoch: int) -> None:
        """Note that an operator has set the watermark: what lies at or before it is no longer promised."""
        self.promised = {
            name: change for name, change in self.promised.items() if is_after(change.position, low)
        }
        self.interrupt()
        self.epoch, self.low, self.start = epoch, None, low

    def check(self, state: WatermarkState) -> None:
        """Check that what is stored is bounded, never goes back, and claims nothing that is not so."""
        assert state.epoch == self.epoch
        assert len(state.seen) <= self.max_seen
        assert self.low is None or not is_after(self.low, state.low), "the low watermark has gone back"
        self.low = state.low
        assert WatermarkState.from_wire(state.to_wire()).to_wire() == state.to_wire()
        for name, change in self.promised.items():
            if digest(name) not in state.pending and self._claims(state, change):
                key = (self.epoch, change.id)
                assert key in self.stored, f"{change} is claimed, and its event was never stored"

    @staticmethod
    def _claims(state: WatermarkState, change: Change) -> bool:
        if not is_after(change.position, state.low) or change.id in state.seen:
            return True
        return (
            state.high is not None
            and state.cursor is not None
            and not is_after(change.position, state.high)
            and not is_after(change.cursor, state.cursor)
        )

    def check_all_delivered(self) -> None:
        """Check, after a time without interruptions, that nothing promised is missing."""
        missing = [change for change in self.promised.values() if not self.delivered[self.epoch, change.id]]
        assert not missing, f"lost: {missing}"
        stale = [change for name, change in self.promised.items() if self.last.get(name) != change.id]
        assert not stale, f"lost: an older version was announced after {stale}"
