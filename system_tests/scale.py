"""Hundreds of watchers in one triggerer: their Dags, the changes in their sources, and what was delivered."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from devtools.background import Background

if TYPE_CHECKING:
    from pathlib import Path

    from devtools.airflow_metadata import AirflowMetadata
    from system_tests.services import Services

BUCKET = "scale"
KINDS = ("s3", "gcs", "sql")
_PER_DAG = 50

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
    :ivar made: the identities of what was changed, by asset
    """

    def __init__(self, services: Services, watchers: int, rate: float) -> None:
        super().__init__("changes")
        self.made: dict[str, set[Any]] = defaultdict(set)
        self._services = services
        self._client = services.s3.client()
        self._watchers = watchers
        self._rate = rate
        self._random = random.Random(7)

    def work(self) -> None:
        """Change things until told that it is enough."""
        while not self.enough.wait(self._random.expovariate(self._rate)):
            number = self._random.randrange(self._watchers)
            self.made[asset_name(number)].add(self._change(number))

    def _change(self, number: int) -> str | int:
        """Change something that one watcher watches, and return what tells it from others."""
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


def delivered(metadata: AirflowMetadata) -> dict[str, list[Any]]:
    """Return the identities of what was delivered, by asset."""
    found = defaultdict(list)
    query = """SELECT asset.name, event.extra FROM asset_event AS event
               JOIN asset ON asset.id = event.asset_id"""
    for name, extra in metadata.rows(query):
        for change in json.loads(extra)["payload"]["changes"]:
            key = change["key"]
            found[name].append(key["id"] if isinstance(key, dict) else key)
    return found
