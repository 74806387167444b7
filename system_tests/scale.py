"""Hundreds of watchers in one triggerer: their Dags, the changes in their sources, and what was delivered."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from devtools.background import Background
from system_tests.probe import was_queued

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from devtools.airflow_metadata import AirflowMetadata
    from system_tests.probe import Line
    from system_tests.services import Services

Key = tuple[str, str | int]
"""The name of an asset, and what tells a change of it from others."""

BUCKET = "scale"
KINDS = ("s3", "gcs", "sql")
LARGEST_GROWTH = 0.5
"""MB a minute by which memory may grow: half a kilobyte a poll of 1000. It was 0.3 without any known leak."""

_PER_DAG = 50
_WARNING = re.compile(r"\[(warning|error|critical) *\]")
_BLOCKED = re.compile(r"thread was blocked for ([\d.]+) seconds")
_WATCHDOG_SLEEP = 0.1
"""Seconds that Airflow's watchdog meant to sleep, of those that it tells."""

_DAG = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.gcs import GCSPrefixTrigger
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG, AssetAny

tuning = {{"poll_interval": {poll_interval}, "late_arrival": 5}}
table = {{"table": "scale", "payload": "keys", "primary_key": "id"}}
make = {{
    "s3": lambda n: S3PrefixTrigger(
        bucket_name="{bucket}", prefix=f"{{n}}/", aws_conn_id="s3_source", **tuning
    ),
    "gcs": lambda n: GCSPrefixTrigger(bucket_name="{bucket}", prefix=f"{{n}}/", **tuning),
    "sql": lambda n: SQLUpdatedAtTrigger(conn_id="pg_source", where=f"part = {{n}}", **table, **tuning),
}}
kinds = list(make)
assets = [
    watch(f"{{kinds[n % len(kinds)]}}_{{n}}", make[kinds[n % len(kinds)]](n)) for n in range({first}, {last})
]
with DAG("scale_{first}", schedule=AssetAny(*assets)):
    EmptyOperator(task_id="done")
"""

_PROBE = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher
from system_tests.probe import LoopProbe

probe = AssetWatcher(name="probe", trigger=LoopProbe(path="{path}"))
with DAG("probe", schedule=Asset("probe", watchers=[probe])):
    EmptyOperator(task_id="done")
"""


def asset_name(number: int) -> str:
    """Return the name of a watcher's asset."""
    return f"{KINDS[number % len(KINDS)]}_{number}"


def write_dags(folder: Path, watchers: int, poll_interval: float, probe: Path) -> None:
    """Write the Dags, each with many watched assets, and the one of the probe."""
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, watchers, _PER_DAG):
        last = min(first + _PER_DAG, watchers)
        text = _DAG.format(bucket=BUCKET, poll_interval=poll_interval, first=first, last=last)
        (folder / f"scale_{first}.py").write_text(text)
    (folder / "probe.py").write_text(_PROBE.format(path=probe))


def make_sources(services: Services) -> None:
    """Make the buckets and the table."""
    services.s3.client().create_bucket(Bucket=BUCKET)
    services.gcs.create_bucket(BUCKET)
    services.postgres.execute("""
        create table scale (
            id bigint primary key generated always as identity, part integer,
            updated_at timestamptz default now()
        );
        create index on scale (part, updated_at, id);
    """)


