"""``make crash-test``: objects land steadily while the watcher is interrupted again and again.

A real Dag processor and triggerer, a real S3 server. At random times, which a seed fixes, the triggerer is
killed with SIGKILL, stopped with SIGTERM, or the Dag is paused for a while. In the end whatever landed must
be in an asset event, and what was delivered twice must have been delivered shortly before an interruption.
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
from typing import TYPE_CHECKING, Literal, get_args

from devtools.airflow_home import AirflowHome, AirflowHomeError
from devtools.dropper import Dropper
from devtools.ledger import Interruption, Ledger, Repeat, listed, table
from devtools.s3_servers import ServerStartError, ministack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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

    @property
    def lost(self) -> list[str]:
        """The keys of what was lost."""
        return self.faults.get("lost", [])

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, and no repeat was without cause."""
        return not self.faults

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
        return "\n".join([table(rows), *(f"  lost: {key}" for key in self.lost)])


class Watcher:
    """The watcher of our Dag, in a real Airflow: interrupts it, and reads what it delivers.

    :param airflow: with our Dag
    :param ledger: where deliveries are written down
    """

    def __init__(self, airflow: AirflowHome, ledger: Ledger) -> None:
        self._airflow = airflow
        self._ledger = ledger
        self._last_event = 0
        self.interruptions: list[Interruption] = []

    def start(self) -> None:
        """Start, and wait until the first watermark is stored."""
        self._airflow.start("dag-processor", "triggerer")
        names = self._airflow.metadata.variable_names
        self._airflow.wait_until("watermark", lambda: names("watermark:"), timeout=180)

    def interrupt(self, kind: Kind, seconds: float) -> None:
        """End the watcher for a while."""
        began = datetime.now(UTC)
        if kind == "pause":
            self._airflow.pause_dag(ASSET)
            self._airflow.wait_until("end of the watcher", lambda: not self._is_scheduled())
            ended = datetime.now(UTC) + CANCELLED_WITHIN
        else:
            self._airflow.stop("triggerer", signal.Signals[kind])
            ended = datetime.now(UTC)
        self.interruptions.append(Interruption(kind, began, ended))
        time.sleep(seconds)
        if kind == "pause":
            self._airflow.unpause_dag(ASSET)
            self._airflow.wait_until("return of the watcher", self._is_scheduled)
        else:
            self._airflow.start("triggerer")

    def _is_scheduled(self) -> bool:
        return bool(self._airflow.metadata.watching_triggers(ASSET))

    def collect(self) -> bool:
        """Write down what was delivered since the last call; return whether anything was."""
        events = self._airflow.metadata.asset_events(ASSET, after=self._last_event)
        self._ledger.record(events)
        self._last_event = max((event.id for event in events), default=self._last_event)
        return bool(events)

    def wait_for_news(self) -> None:
        """Wait until something is delivered after this call."""
        self.collect()
        self._airflow.wait_until("event", self.collect)

    def wait_for_all(self, timeout: float = 90) -> None:
        """Wait until nothing is missing, or until that has taken too long: the ledger will tell."""
        deadline = time.monotonic() + timeout
        while self._ledger.lost and time.monotonic() < deadline:
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
        airflow = stack.enter_context(_airflow(home, server))
        ledger = Ledger(server.client(), BUCKET)
        watcher = Watcher(airflow, ledger)
        watcher.start()
        say("the watcher is live")
        with Dropper(ledger, seed) as dropper:
            _interrupt_again_and_again(watcher, ledger, rounds, random.Random(seed), say)
        dropper.check()
        say("nothing lands any more; waiting for the last deliveries")
        watcher.wait_for_all()
        _restart_at_rest(airflow, ledger, watcher, say)
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
    )


def _airflow(home: Path, server: S3Server) -> AirflowHome:
    dags = home / "dags"
    dags.mkdir()
    (dags / "watched.py").write_text(DAG)
    return AirflowHome(
        home / "airflow",
        dags_folder=dags,
        connections={"aws_default": server.airflow_connection_json()},
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


def _restart_at_rest(
    airflow: AirflowHome, ledger: Ledger, watcher: Watcher, say: Callable[[str], None]
) -> None:
    """Restart when all is committed: no excuse for a repeat, so the ledger is told of no interruption."""
    time.sleep(COMMITTED_AFTER)
    say("a last restart, with everything committed: nothing may come again")
    airflow.restart("triggerer", signal.SIGKILL)
    ledger.put("in/last.csv", b"last")
    watcher.wait_for_all()


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m devtools.crash_test", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="interruptions (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat the schedule of an earlier test")
    arguments = parser.parse_args()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seed = random.SystemRandom().randrange(10_000) if arguments.seed is None else arguments.seed
    try:
        report = run(arguments.rounds, seed)
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
