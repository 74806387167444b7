"""
The watermark of one watcher: a small value, and what a sweep does to it.

Pure: no I/O, no clock, no Airflow. The state makes one claim, and every stored version of it is true:
*everything at or before* ``low`` *has been delivered, and so has all that* ``seen`` *names; while* ``high``
*is set, so has everything at or before* ``high`` *that the sweep has read up to* ``cursor``. ``pending``
names the identities that may still appear at or before ``low``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from airflow.providers.watermark.change import Change, HighWatermark, Page, digest
from airflow.providers.watermark.exceptions import PositionTypeError, StateError
from airflow.providers.watermark.position import (
    BEGINNING,
    Position,
    decode_position,
    encode_position,
    is_after,
    position_type,
    require_same_type,
)

__all__ = ["MAX_PENDING", "STATE_VERSION", "Pending", "Sweep", "WatermarkState", "is_reset", "reset_wire"]

STATE_VERSION: Final = 1
MAX_PENDING: Final = 2048
"""
Slots for late identities in one state: 22 bytes each for those begun in the same second, up to 81 for others.

What does not fit holds the bound back instead.
"""

_NO_ID: Final = "AAAAAAAAAAA"  # eight zero bytes
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Pending(NamedTuple):
    """
    An identity that may still appear at or before the low watermark.

    :ivar since: The earliest position that it can have, inclusive.
    :ivar last: The id of its newest delivered change, if any since then.
    """

    since: Position
    last: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkState:
    """
    What is stored.

    :param source: What is watched: the fingerprint of the source, JSON scalars and lists of them.
    :param low: The low watermark, an inclusive cut.
    :param high: The bound of the sweep under way, inclusive, or ``None`` between sweeps.
    :param cursor: How far that sweep has been delivered, in reading order, inclusive.
    :param seen: Ids of delivered changes after ``low``, with their positions.
    :param pending: Late identities, by :func:`~airflow.providers.watermark.change.digest`.
    :param anchor: Where sweeps may begin, in reading order, exclusive; ``None``: at the beginning.
    :param stray_low: The low watermark of strays, an inclusive cut, where the watcher has them: changes that
        most sweeps do not look for.
    :param stray_high: While the sweep under way looks for strays, their bound in it, inclusive.
    :param stray_rule: By what rule a change counted as a stray.
    :param restless: Whether the newest event followed another so closely that Airflow may have stored it
        without starting a run: then one without changes is owed.
    :param asked: The low watermark that somebody has asked for: by ``start_from``, or by a rewind.
    :param epoch: Raised by each rewind: what is delivered again on purpose has another epoch.
    :param revision: Raised by each save.
    :param status: ``None``, or the error that the watcher waits to see mended: ``error`` and ``since``.
    """

    source: Mapping[str, Any]
    low: Position
    high: Position | None = None
    cursor: Position | None = None
    seen: Mapping[str, Position] = field(default_factory=lambda: _NOTHING)
    pending: Mapping[str, Pending] = field(default_factory=lambda: _NOTHING)
    anchor: Position | None = None
    stray_low: Position | None = None
    stray_high: Position | None = None
    stray_rule: str | None = None
    restless: bool = False
    asked: Position | None = None
    epoch: int = 1
    revision: int = 0
    status: Mapping[str, str] | None = None

    def require_source(self, source: Mapping[str, Any], key: Sequence[str]) -> None:
        """
        Check that the state is one of what is watched.

        :param source: The fingerprint of what is watched.
        :param key: The watermark's key, for the message.
        :raises StateError: It is another source's.
        """
        if self.source != source:
            msg = (
                f"the stored watermark {'/'.join(key)} belongs to another source, {dict(self.source)}, while "
                f"this trigger watches {dict(source)}. Name another watermark_key, or reset it"
            )
            raise StateError(msg)

    def rewind(self, low: Position) -> Self:
        """
        Set the low watermark to another position, on purpose.

        :param low: The new cut, inclusive: what comes after it is delivered, again if need be.
        :raises PositionTypeError: The source's positions are of another type, or it is no position.
        """
        position_type(low)
        if BEGINNING not in (low, self.low):
            require_same_type(low, self.low)
        delivered = [self.low, self.high, *self.seen.values()]
        back = any(position is not None and is_after(position, low) for position in delivered)
        # What is under way stays so: no sweep may look at it before it ends.
        pending = {name: slot._replace(last=None) if back else slot for name, slot in self.pending.items()}
        return replace(
            self,
            low=low,
            high=None,
            cursor=None,
            seen=_NOTHING,
            pending=pending,
            anchor=None,
            stray_low=None if self.stray_low is None else low,
            stray_high=None,
            asked=low,
            epoch=self.epoch + 1,
        )

    def pull_back(self, low: Position) -> Self:
        """
        Take back what has gone past a position, since a wrong clock had told that all up to there is settled.

        :param low: The cut, inclusive, from which on changes are looked for again.
        """
        strays = self.stray_low
        return replace(
            self,
            low=low if is_after(self.low, low) else self.low,
            high=None,
            cursor=None,
            anchor=None,
            stray_low=low if strays is not None and is_after(strays, low) else strays,
            stray_high=None,
        )

    def follow_rule(self, rule: str | None, step: timedelta) -> Self:
        """
        Go on under another rule of what strays are.

        What waits as a stray under the old one may be none under the new one, and the other way round. So all
        is looked for once more from the earlier of the two cuts on: what was delivered after it comes again,
        with the same ids.

        :param rule: The rule that holds from now on.
        :param step: The distance between two neighbouring positions.
        """
        if rule == self.stray_rule:
            return self
        if self.stray_low is None or self.stray_rule is None:
            return replace(self, stray_rule=rule)
        late = (slot.since for slot in self.pending.values())
        before = [since - step for since in late if isinstance(since, datetime)]
        cuts: list[Position] = [self.low, self.stray_low, *before]
        low = next(cut for cut in cuts if not any(is_after(cut, other) for other in cuts))
        return replace(self, low=low, high=None, cursor=None, stray_low=low, stray_high=None, stray_rule=rule)

    def to_wire(self) -> dict[str, Any]:
        """Give the JSON form; it holds no secrets and nothing but ASCII once dumped."""
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "revision": self.revision,
            "source": dict(self.source),
            "low": encode_position(self.low),
            "high": None if self.high is None else encode_position(self.high),
            "cursor": None if self.cursor is None else encode_position(self.cursor),
            "seen": _pack((position, change_id) for change_id, position in self.seen.items()),
            "pending": _pack(
                (slot.since, identity + (slot.last or _NO_ID)) for identity, slot in self.pending.items()
            ),
            "restless": self.restless,
            "status": None if self.status is None else dict(self.status),
            # What only some watchers have.
            **{
                name: encode_position(position)
                for name in ("anchor", "stray_low", "stray_high", "asked")
                if (position := getattr(self, name)) is not None
            },
            **({} if self.stray_rule is None else {"stray_rule": self.stray_rule}),
        }

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """
        Read the JSON form.

        :raises StateError: It is damaged, or was written by a newer version of this package.
        """
        if not isinstance(wire, dict) or not _is_whole(wire.get("version")) or wire["version"] < 1:
            msg = "the stored watermark is not one of ours; reset it, or name another watermark_key"
            raise StateError(msg)
        if wire["version"] > STATE_VERSION:
            msg = (
                f"the stored watermark has version {wire['version']}, this release knows {STATE_VERSION}: "
                "upgrade airflow-provider-watermark here, or reset the watermark"
            )
            raise StateError(msg)
        try:
            high, cursor, status = wire["high"], wire["cursor"], wire.get("status")
            if not (
                isinstance(wire["source"], dict)
                and _is_whole(wire["epoch"])
                and _is_whole(wire["revision"])
                and isinstance(wire["restless"], bool)
                and isinstance(wire.get("stray_rule"), str | None)
                and (status is None or (isinstance(status, dict) and _are_texts(status.values())))
            ):
                msg = "an entry has another type"
                raise TypeError(msg)  # noqa: TRY301 - told as all damages are
            json.dumps(wire["source"], allow_nan=False)  # a NaN, which Python reads, is equal to nothing
            state = cls(
                source=wire["source"],
                low=decode_position(wire["low"]),
                high=None if high is None else decode_position(high),
                cursor=None if cursor is None else decode_position(cursor),
                seen={names[0]: position for position, names in _unpack(wire["seen"], 1)},
                pending={
                    names[0]: Pending(position, None if names[1] == _NO_ID else names[1])
                    for position, names in _unpack(wire["pending"], 2)
                },
                **{
                    name: decode_position(wire[name])
                    for name in ("anchor", "stray_low", "stray_high", "asked")
                    if name in wire
                },
                stray_rule=wire.get("stray_rule"),
                restless=wire["restless"],
                epoch=wire["epoch"],
                revision=wire["revision"],
                status=status,
            )
            state._require_one_type()
        except (StateError, KeyError, TypeError, ValueError) as error:
            msg = f"the stored watermark is damaged ({type(error).__name__}: {error}); repair or reset it"
            raise StateError(msg) from error
        return state

    def _require_one_type(self) -> None:
        since = (slot.since for slot in self.pending.values())
        positions = [self.low, self.high, self.stray_low, self.stray_high, *self.seen.values(), *since]
        kinds = {position_type(position) for position in positions if position is not None} - {"beginning"}
        if len(kinds) > 1:
            msg = f"it mixes positions of the types {', '.join(sorted(kinds))}"
            raise PositionTypeError(msg)


def reset_wire(wire: Mapping[str, Any]) -> dict[str, Any]:
    """
    Give what is stored in place of a watermark that an operator resets: its watcher then starts anew.

    A watermark that is merely gone changes nothing for a watcher that runs. The epoch goes up, so that
    consumers can tell what is delivered again on purpose.

    :param wire: What is stored, even if it is damaged.
    """
    whole = {name: int(wire[name]) for name in ("epoch", "revision") if _is_whole(wire.get(name))}
    return {
        "version": STATE_VERSION,
        "reset": True,
        "epoch": whole.get("epoch", 0) + 1,
        "revision": whole.get("revision", 0) + 1,
    }


def is_reset(wire: Mapping[str, Any]) -> bool:
    """Tell whether :func:`reset_wire` has made this."""
    whole = all(_is_whole(wire.get(name)) for name in ("epoch", "revision"))
    return whole and wire.get("reset") is True and wire.get("version") == STATE_VERSION


class Sweep:
    """
    One pass over the source: decides what is news, and tells what the state is after each batch.

    :param state: The state to start from. If a sweep was interrupted, that very sweep goes on.
    :param bounds: What the source said right before this reading.
    :param max_seen: How many delivered changes after ``high`` may be remembered, 0 for settled delivery.
        When there is no more room, such changes wait; nothing is lost.
    :ivar low: The cut that the sweep starts from, inclusive: everything at or before it is old news.
    :ivar high: The cut that it leaves behind, inclusive.
    :ivar due: Changes at or after it wait, unless they are settled; ``None``: nothing waits.
    :ivar cursor: How far it has come in reading order, inclusive; reading goes on after it.
    :ivar anchor: Where later sweeps may begin, in reading order, exclusive; a watcher that has read all may
        move it on.
    :ivar stray_high: The cut that it leaves behind for strays, inclusive; ``None``: it looks for none.
    :ivar full: Whether a change had to wait because ``seen`` was full.
    :ivar held_back: Whether late identities without a slot hold ``high`` back.
    :ivar future: The first future-dated change that was met.
    :ivar future_count: How many were met.
    """

    def __init__(self, state: WatermarkState, bounds: HighWatermark, max_seen: int) -> None:
        self._bounds = bounds
        self._max_seen = max_seen
        self._seen = dict(state.seen)
        self._pending = dict(state.pending)
        resumed = state.high is not None
        self.held_back = False
        bound = self._register(bounds, state.low)
        high = state.high
        if high is None:
            high = bound if is_after(bound, state.low) else state.low
        # Only a sweep that *began* without an identity's upload may forget it: everything it could
        # have left behind is visible to this sweep, from its first page on.
        forgets = not resumed and bounds.late is not None
        self._late = {digest(identity): identity for identity in bounds.late or ()}
        self._leaving = state.pending.keys() - self._late.keys() if forgets else set()
        stray_low = state.stray_low
        if stray_low is None and bounds.strays is not None:
            stray_low = state.low
        self._stray_low: Position = state.low if stray_low is None else stray_low
        self.stray_high: Position | None = state.stray_high if resumed else None
        if not resumed and bounds.strays is not None:
            bound = bounds.strays if is_after(high, bounds.strays) else high
            self.stray_high = bound if is_after(bound, self._stray_low) else None
        self._state = replace(state, high=high, stray_low=stray_low, stray_high=self.stray_high)
        self.low: Position = state.low
        self.high: Position = high
        self.due: Position | None = bounds.due
        self.cursor: Position | None = state.cursor
        self.anchor: Position | None = state.anchor
        self._named: Change | None = None
        self._name = ""
        self.full = False
        self.future: Change | None = None
        self.future_count = 0

    def _register(self, bounds: HighWatermark, low: Position) -> Position:
        """Give a slot to every late identity that high may pass; without room, lower the bound instead."""
        bound = bounds.bound
        for identity, since in sorted((bounds.late or {}).items(), key=lambda item: item[1]):
            name = digest(identity)
            if (slot := self._pending.get(name)) is not None:
                if is_after(slot.since, since):  # an upload that was not watched for before
                    self._pending[name] = slot._replace(since=since)
                continue
            if is_after(since, bound) and is_after(since, low):
                break
            if len(self._pending) >= MAX_PENDING:
                self.held_back = True
                return since - bounds.step
            self._pending[name] = Pending(since)
        return bound

    @property
    def awaited(self) -> dict[str, str | None]:
        """Late identities with a slot, by digest; ``None`` for what the source tells no more."""
        return {name: self._late.get(name) for name in self._pending}

    @property
    def earliest(self) -> Position:
        """The cut, inclusive, at or before which no change that is looked for can be, strays aside."""
        found = self.low
        for slot in self._pending.values():
            if is_after(found, slot.since):
                found = slot.since
        return found

    @property
    def since(self) -> Position:
        """The cut, inclusive, at or before which nothing is looked for but what is late."""
        looks_back = self.stray_high is not None and is_after(self.low, self._stray_low)
        return self._stray_low if looks_back else self.low

    def concerns(
        self, identity: str, position: Position, change_id: str = "", *, stray: bool = False
    ) -> bool:
        """
        Tell whether a change can be news at all; a watcher may leave out what cannot.

        :param identity: The change's identity.
        :param position: The change's position.
        :param stray: Whether it is a stray.
        :param change_id: The change's id, if it has been made already: what was delivered is no news.
        """
        if stray:
            return self._is_stray_news(position)
        if change_id not in self._seen and is_after(position, self.low):
            return True
        return bool(self._pending) and digest(identity) in self._pending

    def admits(self, change: Change) -> bool:
        """
        Tell whether a change is to be delivered now. Ask once for each, in reading order.

        :raises PositionTypeError: Its position is of another type than the watermark's.
        """
        position = change.position
        if change.stray:
            return self._is_stray_news(position)
        slot = self._pending.get(self._slot_name(change)) if self._pending else None
        if not is_after(position, self.low):
            return slot is not None and not is_after(slot.since, position) and slot.last != change.id
        bounds = self._bounds
        settled = not is_after(position, self.high)  # never waits: the next sweep would not look for it
        if not settled and bounds.due is not None and not is_after(bounds.due, position):
            if bounds.future is not None and not is_after(bounds.future, position):
                self.future = self.future or change
                self.future_count += 1
            return False
        if change.id in self._seen or (slot is not None and slot.last == change.id):
            if slot is not None:
                self._remember(change, slot)
            return False
        if settled or len(self._seen) < self._max_seen:
            return True
        self.full = self._max_seen > 0  # settled delivery remembers nothing, and is never full
        return False

    def _is_stray_news(self, position: Position) -> bool:
        """Tell whether a stray is delivered: once it is settled, since the next sweeps do not look for it."""
        high = self.stray_high
        return high is not None and is_after(position, self._stray_low) and not is_after(position, high)

    def take(self, change: Change) -> None:
        """Note that an admitted change goes into the current batch."""
        self.cursor = change.cursor
        if change.stray:
            return
        if is_after(change.position, self.high):
            self._seen[change.id] = change.position
        if self._pending and (slot := self._pending.get(self._slot_name(change))) is not None:
            self._remember(change, slot)

    def read_to(self, page: Page) -> None:
        """Note that a whole page has been read."""
        if page.cursor is not None:
            self.cursor = page.cursor
        elif page.changes:
            self.cursor = page.changes[-1].cursor

    def _remember(self, change: Change, slot: Pending) -> None:
        self._pending[self._slot_name(change)] = slot._replace(last=change.id)

    def _slot_name(self, change: Change) -> str:
        """Name the slot that a change has if it is late; it is asked for up to three times in a row."""
        if self._named is not change:
            self._named, self._name = change, digest(change.identity)
        return self._name

    def snapshot(self) -> WatermarkState:
        """Give the state as it is once everything up to here has been delivered."""
        return replace(self._state, cursor=self.cursor, seen=dict(self._seen), pending=dict(self._pending))

    def finish(self) -> WatermarkState:
        """Give the state as it is once the whole sweep has been delivered."""
        high = self.high
        return replace(
            self._state,
            low=high,
            high=None,
            cursor=None,
            anchor=self.anchor,
            stray_low=self._state.stray_low if self.stray_high is None else self.stray_high,
            stray_high=None,
            seen={name: position for name, position in self._seen.items() if is_after(position, high)},
            pending={name: slot for name, slot in self._pending.items() if name not in self._leaving},
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _pack(entries: Iterable[tuple[Position, str]]) -> list[list[Any]]:
    """Write named positions compactly: each position once, with its 8-byte names in one base64 text."""
    groups: dict[Position, list[str]] = {}
    for position, names in entries:
        groups.setdefault(position, []).append(names)
    return [
        [
            encode_position(position),
            base64.b64encode(b"".join(map(_name_bytes, sorted(names)))).decode("ascii"),
        ]
        for position, names in groups.items()
    ]


def _unpack(groups: Iterable[Any], width: int) -> Iterable[tuple[Position, list[str]]]:
    """Read what :func:`_pack` wrote: each entry's position and its ``width`` names."""
    for wire, text in groups:
        position = decode_position(wire)
        data = base64.b64decode(text, validate=True)
        size = 8 * width
        if len(data) % size:
            msg = "a list of ids is cut off"
            raise ValueError(msg)
        for start in range(0, len(data), size):
            entry = data[start : start + size]
            yield position, [_name_text(entry[i : i + 8]) for i in range(0, size, 8)]


def _name_bytes(names: str) -> bytes:
    return b"".join(base64.urlsafe_b64decode(names[i : i + 11] + "=") for i in range(0, len(names), 11))


def _name_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")
