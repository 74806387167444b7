"""
How big the state of an S3 watcher is, over a day on a simulated clock.

``python -m benchmarks.state_size [--minutes 1440] [--per-minute 100] [--max-seen 4096]``. Objects land
steadily in a server of our own, whose clock we turn; the watcher sweeps once a minute, with default
arguments. What is an hour old is deleted, so that listings stay short: a state holds nothing of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from airflow.providers.watermark.testing import Harness
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from devtools.s3_stub import StubS3

KEPT = 60
"""Minutes after which an object is deleted."""


class Minute(NamedTuple):
    """
    What is stored after a sweep.

    :ivar size: Bytes of the state, as stores write it.
    :ivar seen: Delivered changes that it remembers.
    :ivar delivered: Changes delivered so far.
    """

    size: int
    seen: int
    delivered: int


class _Landing:
    """A bucket in which objects land; its clock stands until the next minute."""

    def __init__(self, stub: StubS3, per_minute: int) -> None:
        self._stub, self._per_minute = stub, per_minute
        self._now = datetime(2026, 3, 1, tzinfo=UTC)
        self._keys: list[list[str]] = []
        stub.clock = lambda: self._now.timestamp()  # noqa: PLW0108 - the time of then, not of now

    def pass_minute(self) -> None:
        """Let a minute pass, and what lands in it."""
        number, step = len(self._keys), timedelta(minutes=1) / self._per_minute
        keys = [f"in/{number:05}/{index:05}.csv" for index in range(self._per_minute)]
        for index, key in enumerate(keys):
            self._stub.put(key, b"x", last_modified=self._now + index * step)
        self._keys.append(keys)
        for key in self._keys[number - KEPT] if number >= KEPT else ():
            self._stub.delete(key)
        self._now += timedelta(minutes=1)


@contextmanager
def _served() -> Iterator[StubS3]:
    with StubS3() as stub:
        os.environ["AIRFLOW_CONN_SIMULATED"] = stub.airflow_connection_json()
        try:
            yield stub
        finally:
            del os.environ["AIRFLOW_CONN_SIMULATED"]


async def simulate(minutes: int, per_minute: int, max_seen: int) -> list[Minute]:
    """
    Let a watcher see objects land.

    :param minutes: How long.
    :param per_minute: How many a minute.
    :param max_seen: The watcher's argument.
    """
    trigger = S3PrefixTrigger(
        asset_name="orders", bucket_name="lake", prefix="in/", aws_conn_id="simulated", max_seen=max_seen
    )
    found, delivered = [], 0
    with _served() as stub:
        landing = _Landing(stub, per_minute)
        async with Harness(trigger) as watcher:
            await watcher.deliver()
            for _ in range(minutes):
                landing.pass_minute()
                delivered += sum(len(each.ids) for each in await watcher.deliver())
                state = await watcher.stored()
                assert state is not None
                size = len(json.dumps(state.to_wire(), separators=(",", ":")))
                found.append(Minute(size, len(state.seen), delivered))
    return found


def _row(minutes: Sequence[Minute], number: int) -> str:
    return f"| {' | '.join(map(str, (number, *minutes[number - 1])))} |"


def main() -> None:
    """Simulate what the command line asks for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=int, default=1440)
    parser.add_argument("--per-minute", type=int, default=100)
    parser.add_argument("--max-seen", type=int, default=4096)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    began = time.monotonic()
    minutes = asyncio.run(simulate(given.minutes, given.per_minute, given.max_seen))
    print(f"{given.per_minute} objects a minute, in {time.monotonic() - began:.0f} s\n")
    print("| after minutes | bytes | seen | delivered |\n|---|---|---|---|")
    for number in sorted({n for n in (1, 10, 60, 360, 720, given.minutes) if n <= given.minutes}):
        print(_row(minutes, number))
    print(f"\nat most {max(each.size for each in minutes)} bytes")


if __name__ == "__main__":
    main()
