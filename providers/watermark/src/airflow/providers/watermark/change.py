"""What a source reports: changes, the pages they come in, and how far the source is settled."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Self

from airflow.providers.watermark.position import (
    BEGINNING,
    Position,
    encode_position,
    floor_timestamp,
    is_after,
)

__all__ = ["Change", "HighWatermark", "Page", "Window", "change_id", "change_ids", "digest"]

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def digest(*parts: str) -> str:
    """
    Make a short name of some texts: 8 bytes of BLAKE2b, as 11 characters of URL-safe base64.

    :param parts: Any texts; where one ends and the next begins makes a difference.
    """
    # In as few calls as can be: a sweep over a table makes two for each row.
    name = hashlib.blake2b(b"".join(_frame(parts)), digest_size=8).digest()
    return binascii.b2a_base64(name, newline=False).translate(_URL_SAFE)[:11].decode("ascii")


def _frame(texts: Iterable[str]) -> list[bytes]:
    return [len(data).to_bytes(4, "big") + data for data in map(str.encode, texts)]


def change_id(identity: str, version: str, position: Mapping[str, Any]) -> str:
    """
    Name a version of a thing: the same whenever and by whomever it is read.

    :param identity: See :class:`Change`.
    :param version: Likewise.
    :param position: The JSON form of the position.
    """
    return digest(identity, version, position["type"], position["value"] or "")


def change_ids(
    identities: Sequence[str], versions: Sequence[str], kind: str, values: Sequence[str]
) -> list[str]:
    """
    Name versions of many things as :func:`change_id` names each, at half the price.

    :param identities: See :class:`Change`.
    :param versions: Likewise.
    :param kind: The ``type`` of the JSON form of all positions.
    :param values: Their ``value``.
    """
    (shared,) = _frame([kind])
    columns = zip(_frame(identities), _frame(versions), _frame(values), strict=True)
    hashes = [
        hashlib.blake2b(b"".join((identity, version, shared, value)), digest_size=8).digest()
        for identity, version, value in columns
    ]
    # Nine bytes are twelve characters of base64: with a zero behind each, all are written at once.
    text = binascii.b2a_base64(b"\0".join([*hashes, b""]), newline=False).translate(_URL_SAFE).decode("ascii")
    return [text[start : start + 11] for start in range(0, len(text), 12)]


# Not frozen, though nothing changes it: that takes three times as long to build, and backlogs have millions.
@dataclass(slots=True, kw_only=True)
class Change:
    """
    One new or changed thing in a source.

    :param identity: What changed, the same for all versions of it: an object key, a primary key.
    :param version: Which version of it this is: an etag, a generation, a row digest.
    :param position: Where the change stands in the source's own order.
    :param detail: What a consumer is told of it: strict JSON.
    :param place: Where the change stands in the watcher's *reading* order, as a position; ``None`` means by
        identity, as in a listing by key.
    :param stray: Whether it is one that most sweeps do not look for: those that do have a cut of their own.
    :param id: What :func:`change_id` makes of the first three, if it has been made already.
    :param size: The bytes of JSON of ``detail`` with the ``id`` before it, if they have been counted already,
        and it is known to be strict JSON.
    """

    identity: str
    version: str
    position: Position
    detail: Mapping[str, Any] = field(default_factory=dict)
    place: Position | None = None
    stray: bool = False
    id: str = ""
    size: int | None = None

    def __post_init__(self) -> None:
        """Make the id."""
        if not self.id:
            self.id = change_id(self.identity, self.version, encode_position(self.position))

    @property
    def cursor(self) -> Position:
        """The place of this change in the reading order."""
        return self.identity if self.place is None else self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """
    A part of a reading.

    :param changes: In reading order; it may hold old news, which the base drops.
    :param cursor: How far the reading has come with this page, inclusive: everything in the source at or
        before it has been read. ``None`` means the last change's cursor.
    """

    changes: Sequence[Change]
    cursor: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    A final part of a source: nothing more can appear in it.

    :param high: Its upper bound, inclusive; the lower one is the low watermark, exclusive.
    :param count: How many changes it has.
    """

    high: Position
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWatermark:
    """
    What a source says of itself right before it is read.

    :param bound: The settled bound, inclusive: nothing at or before it can still appear, but for ``late``.
    :param due: Changes at or after it wait for a later sweep (exclusive bound); ``None``: nothing waits.
    :param future: Waiting changes at or after it are reported as future-dated; ``None``: no such report.
    :param late: Identities that may still appear with an old position, each with the earliest position it
        can have: uploads in progress. ``None`` if the source does not tell just now: what was late stays so.
    :param step: The distance between two neighbouring positions, for sources of timestamps.
    :param strays: The settled bound of strays, inclusive, where this reading looks for them; ``BEGINNING``
        where it does not; ``None`` from a watcher that has none.
    :param stray_rule: What makes a change a stray, where tuning has a say in it, as a text.
    :param clock: The source's clock, aware, where ``due`` is no such time: it tells whether the clock was set
        back. ``None``: ``due`` does, if it is aware.
    """

    bound: Position
    due: Position | None = None
    future: Position | None = None
    late: Mapping[str, datetime] | None = field(default_factory=dict)
    step: timedelta = timedelta(microseconds=1)
    strays: Position | None = None
    stray_rule: str | None = None
    clock: datetime | None = None

    @property
    def final(self) -> Position:
        """
        The bound of what is final: before all that is ``late``.

        Nothing is while the source does not tell what is late.
        """
        if self.late is None:
            return BEGINNING
        first = min((since for since in self.late.values() if not is_after(since, self.bound)), default=None)
        return self.bound if first is None else first - self.step

    @classmethod
    def from_clock(
        cls,
        now: datetime,
        *,
        late_arrival: float,
        step: timedelta,
        late: Mapping[str, datetime] | None = MappingProxyType({}),
    ) -> Self:
        """
        Derive the bounds from the source's own clock.

        :param now: The source's clock, read **before** the source; aware.
        :param late_arrival: Seconds, above 0, by which a change may appear after its position.
        :param step: The coarsest precision that the source uses anywhere. What is stamped in the current
            step can still change within it, so it waits until the step is over.
        :param late: As above; by default there are none.
        """
        due = floor_timestamp(now, step)
        return cls(
            # What waits is never settled, however short late_arrival is.
            bound=min(floor_timestamp(now - timedelta(seconds=late_arrival), step), due - step),
            due=due,
            future=floor_timestamp(now + timedelta(seconds=late_arrival), step),
            late=late,
            step=step,
        )
