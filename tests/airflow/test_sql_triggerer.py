"""The SQL watcher in a real Dag processor and a real triggerer that is killed and paused."""

from __future__ import annotations

import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from airflow.providers.watermark.position import decode_position
from devtools.airflow_home import AirflowHome
from devtools.databases import Postgres, postgres

DAG = """
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG

with DAG("read_{asset}", schedule=watch("{asset}", SQLUpdatedAtTrigger(
    conn_id="pg", table="events", poll_interval=1, late_arrival=1, max_rows_per_event=100, commit_delay=1,
    {arguments}
))):
    pass
"""


@pytest.fixture(scope="module")
def database():
    with postgres() as database:
        database.execute("""
            CREATE TABLE events (id bigint PRIMARY KEY, payload text, updated_at timestamptz DEFAULT now());
            CREATE INDEX ON events (updated_at, id)
        """)
        yield database


def insert(database: Postgres, first: int, count: int) -> int:
    database.execute(
        "INSERT INTO events SELECT n, 'row ' || n FROM generate_series(%s::int, %s::int) AS n",
        (first, first + count - 1),
    )
    return first + count


@pytest.mark.timeout(300)
def test_rows_and_windows_survive_kills_and_a_pause_and_windows_come_again_as_they_were(
    database: Postgres, tmp_path: Path
) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "windows.py").write_text(DAG.format(asset="windows", arguments=""))
    (dags / "rows.py").write_text(
        DAG.format(asset="rows", arguments="payload='rows', primary_key='id', columns=['payload']")
    )
    connections = {"pg": database.airflow_connection_json()}
    dice = random.Random(5)
    with AirflowHome(tmp_path / "home", dags_folder=dags, connections=connections) as airflow:
        metadata = airflow.metadata
        airflow.start("dag-processor", "triggerer")
        airflow.wait_until("watermarks", lambda: len(metadata.variable_names("watermark:sql:")) == 2)
        following = 1
        for interruption in (signal.SIGKILL, None, signal.SIGKILL):
            until = time.monotonic() + dice.uniform(3, 6)
            while time.monotonic() < until:
                following = insert(database, following, dice.randint(1, 30))
                time.sleep(dice.uniform(0.1, 0.5))
            if interruption is None:
                airflow.pause_dag("read_rows")
                airflow.wait_until("pause", lambda: not metadata.watching_triggers("rows"))
                following = insert(database, following, 25)
                airflow.unpause_dag("read_rows")
            else:
                airflow.restart("triggerer", interruption)
        following = insert(database, following, 1)

        def delivered() -> dict[int, set[str]]:
            ids: dict[int, set[str]] = {}
            for event in metadata.asset_events("rows"):
                for change in event.changes:
                    ids.setdefault(change["key"]["id"], set()).add(change["id"])
            return ids

        newest = database.execute("SELECT max(updated_at) FROM events")[0][0]

        def windows() -> list[tuple[object, object, str]]:
            found = []
            for event in metadata.asset_events("windows"):
                watermark = event.payload["watermark"]
                bounds = decode_position(watermark["low"]), decode_position(watermark["high"])
                found.append((*bounds, watermark["event_id"]))
            return found

        airflow.wait_until("last row", lambda: following - 1 in delivered(), timeout=120)
        airflow.wait_until(
            "last window", lambda: any(high >= newest for _, high, _ in windows()), timeout=120
        )
        rows = delivered()
        assert sorted(rows) == list(range(1, following)), "rows are missing"
        assert all(len(ids) == 1 for ids in rows.values()), "a repeat has another id"
        distinct = sorted(set(windows()))
        assert [one[1] for one in distinct[:-1]] == [two[0] for two in distinct[1:]], "windows overlap or gap"
        assert len({event_id for _, _, event_id in distinct}) == len(distinct)
        for low, high, _ in distinct:
            found = database.execute(
                "SELECT count(*) FROM events WHERE updated_at > %s AND updated_at <= %s", (low, high)
            )[0][0]
            told = {
                event.payload["count"]
                for event in metadata.asset_events("windows")
                if decode_position(event.payload["watermark"]["high"]) == high
                and decode_position(event.payload["watermark"]["low"]) == low
            }
            assert told == {found}
        assert all(one < two for one, two in pairwise([high for _, high, _ in distinct]))
