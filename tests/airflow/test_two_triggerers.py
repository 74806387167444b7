"""Two triggerers on one watermark in Postgres: one is frozen past the other's take-over, and wakes."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Self

import psutil
import pytest

from airflow.providers.watermark.position import is_after
from airflow.providers.watermark.watermark import WatermarkState
from devtools.airflow_home import AirflowHome
from devtools.databases import Postgres, postgres
from devtools.dropper import Dropper
from devtools.guard import GuardedProcess
from devtools.ledger import Interruption, Ledger
from devtools.s3_servers import S3Server, free_port, ministack

ASSET = "orders"
STORE = "airflow.providers.watermark.stores.sql.SqlStore"
# The committer naps for 0.8 s, and saves something after each nap: so who wakes meets the other one's
# watermark about every second time in a save, and else in its next poll.
DAG = f"""
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk import DAG

trigger = S3PrefixTrigger(
    bucket_name="lake", prefix="in/", poll_interval=1, late_arrival=5, commit_delay=8,
    start_from="beginning",
)
with DAG("load_orders", schedule=watch("{ASSET}", trigger)):
    pass
"""
# Whatever is saved, by whomever, in the order in which the database has it.
HISTORY = """
CREATE TABLE history (number bigserial, value text);
CREATE FUNCTION remember() RETURNS trigger AS
  $$ BEGIN INSERT INTO history (value) VALUES (NEW.value); RETURN NEW; END $$ LANGUAGE plpgsql;
CREATE TRIGGER remember AFTER INSERT OR UPDATE ON asset_watermarks FOR EACH ROW EXECUTE FUNCTION remember();
"""
DEFEAT = "was changed by another writer"
CANCELLED_WITHIN = timedelta(seconds=15)
"""How long a triggerer that has lost a trigger may go on with it, on a busy machine."""


class Host:
    """
    A machine with a triggerer.

    :param airflow: Its Airflow.
    :param name: Tells its log from others.
    """

    def __init__(self, airflow: AirflowHome, name: str) -> None:
        self._log = airflow.path / f"triggerer-{name}.log"
        self._process = GuardedProcess(
            [sys.executable, "-m", "airflow", "triggerer"],
            log=self._log,
            cwd=airflow.path,
            env={
                **airflow.environment,
                "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)
        self._process.close()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._process.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Watched:
    """What is delivered, and what is saved, while hosts are frozen."""

    def __init__(self, airflow: AirflowHome, ledger: Ledger, database: Postgres) -> None:
        self._airflow, self._ledger, self._database = airflow, ledger, database
        self._last = 0
        self.freezes: list[Interruption] = []

    def collect(self) -> bool:
        events = self._airflow.metadata.asset_events(ASSET, after=self._last)
        self._ledger.record(events)
        self._last = max((event.id for event in events), default=self._last)
        return bool(events)

    @property
    def states(self) -> list[WatermarkState]:
        texts = self._database.execute("SELECT value FROM history ORDER BY number")
        return [WatermarkState.from_wire(json.loads(text)) for (text,) in texts]

    def freeze(self, host: Host) -> None:
        """Freeze a host just after something was delivered, until the other one has saved in its place."""
        self.collect()
        self._airflow.wait_until("event", self.collect)
        began = datetime.now(UTC)
        with host.frozen():
            time.sleep(1)
            self.collect()
            self._airflow.wait_until("take-over", self.collect)
            saved = len(self.states)
            self._airflow.wait_until("watermark of the other one", lambda: len(self.states) > saved)
        self.freezes.append(Interruption("SIGSTOP", began, datetime.now(UTC) + CANCELLED_WITHIN))
        time.sleep(6)

    def wait_for_all(self) -> None:
        deadline = time.monotonic() + 60
        while self._ledger.lost and time.monotonic() < deadline:
            time.sleep(0.5)
            self.collect()


@contextlib.contextmanager
def airflow_home(path: Path, server: S3Server, database: Postgres) -> Iterator[AirflowHome]:
    (path / "dags").mkdir()
    (path / "dags" / "orders.py").write_text(DAG)
    environment = {
        "AIRFLOW__WATERMARK__STORE": STORE,
        "AIRFLOW__WATERMARK__SQL_CONN_ID": "watermarks",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
    }
    connections = {
        "aws_default": server.airflow_connection_json(),
        "watermarks": database.airflow_connection_json(),
    }
    with AirflowHome(
        path / "home", dags_folder=path / "dags", connections=connections, environment=environment
    ) as airflow:
        migrate = [sys.executable, "-m", "airflow.providers.watermark", "migrate"]
        subprocess.run(migrate, env=airflow.environment, check=True)
        database.execute(HISTORY)
        airflow.start("dag-processor")
        yield airflow


@pytest.mark.timeout(600)
def test_who_was_frozen_past_a_take_over_undoes_nothing_when_it_wakes(tmp_path: Path) -> None:
    with ministack() as server, postgres() as database:
        server.client().create_bucket(Bucket="lake")
        ledger = Ledger(server.client(), "lake")
        with airflow_home(tmp_path, server, database) as airflow:
            watched = Watched(airflow, ledger, database)
            with Host(airflow, "first") as first, Host(airflow, "second") as second:
                with Dropper(ledger, seed=3, rate=5) as dropper:
                    airflow.wait_until("watermarks", lambda: len(watched.states) > 3, timeout=180)
                    for host in [first, second] * 5:
                        watched.freeze(host)
                        if defeated := DEFEAT in first.log + second.log:
                            break
                watched.wait_for_all()
        dropper.check()
        states = watched.states
    assert defeated, "no save was refused: a store that compares nothing would pass"
    assert all(new.revision == old.revision + 1 for old, new in pairwise(states)), "a lost update"
    assert not any(is_after(old.low, new.low) for old, new in pairwise(states)), "the watermark went back"
    assert {state.epoch for state in states} == {1}
    assert ledger.faults(watched.freezes) == {}
    assert ledger.repeats(watched.freezes), "the two have never met"
