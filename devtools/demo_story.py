"""The story that ``make demo`` tells: what is dropped, when the triggerer dies, and what becomes of it all.

What is shown is read from where it really is: events from Airflow's ``asset_event`` table, and what a run
consumed from what its tasks returned.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import urllib.request
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from devtools.ledger import Interruption, Ledger, listed, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from devtools.airflow_home import AirflowHome
    from devtools.airflow_metadata import AssetEvent, DagRun
    from devtools.s3_servers import S3Server

ASSET = "orders"
BUCKET = "lake"
PREFIX = "orders/"
DAG_ID = "load_new_objects"

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


class Story:
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
        self._stranded: set[int] = set()
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
        self._drop("tuesday.csv", content="second version")
        self._drop(*(f"after/{number:02}.csv" for number in range(30)))
        self._wait("run that consumed the rest", self._is_settled, timeout=150)

    def follow(self) -> None:
        """Tell what happens, until interrupted."""
        self._wait("end", lambda: False, timeout=float("inf"))

    def _start(self) -> None:
        self._client.create_bucket(Bucket=BUCKET)
        self._airflow.start("dag-processor", "triggerer", "scheduler", "api-server")
        self._say("airflow", "scheduler, Dag processor, triggerer and API server are starting")
        metadata = self._airflow.metadata
        watermarks = functools.partial(metadata.variable_names, f"watermark:s3:{ASSET}:")
        steps: dict[str, Callable[[], object]] = {
            f"the API server answers: {self._airflow.url} (no login)": self._api_answers,
            "the Dag processor has read the Dag": lambda: metadata.watching_triggers(ASSET),
            "the watcher is live: its first watermark is stored": watermarks,
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
        stranded = set(self._airflow.metadata.stranded_events(ASSET, DAG_ID))
        if stranded - self._stranded:
            named = _events(stranded)
            self._say(
                "note",
                f"Airflow starts no run for {named} before one more comes (apache/airflow#56050); the "
                "watcher sends one after half a minute of silence",
            )
        self._stranded = stranded

    def _tell_event(self, event: AssetEvent) -> None:
        self._last_event = event.id
        again = [each["key"] for each in event.changes if each["id"] in self._keys]
        new = [each["key"] for each in event.changes if each["id"] not in self._keys]
        self._keys.update({each["id"]: each["key"] for each in event.changes})
        if new:
            self._say("event", f"#{event.id} carries {_objects(new)}")
        if not event.changes:
            self._say("event", f"#{event.id} carries nothing: it has Airflow take the events before it")
        if again:
            self._say("event", f"#{event.id} carries again, with the same ids, {_objects(again)}")

    def _tell_run(self, run: DagRun) -> None:
        loads = [
            each for each in self._airflow.metadata.returned(DAG_ID, "load") if each.run_id == run.run_id
        ]
        ids = [change for load in loads for change in load.value]
        outcome = "FAILED after" if run.state == "failed" else f"consumed, in {_count(len(loads), 'task')},"
        if run.state == "success":
            self._consumed.update(ids)
        keys = [self._keys.get(change, change) for change in ids]
        self._say("run", f"{len(self._runs)} (of {_events(run.event_ids)}) {outcome} {_objects(keys)}")

    def _is_settled(self) -> bool:
        return not self._ledger.missing and self._consumed >= set(self._ledger.appearances)

    def tell_result(self) -> bool:
        """Print the final table, and return whether all promises were kept."""
        ledger = self._ledger
        good = sum(run.state == "success" for run in self._runs.values())
        faults = ledger.faults(self._crashes)
        faults["not consumed"] = [self._keys[change] for change in ledger.appearances.keys() - self._consumed]
        lost = faults.pop("lost", [])
        again = len(ledger.repeats(self._crashes))
        rows = [
            ("landed", len(ledger.landed), "objects, each version of one counted"),
            ("delivered", len(ledger.delivered), f"of them, in {_count(ledger.events, 'event')}"),
            ("lost", len(lost), listed(lost)),
            ("delivered again", again, "after the crash, each with the id it had"),
            ("consumed", len(self._consumed), f"of the delivered, by {_count(good, 'successful run')}"),
            *((fault, len(keys), listed(keys)) for fault, keys in faults.items() if keys),
        ]
        print(f"\n{table(rows)}\n", flush=True)
        return not (lost or any(faults.values()))


def _after(moment: float) -> bool:
    return time.monotonic() >= moment


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _events(ids: Iterable[int]) -> str:
    return "event " + ", ".join(f"#{number}" for number in sorted(ids))


def _objects(keys: Sequence[str]) -> str:
    return f"{_count(len(keys), 'object')}: {listed(keys)}"
