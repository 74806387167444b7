"""``make crash-test``: objects land, and rows are committed, while their watchers are interrupted.

A real Dag processor and triggerer, a real S3 server, a real Postgres; three watchers: of objects, of rows,
and of windows of the same rows. At random times, which a seed fixes, the triggerer is killed with SIGKILL,
stopped with SIGTERM, or the Dags are paused for a while. In the end whatever landed must be in an asset
event; the last version of each row, too, and in a window. What was delivered twice must have been delivered
shortly before an interruption, and come again with the same id: a window as the very same window.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from devtools.airflow_home import AirflowHome, AirflowHomeError
from devtools.databases import postgres
from devtools.dropper import Dropper
from devtools.ledger import Interruption, Ledger, Repeat, listed, table
from devtools.postgres_stress import Writers, create_table
from devtools.row_deliveries import DeliveredRows, DeliveredWindows
from devtools.row_ledger import Version
from devtools.s3_servers import ServerStartError, ministack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from devtools.airflow_metadata import AssetEvent
    from devtools.databases import Postgres
    from devtools.row_ledger import Committed
    from devtools.s3_servers import S3Server

Kind = Literal["SIGKILL", "SIGTERM", "pause"]

ASSET = "crash_test"
BUCKET = "lake"
DAG = f"""
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from airflow.sdk import DAG

trigger = S3PrefixTrigger(bucket_name="{BUCKET}", prefix="in/", poll_interval=1, late_arrival=5)
with DAG("{ASSET}", schedule=watch("{ASSET}", trigger)):
    pass
"""
ROWS_DAG = """
from airflow.providers.watermark import watch
from airflow.providers.watermark.triggers.sql import SQLUpdatedAtTrigger
from airflow.sdk import DAG

trigger = SQLUpdatedAtTrigger(conn_id="pg", table="events", poll_interval=1, late_arrival=1, {arguments})
with DAG("{asset}", schedule=watch("{asset}", trigger)):
    pass
"""
ROWS_DAGS = {
    "rows": "payload='rows', primary_key='id', columns=['version', 'payload']",
    # So few that the backlog after an interruption may be more than one window.
    "windows": "max_rows_per_event=1000, commit_delay=1",
}
SETTINGS = {
    # A pause takes effect when the file is next parsed.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "1",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "1",
    # A new triggerer takes over from a killed one after this many seconds.
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
}

CANCELLED_WITHIN = timedelta(seconds=5)
"""How long a trigger may go on after its row is gone: the triggerer looks once a second.

If the Dag is unpaused meanwhile, the new row may get the old one's id (in SQLite), and take its last events.
"""

COMMITTED_AFTER = 15.0
"""Seconds after which whatever was delivered must have been committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a crash test."""

    seed: int
    seconds: float
    interruptions: Mapping[str, int]
    landed: int
    superseded: int
    delivered: int
    events: int
    repeats: tuple[Repeat, ...]
    faults: Mapping[str, list[str]]
    rows: tuple[str, ...] = ()
    rows_passed: bool = True

    @property
    def lost(self) -> list[str]:
        """The keys of what was lost."""
        return self.faults.get("lost", [])

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, and no repeat was without cause."""
        return not self.faults and self.rows_passed

    def __str__(self) -> str:
        """Return the table for the end of the test."""
        oldest = max((repeat.age or 0.0 for repeat in self.repeats), default=0.0)
        age = f"at most {oldest:.1f} s later, an interruption began" if self.repeats else ""
        rows = [
            ("interruptions", sum(self.interruptions.values()), f"seed {self.seed}, {self.seconds:.0f} s"),
            *((f"  {kind}", number, "") for kind, number in sorted(self.interruptions.items())),
            ("landed", self.landed, "objects, each version of one counted"),
            ("overwritten unread", self.superseded, "of them: never promised"),
            ("delivered", self.delivered, f"of them, in {self.events} events"),
            ("lost", len(self.lost), ""),
            ("delivered again", len(self.repeats), age),
            *((fault, len(keys), listed(keys)) for fault, keys in self.faults.items() if fault != "lost"),
        ]
        return "\n".join([table(rows), *(f"  lost: {key}" for key in self.lost), *self.rows])


