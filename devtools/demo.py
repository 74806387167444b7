"""``make demo``: the main job for real, in under three minutes.

An S3 server on loopback, Airflow's four processes in a scratch home, and the example Dag that watches a
prefix. Objects are dropped, and what becomes of each is shown as it happens; half-way the triggerer is
killed without warning. It ends with a table, and with status 0 only if nothing was lost and successful runs
consumed whatever was delivered.

What is shown is read from where it really is: events from Airflow's ``asset_event`` table, and what a run
consumed from what its tasks returned.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from devtools.airflow_home import AirflowHome, AirflowHomeError
from devtools.ledger import Interruption, Ledger, listed, table
from devtools.s3_servers import S3Server, ServerStartError, ministack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from devtools.airflow_metadata import AssetEvent, DagRun

ROOT = Path(__file__).resolve().parents[1]
ASSET = "orders"
BUCKET = "lake"
PREFIX = "orders/"
DAG_ID = "load_new_objects"
SETTINGS = {
    "EXAMPLE_BUCKET": BUCKET,
    "EXAMPLE_PREFIX": PREFIX,
    "EXAMPLE_POLL_INTERVAL": "2",
    "EXAMPLE_CHUNK_SIZE": "25",
}

ODD_NAMES = (
    "with space.csv",
    "a+b=c%41&d.csv",
    "Zürich.csv",
    "Zu\u0308rich.csv",
    "日本 😀.csv",
    'it\'s "quoted".csv',
    "two//slashes.csv",
    "new\nline.csv",
)


class Demo:
    """Drops objects, and follows each through event and run.

    :param airflow: with the example Dag in its Dags folder
    :param server: the S3 server that the Dag's connection names
    :param say: prints a line of two columns
    """

    def __init__(self, airflow: AirflowHome, server: S3Server, say: Callable[[str, str], None]) -> None:
        self._airflow = airflow
        self._client = server.client()
        self._say = say
        self._ledger = Ledger(self._client, BUCKET)
        self._crashes: list[Interruption] = []
        self._last_event = 0
        self._keys: dict[str, str] = {}
        self._runs: dict[str, DagRun] = {}
        self._consumed: set[str] = set()
        self._stream = (f"stream/{number:03}.csv" for number in itertools.count())
        self._next_drop = 0.0

    def run(self) -> None:
        """Tell the whole story; the time-outs are generous, for slow machines."""
        self._start()
        for name in ("monday.csv", "tuesday.csv", "wednesday.csv"):
            self._drop(name)
            self._wait("next moment", functools.partial(_after, time.monotonic() + 1.5))
        self._drop(*(f"burst/{number:02}.csv" for number in range(60)))
        self._drop(*ODD_NAMES)
        self._wait("run that consumed all of this", self._is_settled)
        self._drop("monday.csv", "burst/07.csv", ODD_NAMES[4], content="second version")
        self._crash_while_objects_land()
        self._drop(
            "tuesday.csv", *(f"after/{number:02}.csv" for number in range(30)), content="third version"
        )
        self._wait("run that consumed the rest", self._is_settled, timeout=150)

    def follow(self) -> None:
        """Tell what happens, until interrupted."""
        self._wait("end", lambda: False, timeout=float("inf"))

    def _start(self) -> None:
        self._client.create_bucket(Bucket=BUCKET)
        self._airflow.start("dag-processor", "triggerer", "scheduler", "api-server")
        self._say("airflow", "scheduler, Dag processor, triggerer and API server are starting")
        metadata = self._airflow.metadata
        steps: dict[str, Callable[[], object]] = {
            f"the API server answers: {self._airflow.url} (no login)": self._api_answers,
            "the Dag processor has read the Dag": lambda: metadata.watching_triggers(ASSET),
            "the watcher is live: its first watermark is stored": lambda: metadata.variable_names(
                "watermark:"
            ),
        }

        def all_ready() -> bool:
            for step in [step for step, ready in steps.items() if ready()]:
                del steps[step]
                self._say("airflow", step)
            return not steps

        self._wait("live watcher", all_ready, timeout=180)

    def _api_answers(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with contextlib.suppress(OSError), opener.open(f"{self._airflow.url}/api/v2/version", timeout=5):
            return True
        return False

    def _crash_while_objects_land(self) -> None:
        """Kill the triggerer right after an event, whose watermark cannot have been committed yet."""
        self._wait("event", self._while_dropping(self._new_event()))
        began = datetime.now(UTC)
        self._airflow.kill("triggerer")
        self._crashes.append(Interruption("SIGKILL", began, datetime.now(UTC)))
        self._say("CRASH", "the triggerer is killed (SIGKILL); objects go on landing, and nobody watches")
        self._wait("moment", self._while_dropping(functools.partial(_after, time.monotonic() + 6)))
        self._airflow.start("triggerer")
        self._say("restart", "a new triggerer starts, and waits until the dead one's heartbeat is too old")
        self._wait("event after the crash", self._while_dropping(self._new_event()))

    def _new_event(self) -> Callable[[], bool]:
        last = self._last_event
        return lambda: self._last_event > last

    def _while_dropping(self, done: Callable[[], bool]) -> Callable[[], bool]:
        def drop_and_ask() -> bool:
            if time.monotonic() >= self._next_drop:
                self._next_drop = time.monotonic() + 1
                self._drop(next(self._stream))
            return done()

        return drop_and_ask

    def _wait(self, what: str, done: Callable[[], bool], timeout: float = 90) -> None:
        def observe_and_ask() -> bool:
            self._observe()
            return done()

        self._airflow.wait_until(what, observe_and_ask, timeout)

    def _drop(self, *names: str, content: str = "first version") -> None:
        keys = [PREFIX + name for name in names]
        for key in keys:
            self._ledger.put(key, f"{content} of {key}\n".encode())
        self._say("landed", f"{_objects(keys)}{'' if content == 'first version' else f' ({content})'}")

    def _observe(self) -> None:
        events = self._airflow.metadata.asset_events(ASSET, after=self._last_event)
        for event in events:
            self._tell_event(event)
        self._ledger.record(events)
        for run in self._airflow.metadata.dag_runs(DAG_ID):
            if run.state in {"failed", "success"} and run.run_id not in self._runs:
                self._runs[run.run_id] = run
                self._tell_run(run)

    def _tell_event(self, event: AssetEvent) -> None:
        self._last_event = event.id
        again = [each["key"] for each in event.changes if each["id"] in self._keys]
        new = [each["key"] for each in event.changes if each["id"] not in self._keys]
        self._keys.update({each["id"]: each["key"] for each in event.changes})
        if new:
            self._say("event", f"#{event.id} carries {_objects(new)}")
        if again:
            self._say("event", f"#{event.id} carries again, with the same ids, {_objects(again)}")

    def _tell_run(self, run: DagRun) -> None:
        loads = [
            each for each in self._airflow.metadata.returned(DAG_ID, "load") if each.run_id == run.run_id
        ]
        ids = [change for load in loads for change in load.value]
        events = ", ".join(f"#{number}" for number in sorted(run.event_ids))
        outcome = "FAILED after" if run.state == "failed" else f"consumed, in {_count(len(loads), 'task')},"
        if run.state == "success":
            self._consumed.update(ids)
        keys = [self._keys.get(change, change) for change in ids]
        self._say("run", f"{len(self._runs)} (of event {events}) {outcome} {_objects(keys)}")

    def _is_settled(self) -> bool:
        return not self._ledger.missing and self._consumed >= set(self._ledger.appearances)

    def tell_result(self) -> bool:
        """Print the final table, and return whether all promises were kept."""
        ledger = self._ledger
        good = sum(run.state == "success" for run in self._runs.values())
        faults = ledger.faults(self._crashes)
        faults["not consumed"] = [self._keys[change] for change in ledger.appearances.keys() - self._consumed]
        lost = faults.pop("lost", [])
        rows = [
            ("landed", len(ledger.landed), "objects, each version of one counted"),
            ("delivered", len(ledger.delivered), f"of them, in {_count(ledger.events, 'event')}"),
            ("lost", len(lost), listed(lost)),
            (
                "delivered again",
                len(ledger.repeats(self._crashes)),
                "after the crash, each with the id it had",
            ),
            ("consumed", len(self._consumed), f"of the delivered, by {_count(good, 'successful run')}"),
            *((fault, len(keys), listed(keys)) for fault, keys in faults.items() if keys),
        ]
        print(f"\n{table(rows)}\n", flush=True)
        return not (lost or any(faults.values()))


def _after(moment: float) -> bool:
    return time.monotonic() >= moment


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _objects(keys: Sequence[str]) -> str:
    return f"{_count(len(keys), 'object')}: {listed(keys)}"


def _narrator() -> Callable[[str, str], None]:
    began = time.monotonic()

    def say(what: str, text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what:<8}{text}", flush=True)

    return say


def show(home: Path, *, keep: bool) -> bool:
    """Run the demo, and return whether all promises were kept.

    :param home: a scratch folder, which is left with logs in it
    :param keep: let everything run on until interrupted
    """
    say = _narrator()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ministack())
        say("s3", f"a server listens on {server.endpoint_url}")
        say("airflow", "the metadata database is made (the first time, this may take half a minute)")
        airflow = stack.enter_context(_airflow(home, server))
        demo = Demo(airflow, server, say)
        try:
            demo.run()
        except AirflowHomeError:
            demo.tell_result()
            raise
        kept_promises = demo.tell_result()
        if keep:
            _tell_how_to_go_on(airflow, server)
            with contextlib.suppress(KeyboardInterrupt):
                demo.follow()
    return kept_promises


def _airflow(home: Path, server: S3Server) -> AirflowHome:
    return AirflowHome(
        home,
        dags_folder=ROOT / "example_dags",
        connections={"aws_default": server.airflow_connection_json()},
        environment=SETTINGS,
    )


def drop(path: Path, endpoint_url: str) -> None:
    """Put a file under the watched prefix of a demo that was kept."""
    client = S3Server(name="demo", endpoint_url=endpoint_url).client()
    client.put_object(Bucket=BUCKET, Key=PREFIX + path.name, Body=path.read_bytes())
    print(f"landed: s3://{BUCKET}/{PREFIX}{path.name}")


def _tell_how_to_go_on(airflow: AirflowHome, server: S3Server) -> None:
    python = Path(sys.executable)
    command = python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    print(
        f"""It goes on until Ctrl-C.

  the UI            {airflow.url} (no login)
  drop a file       {command} -m devtools.demo --endpoint {server.endpoint_url} --drop FILE
  logs and database {airflow.path}
""",
        flush=True,
    )


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m devtools.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="let everything run on until Ctrl-C")
    parser.add_argument("--drop", type=Path, metavar="FILE", help="only put a file into a demo that was kept")
    parser.add_argument("--endpoint", metavar="URL", help="the address of that demo's S3 server")
    arguments = parser.parse_args()
    if arguments.drop:
        drop(arguments.drop, arguments.endpoint)
        return 0
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    home = Path(tempfile.mkdtemp(prefix="watermark-demo-"))
    try:
        status = 0 if show(home, keep=arguments.keep) else 1
    except KeyboardInterrupt:
        print("\nInterrupted: everything was stopped.")
        status = 130
    except (AirflowHomeError, ServerStartError) as error:
        print(error)
        status = 1
    if status == 1:
        print(f"\nFAILED. The logs are in {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