class Changes(Background):
    """Makes changes in random places of all sources: a context manager.

    :param watchers: how many places there are
    :param rate: changes a second, on average
    :ivar made: when each was there, in seconds since the epoch
    """

    def __init__(self, services: Services, watchers: int, rate: float) -> None:
        super().__init__("changes")
        self.made: dict[Key, float] = {}
        self._services = services
        self._client = services.s3.client()
        self._watchers = watchers
        self._rate = rate
        self._random = random.Random(7)

    def work(self) -> None:
        """Change something of each kind in turn until told that it is enough: when late, without a pause."""
        due = time.monotonic()
        for first in itertools.cycle(range(len(KINDS))):
            if self.enough.wait(max(0.0, due - time.monotonic())):
                return
            self._change(self._random.randrange(first, self._watchers, len(KINDS)))
            due += self._random.uniform(0.5, 1.5) / self._rate

    def change_all(self) -> None:
        """Change something in each place, one after the other, at the same rate."""
        for number in range(self._watchers):
            self._change(number)
            time.sleep(1 / self._rate)

    def _change(self, number: int) -> None:
        """Change something that one watcher watches."""
        identity = self._make(number)
        self.made[asset_name(number), identity] = time.time()

    def _make(self, number: int) -> str | int:
        name = f"{number}/{time.time_ns()}.csv"
        match KINDS[number % len(KINDS)]:
            case "s3":
                self._client.put_object(Bucket=BUCKET, Key=name, Body=b"new")
            case "gcs":
                self._services.gcs.put(BUCKET, name, b"new")
            case _:
                statement = "insert into scale (part) values (%s) returning id"
                return int(self._services.postgres.execute(statement, (number,))[0][0])
        return name


def delivered(metadata: AirflowMetadata) -> dict[Key, list[float]]:
    """Return when events with each change were stored, in seconds since the epoch, the first one first."""
    found = defaultdict(list)
    query = """SELECT asset.name, event.timestamp, event.extra FROM asset_event AS event
               JOIN asset ON asset.id = event.asset_id ORDER BY event.timestamp"""
    for name, stored, extra in metadata.rows(query):
        for change in json.loads(extra)["payload"]["changes"]:
            key = change["key"]
            found[name, key["id"] if isinstance(key, dict) else key].append(stored.timestamp())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened; all times in seconds since the epoch.

    :param began: when all watchers had a watermark, and changes began
    :param ended: when one more change in each place began
    :param stopped: when Airflow was stopped
    :param made: when each change was there
    :param delivered: when the events with a change were stored
    :param measured: what the probe wrote
    :param log: the triggerer's
    """

    began: float
    ended: float
    stopped: float
    made: Mapping[Key, float]
    delivered: Mapping[Key, list[float]]
    measured: list[Line]
    log: str

    @property
    def during(self) -> list[Line]:
        """What the probe wrote once all watchers had begun."""
        return [line for line in self.measured if line["at"] >= self.began]

    @property
    def delays(self) -> list[float]:
        """Seconds from each change to its first event; none if that was sooner than the server's answer."""
        both = self.made.keys() & self.delivered.keys()
        return [max(0.0, self.delivered[key][0] - self.made[key]) for key in both]

    @property
    def paced(self) -> Counter[str]:
        """How many changes were made of each kind, but for the last ones."""
        return Counter(name.partition("_")[0] for (name, _), at in self.made.items() if at < self.ended)


def measured(probe: Path) -> list[Line]:
    """Return what the probe wrote so far; the last line may not be whole yet."""
    lines = probe.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def warnings(log: str) -> list[str]:
    """Return the lines in which the triggerer warned, of its loop or of anything else."""
    return [line for line in log.splitlines() if is_of_loop(line) or _is_warning(line)]


def is_of_loop(line: str) -> bool:
    """Tell whether it is the triggerer's own watchdog, which speaks below the level of a warning."""
    return _BLOCKED.search(line) is not None


def is_forgiven(line: str, measured: Sequence[Line]) -> bool:
    """Tell whether the watchdog found the loop late since other processes had the processors.

    :param measured: what the probe wrote
    """
    found = _BLOCKED.search(line)
    return found is not None and was_queued(measured, written_at(line), float(found[1]) - _WATCHDOG_SLEEP)


def written_at(line: str) -> float:
    """Return when a line of the log was written, in seconds since the epoch."""
    return datetime.fromisoformat(line.split(maxsplit=1)[0]).timestamp()


def _is_warning(line: str) -> bool:
    """Tell whether it is a warning or worse; of a made-up password of four letters there may be one."""
    known = ("Skipping masking for a secret", "ASGI app factory")
    return _WARNING.search(line) is not None and not any(each in line for each in known)
