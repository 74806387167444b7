"""
What is in a bucket of the benchmark's server: a million keys and times, as a function of their number.

A bucket's name says it all: ``hive-1000000-20260131`` holds 1,000,000 objects in the layout ``hive``, with
times around the day 2026-01-31. So the server and the clients need not tell each other anything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

KEY_LENGTH: Final = 110
"""Bytes of a key."""

NEW_EVERY: Final = 2000
"""In the layouts that know few new objects, one of so many is new; most of them in old partitions."""

HOURS: Final = 1008
PER_TENANT: Final = 4800
DAYS: Final = 365


@dataclass(frozen=True, slots=True)
class Layout:
    """
    A bucket.

    :param kind: ``hive`` has 1,008 partitions by the hour, ``tenants`` plain ones of 4,800 objects each,
        ``dated`` a year of days that can be named by a prefix template.
    :param count: How many objects there are.
    :param day: The day around which they were written; it must be over.
    """

    kind: str
    count: int
    day: datetime

    @classmethod
    def of(cls, bucket: str) -> Layout:
        """
        Read a bucket's name.

        :raises ValueError: It is none of ours.
        """
        kind, count, day = bucket.split("-")
        if kind not in _PARTITIONS:
            raise ValueError(kind)
        return cls(kind, int(count), datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC))

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return f"{self.kind}-{self.count}-{self.day:%Y%m%d}"

    @property
    def prefix(self) -> str:
        """What all keys begin with."""
        return self.key(0).split("/")[0] + "/"

    @property
    def first_partition(self) -> str:
        """What the keys of the first partition begin with."""
        return self.key(0)[: self.key(0).rindex("/") + 1]

    @property
    def since(self) -> datetime:
        """The time after which an object is new."""
        return self.day + timedelta(hours=23) if self.kind == "dated" else self.day

    def key(self, number: int) -> str:
        """Give the key of an object; keys grow with the number and have the same length."""
        partitions, _ = _PARTITIONS[self.kind]
        partition = number * partitions // self.count if partitions else number // PER_TENANT
        start = f"{_partition_name(self.kind, self.day, partition)}part-{number:09d}-"
        end = ".c000.snappy.parquet"
        return start + hashlib.sha256(b"%d" % number).hexdigest()[: KEY_LENGTH - len(start) - len(end)] + end

    def stamp(self, number: int) -> datetime:
        """Say when an object was written, to the second."""
        if self.kind == "dated":
            position = number * DAYS / self.count
            return self.day + timedelta(days=int(position) + 1 - DAYS, seconds=int(position % 1 * 86400))
        if number % NEW_EVERY == NEW_EVERY - 1:
            return self.day + timedelta(seconds=1 + number // NEW_EVERY % 40000)
        # At least a second before: GCS adds a fraction of one.
        return self.day - timedelta(seconds=1 + number * 7919 % 86399)

    @property
    def news(self) -> int:
        """How many objects are new."""
        if self.kind == "dated":
            first_of_last_day = -(-self.count * (DAYS - 1) // DAYS)
            return sum(self.stamp(number) > self.since for number in range(first_of_last_day, self.count))
        return self.count // NEW_EVERY


@lru_cache(maxsize=4096)
def _partition_name(kind: str, day: datetime, partition: int) -> str:
    return _PARTITIONS[kind][1](day, partition)


def _hive(day: datetime, partition: int) -> str:
    return f"orders/{day - timedelta(days=HOURS / 24) + timedelta(hours=partition):dt=%Y-%m-%d/hour=%H}/"


def _tenant(_: datetime, partition: int) -> str:
    return f"orders/tenant={partition:03d}/"


def _dated(day: datetime, partition: int) -> str:
    return f"events/{day + timedelta(days=partition + 1 - DAYS):%Y/%m/%d}/"


_PARTITIONS: Final[dict[str, tuple[int | None, Callable[[datetime, int], str]]]] = {
    "hive": (HOURS, _hive),
    "tenants": (None, _tenant),
    "dated": (DAYS, _dated),
}