class Deliveries(Protocol):
    """Where deliveries are written down."""

    @property
    def lost(self) -> Sequence[object]:
        """What has not been delivered yet."""

    def record(self, events: Iterable[AssetEvent]) -> None:
        """Write down what further events carried."""


class Watcher:
    """The watchers of our Dags, in a real Airflow: interrupts them, and reads what they deliver.

    :param airflow: with our Dags
    :param ledger: where deliveries of objects are written down
    :param others: where those of other assets are, by the asset's name, which is that of its Dag too
    """

    def __init__(
        self, airflow: AirflowHome, ledger: Ledger, others: Mapping[str, Deliveries] | None = None
    ) -> None:
        self._airflow = airflow
        self._ledgers: dict[str, Deliveries] = {ASSET: ledger, **(others or {})}
        self._last_event = dict.fromkeys(self._ledgers, 0)
        self.interruptions: list[Interruption] = []

    def start(self) -> None:
        """Start, and wait until the first watermarks are stored."""
        self._airflow.start("dag-processor", "triggerer")
        names = self._airflow.metadata.variable_names
        self._airflow.wait_until(
            "watermarks", lambda: len(names("watermark:")) >= len(self._ledgers), timeout=180
        )

    def interrupt(self, kind: Kind, seconds: float) -> None:
        """End the watchers for a while."""
        began = datetime.now(UTC)
        if kind == "pause":
            for asset in self._ledgers:
                self._airflow.pause_dag(asset)
            self._airflow.wait_until("end of the watchers", lambda: not any(self._are_scheduled()))
            ended = datetime.now(UTC) + CANCELLED_WITHIN
        else:
            self._airflow.stop("triggerer", signal.Signals[kind])
            ended = datetime.now(UTC)
        self.interruptions.append(Interruption(kind, began, ended))
        time.sleep(seconds)
        if kind == "pause":
            for asset in self._ledgers:
                self._airflow.unpause_dag(asset)
            self._airflow.wait_until("return of the watchers", lambda: all(self._are_scheduled()))
        else:
            self._airflow.start("triggerer")

    def _are_scheduled(self) -> list[bool]:
        return [bool(self._airflow.metadata.watching_triggers(asset)) for asset in self._ledgers]

    def collect(self) -> bool:
        """Write down what was delivered since the last call; return whether anything was."""
        news = False
        for asset, ledger in self._ledgers.items():
            events = self._airflow.metadata.asset_events(asset, after=self._last_event[asset])
            ledger.record(events)
            if events:
                self._last_event[asset] = max(event.id for event in events)
                news = True
        return news

    def wait_for_news(self) -> None:
        """Wait until something is delivered after this call."""
        self.collect()
        self._airflow.wait_until("event", self.collect, timeout=300)

    def wait_for_all(self, timeout: float = 120) -> None:
        """Wait until nothing is missing, or until that has taken too long: the ledger will tell."""
        deadline = time.monotonic() + timeout
        while any(ledger.lost for ledger in self._ledgers.values()) and time.monotonic() < deadline:
            self._airflow.check()
            time.sleep(0.5)
            self.collect()


def run(rounds: int = 10, seed: int = 0) -> Report:
    """Run the crash test in a scratch folder, which is kept if it fails.

    :param rounds: interruptions; their kinds are mixed
    :param seed: fixes what lands, what interrupts, and when
    :raises AirflowHomeError: something else went wrong than what is tested for
    """
    home = Path(tempfile.mkdtemp(prefix="watermark-crash-test-"))
    print(f"seed {seed}, {rounds} interruptions, scratch folder {home}", flush=True)
    try:
        report = _test(home, rounds, seed)
    except KeyboardInterrupt:
        shutil.rmtree(home, ignore_errors=True)
        raise
    if report.passed:
        shutil.rmtree(home, ignore_errors=True)
    return report


