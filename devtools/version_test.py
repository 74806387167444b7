"""``make version-test AIRFLOW=x.y.z``: the S3 watcher on another Airflow than the one in ``.venv``.

A real Dag processor and triggerer of that Airflow, a real S3 server. While objects land steadily, the Dag is
paused for a while, and the triggerer is stopped with SIGTERM and killed with SIGKILL. In the end whatever
landed must be in an asset event, and what was delivered twice must have been delivered shortly before. The
tests of what depends on Airflow's release most run meanwhile: the triggerer is idle for most of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from devtools.airflow_home import AirflowHome
from devtools.crash_test import ASSET, BUCKET, DAG, SETTINGS, Kind, Report, Watcher, run_seeded
from devtools.dropper import Dropper
from devtools.ledger import Ledger
from devtools.s3_servers import ministack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INTERRUPTIONS: tuple[Kind, ...] = ("pause", "SIGTERM", "SIGKILL")

COMMITTED_AFTER = 25.0
"""Seconds after which whatever was delivered must have been committed: below Airflow 3.3 it takes longest."""


def run(python: Path, seed: int) -> Report:
    """Run the test in a scratch folder, which is kept if it fails.

    :param python: of the environment in which Airflow and this package are installed
    :param seed: fixes what lands, what interrupts, and when
    :raises AirflowHomeError: something else went wrong than what is tested for
    """
    home = Path(tempfile.mkdtemp(prefix="watermark-version-test-"))
    print(f"seed {seed}, {python}, scratch folder {home}", flush=True)
    report = _test(home, python, seed)
    if report.passed:
        shutil.rmtree(home, ignore_errors=True)
    return report


def _test(home: Path, python: Path, seed: int) -> Report:
    began, rng = time.monotonic(), random.Random(seed)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ministack())
        server.client().create_bucket(Bucket=BUCKET)
        (home / "dags").mkdir()
        (home / "dags" / "watched.py").write_text(DAG)
        airflow = stack.enter_context(
            AirflowHome(
                home / "airflow",
                dags_folder=home / "dags",
                connections={"aws_default": server.airflow_connection_json()},
                environment=SETTINGS,
                python=python,
            )
        )
        ledger = Ledger(server.client(), BUCKET)
        watcher = Watcher(airflow, ledger)
        watcher.start()
        say(f"the {ASSET} watcher is live")
        with Dropper(ledger, seed) as dropper:
            for kind in rng.sample(INTERRUPTIONS, len(INTERRUPTIONS)):
                watcher.wait_for_news()
                time.sleep(rng.uniform(1, 16))
                say(f"{kind:<8}{len(ledger.landed):>6} landed so far")
                watcher.interrupt(kind, seconds=rng.uniform(0, 4))
            watcher.wait_for_news()
        dropper.check()
        say("nothing lands any more; waiting for the last deliveries")
        watcher.wait_for_all()
        time.sleep(COMMITTED_AFTER)
        say("a last restart, with everything committed: nothing may come again")
        airflow.restart("triggerer", signal.SIGKILL)
        ledger.put("in/last.csv", b"last")
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
    )


class Tests:
    """pytest in that environment, in the background.

    :param python: of the environment
    :param paths: the tests; if there are none, nothing is run
    :param log: where to write what it prints
    """

    def __init__(self, python: Path, paths: Sequence[str], log: Path) -> None:
        self._log = log
        # Airflow's own warnings are none of ours.
        options = ["--override-ini", "filterwarnings=default", "-p", "no:cacheprovider"]
        with log.open("w") as output:
            self._process = paths and subprocess.Popen(
                [python, "-m", "pytest", *options, *paths], stdout=output, stderr=subprocess.STDOUT
            )

    def wait(self) -> int:
        """Wait for the end, print what was printed, and return the exit status."""
        if not self._process:
            return 0
        status = self._process.wait()
        print(self._log.read_text(errors="replace"), flush=True)
        return status

    def close(self) -> None:
        """End it, if it still runs."""
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running(python: Path, paths: Sequence[str]) -> Iterator[Tests]:
    """Run tests in the background."""
    with tempfile.TemporaryDirectory(prefix="watermark-version-test-") as scratch:
        tests = Tests(python, paths, Path(scratch, "pytest.log"))
        try:
            yield tests
        finally:
            tests.close()


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m devtools.version_test", description=__doc__)
    parser.add_argument(
        "python", type=Path, nargs="?", default=sys.executable, help="of that Airflow's environment"
    )
    parser.add_argument("--tests", nargs="*", default=[], help="what pytest runs there meanwhile")
    given, _ = parser.parse_known_args()  # the seed is another's
    with running(given.python.absolute(), given.tests) as tests:
        status = run_seeded(parser, lambda arguments, seed: run(arguments.python.absolute(), seed))
        return tests.wait() or status


if __name__ == "__main__":
    sys.exit(main())
