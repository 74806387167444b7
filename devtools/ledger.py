"""What landed in a bucket, against what the asset events carried: nothing lost, no repeat unexplained."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from devtools.airflow_metadata import AssetEvent


UNCOMMITTED_AT_MOST = 30.0
"""Seconds after which a delivery must have been committed, so that no interruption makes it come again."""


class Version(NamedTuple):
    """One version of an object; every version's content is its own here, and so is its etag."""

    key: str
    etag: str


@dataclass(frozen=True, slots=True)
class Interruption:
    """An end of the watcher.

    :param kind: what ended it
    :param began: when it was ordered
    :param ended: by when the watcher was gone for certain
    """

    kind: str
    began: datetime
    ended: datetime


class Repeat(NamedTuple):
    """A delivery of something that had been delivered before.

    :param id: of the change
    :param at: when it came again
    :param age: seconds from the delivery before to the interruption that made it come again; None if there
        was no interruption between the two
    :param before: when it had been delivered before
    """

    id: str
    at: datetime
    age: float | None
    before: datetime


class Deliveries:
    """When what was delivered, each time it was.

    :ivar appearances: when each change, or window, was delivered, by its id
    :ivar events: how many events were written down
    """

    def __init__(self) -> None:
        self.appearances: dict[str, list[datetime]] = defaultdict(list)
        self.events = 0
        self._times: dict[tuple[int, str], list[datetime]] = defaultdict(list)

    def deliver(self, event: AssetEvent, name: str) -> None:
        """Write down that an event carried a change, or a window, by its id."""
        epoch = event.payload["watermark"]["epoch"]
        self.appearances[name].append(event.timestamp)
        self._times[epoch, name].append(event.timestamp)

    @property
    def epochs(self) -> set[int]:
        """The epochs in which anything was delivered."""
        return {epoch for epoch, _ in self._times}

    def repeats(self, interruptions: Sequence[Interruption]) -> list[Repeat]:
        """Return every delivery of something that had been delivered before in its epoch, in no order.

        In a higher epoch it comes because somebody asked for it.
        """
        pairs = (
            (name, *pair) for (_, name), times in self._times.items() for pair in pairwise(sorted(times))
        )
        return [Repeat(name, again, _age(first, again, interruptions), first) for name, first, again in pairs]

    def without_cause(self, interruptions: Sequence[Interruption]) -> set[str]:
        """Return the ids of what came again without an interruption that explains it."""
        repeats = self.repeats(interruptions)
        return {each.id for each in repeats if each.age is None or each.age > UNCOMMITTED_AT_MOST}


class Ledger(Deliveries):
    """Writes objects, reads events, and compares.

    :param client: of S3
    :param bucket: where objects are put
    :ivar landed: all versions, in the order in which they were put
    :ivar landed_at: when each was there
    :ivar replaced_at: when the next version of an object was sent, by the version that it replaced
    """

    _tag = "etag"

    def __init__(self, client: Any, bucket: str) -> None:
        super().__init__()
        self._client = client
        self._bucket = bucket
        self._current: dict[str, Version] = {}
        self._ids: dict[Version, set[str]] = defaultdict(set)
        self.landed: list[Version] = []
        self.landed_at: list[datetime] = []
        self.replaced_at: dict[Version, datetime] = {}

    def put(self, key: str, body: bytes) -> Version:
        """Put an object, and write down that it landed; others may read meanwhile what is written down."""
        if old := self._current.get(key):
            self.replaced_at[old] = datetime.now(UTC)
        version = Version(key, self._store(key, body))
        self._current[key] = version
        self.landed_at.append(datetime.now(UTC))
        self.landed.append(version)
        return version

    def _store(self, key: str, body: bytes) -> str:
        """Put an object, and return what tells this version of it from others."""
        answer = self._client.put_object(Bucket=self._bucket, Key=key, Body=body)
        return str(answer["ETag"]).strip('"')

    def record(self, events: Iterable[AssetEvent]) -> None:
        """Write down what further events carried."""
        for event in events:
            self.events += 1
            for change in event.changes:
                self._ids[Version(change["key"], str(change[self._tag]))].add(change["id"])
                self.deliver(event, change["id"])

    @property
    def keys(self) -> Sequence[str]:
        """The keys of all objects, in the order in which they were first put."""
        return list(self._current)

    @property
    def delivered(self) -> set[Version]:
        """The versions that at least one event carried."""
        return set(self._ids)

    def first_seen(self, version: Version) -> datetime | None:
        """Return when a version was delivered first, if it was."""
        ids = self._ids.get(version, ())
        return min((min(self.appearances[each]) for each in ids), default=None)

    @property
    def current_ids(self) -> set[str]:
        """The ids under which events carried what still is there."""
        return {name for version, ids in self._ids.items() if version not in self.replaced_at for name in ids}

    @property
    def missing(self) -> list[Version]:
        """The versions that no event carried."""
        return [each for each in self.landed if each not in self._ids]

    @property
    def lost(self) -> list[Version]:
        """The missing versions that are still there."""
        return [each for each in self.missing if self._current[each.key] == each]

    @property
    def superseded(self) -> list[Version]:
        """The missing versions that were overwritten: those may never have been read."""
        return [each for each in self.missing if self._current[each.key] != each]

    def faults(self, interruptions: Sequence[Interruption]) -> dict[str, list[str]]:
        """Return the keys of all that should not be, by what is wrong with them; empty if nothing is."""
        odd = self.without_cause(interruptions)
        found = {
            "lost": [each.key for each in self.lost],
            "repeated without cause": [each.key for each, ids in self._ids.items() if ids & odd],
            "with more than one id": [each.key for each, ids in self._ids.items() if len(ids) > 1],
            "never landed": [each.key for each in self._ids.keys() - set(self.landed)],
        }
        return {fault: sorted(keys) for fault, keys in found.items() if keys}


class GcsLedger(Ledger):
    """The same for Google Cloud Storage.

    :param client: a :class:`~devtools.gcs_servers.GcsServer`
    :param bucket: where objects are put
    """

    _tag = "generation"

    def _store(self, key: str, body: bytes) -> str:
        return str(self._client.put(self._bucket, key, body))


def _age(first: datetime, again: datetime, interruptions: Iterable[Interruption]) -> float | None:
    between = [each for each in interruptions if each.ended >= first and each.began <= again]
    if not between:
        return None
    return max(0.0, (min(each.began for each in between) - first).total_seconds())


def listed(keys: Sequence[str]) -> str:
    """Name a few of many keys, the odd ones as Python writes them."""
    shown = [key if re.fullmatch(r"[\w./-]+", key, re.ASCII) else repr(key) for key in keys]
    if len(shown) > 3:
        shown = [*shown[:2], "…", shown[-1]]
    return ", ".join(shown)


def table(rows: Iterable[tuple[str, int, str]]) -> str:
    """Return rows of a name, a number and a note as aligned lines."""
    return "\n".join(f"  {name:<24}{number:>5}   {note}".rstrip() for name, number, note in rows)