def _test(home: Path, rounds: int, seed: int) -> Report:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ministack())
        server.client().create_bucket(Bucket=BUCKET)
        database = stack.enter_context(postgres())
        create_table(database)
        airflow = stack.enter_context(_airflow(home, server, database))
        ledger = Ledger(server.client(), BUCKET)
        rows, windows = DeliveredRows(), DeliveredWindows()
        watcher = Watcher(airflow, ledger, {"rows": rows, "windows": windows})
        watcher.start()
        say("the watchers are live")
        with Dropper(ledger, seed) as dropper, Writers(database, writers=2, seed=seed) as writers:
            _interrupt_again_and_again(watcher, ledger, rounds, random.Random(seed), say)
        dropper.check()
        writers.check()
        rows.committed = windows.committed = writers.committed
        say("nothing lands any more; waiting for the last deliveries")
        watcher.wait_for_all()
        time.sleep(COMMITTED_AFTER)
        say("a last restart, with everything committed: nothing may come again")
        airflow.restart("triggerer", signal.SIGKILL)  # told to no ledger: no excuse for a repeat
        ledger.put("in/last.csv", b"last")
        _insert_last(database, writers.committed)
        watcher.wait_for_all()
    return Report(
        seed=seed,
        seconds=time.monotonic() - began,
        interruptions=Counter(each.kind for each in watcher.interruptions),
        landed=len(ledger.landed),
        superseded=len(ledger.superseded),
        delivered=len(ledger.delivered),
        events=ledger.events,
        repeats=tuple(ledger.repeats(watcher.interruptions)),
        faults=ledger.faults(watcher.interruptions),
        rows=(rows.report(watcher.interruptions), windows.report(watcher.interruptions)),
        rows_passed=not rows.faults(watcher.interruptions) and not windows.faults(watcher.interruptions),
    )


def _airflow(home: Path, server: S3Server, database: Postgres) -> AirflowHome:
    dags = home / "dags"
    dags.mkdir()
    (dags / "watched.py").write_text(DAG)
    for asset, arguments in ROWS_DAGS.items():
        (dags / f"{asset}.py").write_text(ROWS_DAG.format(asset=asset, arguments=arguments))
    return AirflowHome(
        home / "airflow",
        dags_folder=dags,
        connections={
            "aws_default": server.airflow_connection_json(),
            "pg": database.airflow_connection_json(),
        },
        environment=SETTINGS,
    )


def _interrupt_again_and_again(
    watcher: Watcher, ledger: Ledger, rounds: int, rng: random.Random, say: Callable[[str], None]
) -> None:
    kinds = list(itertools.islice(itertools.cycle(get_args(Kind)), rounds))
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds, start=1):
        time.sleep(rng.uniform(1, 14))
        say(f"{number:>3}. {kind:<8}{len(ledger.landed):>6} landed so far")
        watcher.interrupt(kind, seconds=rng.uniform(0, 4))
        if rng.random() < 0.8:  # else the next one may come before the watcher is back
            watcher.wait_for_news()


def _insert_last(database: Postgres, committed: Committed) -> None:
    sent = time.monotonic()
    statement = "insert into events (stamp, payload) values ('now', 'last') returning id, version, updated_at"
    ((row, number, stamp),) = database.execute(statement)
    committed.versions.append(Version(row, number, stamp, sent, time.monotonic()))


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m devtools.crash_test", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="interruptions (default: %(default)s)")
    return run_seeded(parser, lambda arguments, seed: run(arguments.rounds, seed))


def run_seeded(parser: argparse.ArgumentParser, test: Callable[[argparse.Namespace, int], Report]) -> int:
    """Run a test from the command line, print its report, and return the exit status.

    :param parser: knows the test's own arguments
    :param test: is given the arguments and a seed
    """
    parser.add_argument("--seed", type=int, help="repeat the schedule of an earlier test")
    arguments = parser.parse_args()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seed = random.SystemRandom().randrange(10_000) if arguments.seed is None else arguments.seed
    try:
        report = test(arguments, seed)
    except KeyboardInterrupt:
        print("\nInterrupted: everything was stopped.")
        return 130
    except (AirflowHomeError, ServerStartError) as error:
        print(f"\nFAILED: {error}")
        return 1
    print(f"\n{report}\n\n{'passed' if report.passed else 'FAILED'}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
