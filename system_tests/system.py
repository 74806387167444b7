"""The whole system: services, networks that can be bad, a running Airflow, and traffic that never stops."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from devtools.dropper import Dropper
from devtools.ledger import GcsLedger, Interruption, Ledger
from devtools.postgres_stress import Habits, Writers, create_table
from devtools.tcp_proxy import TcpProxy
from system_tests.results import Result, Results
from system_tests.running import COMPONENTS, DAGS, EXAMPLES, RunningAirflow
from system_tests.traffic import Inserter, Objects, Rows, Source, Windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from system_tests.services import Services

BUCKET = "system-test"
ROLE = "watcher"
"""What watchers of the Postgres source log in as."""

SETTLE_WITHIN = 120.0
"""Seconds within which whatever was changed must be with a Dag run, once the harm is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """What stands between watchers and sources; the writers go straight to the servers."""

    s3: TcpProxy
    gcs: TcpProxy
    postgres: TcpProxy
    mariadb: TcpProxy


@dataclass(slots=True, kw_only=True)
class System:
    """All that a test of a fault needs.

    :param small_disk: the folder of the object store for watermarks, which only one test uses
    :param interruptions: what ended watchers so far: it explains what was delivered again
    """

    services: Services
    networks: Networks
    airflow: RunningAirflow
    sources: list[Source]
    small_disk: Path
    results: Results
    interruptions: list[Interruption] = field(default_factory=list)

    @contextlib.contextmanager
    def fault(self, name: str, *, settle_within: float = SETTLE_WITHIN) -> Iterator[Fault]:
        """Bring about a fault, and compare in the end what was changed with what Dag runs were given.

        :param name: what the table calls it
        :param settle_within: seconds within which all must be delivered afterwards
        :raises AssertionError: something was lost, or came again without a cause
        """
        fault = Fault(self)
        yield fault
        changed = {source.name: source.changes for source in self.sources}
        missing = self._settle(fault, changed, settle_within)
        result = fault.result(name, changed, sum(map(len, missing.values())))
        self.results.rows.append(result)
        print(f"{name}: {result.changes} changes, {result.lost} lost, {result.repeated} repeated, "
              f"at most {result.longest_delay:.1f} s late")  # fmt: skip
        assert not result.lost, f"lost: { {name: keys[:5] for name, keys in missing.items() if keys} }"
        odd = {source.name: found for source in self.sources if (found := source.faults(self.interruptions))}
        assert not odd, f"{odd}"

    def _settle(self, fault: Fault, changed: Mapping[str, int], within: float) -> dict[str, list[str]]:
        deadline = time.monotonic() + within
        while True:
            self.airflow.check()
            for source in self.sources:
                source.check()
                source.collect(self.airflow)
            missing = {s.name: s.missing(fault.changes[s.name], changed[s.name]) for s in self.sources}
            if not any(missing.values()) or time.monotonic() > deadline:
                return missing
            time.sleep(1)

    def wait_for_news(self, *names: str, timeout: float = 120) -> None:
        """Wait until sources delivered something that was changed after this call.

        :param names: of the sources; all if none is named
        """
        began = datetime.now(UTC)
        query = """SELECT count(DISTINCT asset.name) FROM asset_event AS event
                   JOIN asset ON asset.id = event.asset_id WHERE event.timestamp > ? AND asset.name IN (%s)"""
        wanted = names or tuple(source.name for source in self.sources)
        query = query.replace("%s", ", ".join("?" * len(wanted)))
        count = len(wanted)
        self.airflow.wait_until(
            f"event of each of {', '.join(wanted)}",
            lambda: self.airflow.metadata.rows(query, began, *wanted)[0][0] == count,
            timeout,
        )


class Fault:
    """A fault under way: how far everything was when it began."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._restarts = system.airflow.restarts.total()
        self.count = 0
        for source in system.sources:
            source.collect(system.airflow)
        self.changes = {source.name: source.changes for source in system.sources}
        self._repeated = {source.name: source.repeated() for source in system.sources}

    @contextlib.contextmanager
    def interruption(self, kind: str, *, ends_watchers: bool = True, lasts: float = 0) -> Iterator[None]:
        """Say that harm is done meanwhile.

        :param kind: what it is
        :param ends_watchers: whether watchers may end by it, so that what they had not committed comes again
        :param lasts: for how many seconds after it watchers may still end
        """
        self.count += 1
        began = datetime.now(UTC)
        yield
        if ends_watchers:
            ended = datetime.fromtimestamp(time.time() + lasts, UTC)
            self._system.interruptions.append(Interruption(kind, began, ended))

    def result(self, name: str, changed: Mapping[str, int], lost: int) -> Result:
        """Return the row of the table."""
        system = self._system
        delays = [
            delay
            for source in system.sources
            for delay in source.delays(self.changes[source.name], changed[source.name])
        ]
        return Result(
            fault=name,
            interruptions=self.count,
            changes=sum(changed.values()) - sum(self.changes.values()),
            lost=lost,
            repeated=sum(source.repeated() - self._repeated[source.name] for source in system.sources),
            longest_delay=max(delays, default=0.0),
            restarts=system.airflow.restarts.total() - self._restarts,
        )


@contextlib.contextmanager
def running_system(path: Path, services: Services, results: Results) -> Iterator[System]:
    """Start everything, and return when all watchers are live and changes arrive."""
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        networks = Networks(
            s3=enter(TcpProxy(_port(services.s3.endpoint_url))),
            gcs=enter(TcpProxy(_port(services.gcs.endpoint_url))),
            postgres=enter(TcpProxy(services.postgres.port)),
            mariadb=enter(TcpProxy(services.mariadb.port)),
        )
        _make_sources(services)
        (path / "watermarks").mkdir(parents=True)
        airflow = enter(_airflow(path, services, networks))
        for name, connection in _stored_connections(services, networks).items():
            airflow.metadata.add_connection(name, connection)
        airflow.start(*COMPONENTS)
        watched = len(list(airflow.dags_folder.glob("*.py")))
        airflow.wait_until(
            "watermark of each watcher",
            lambda: len(airflow.metadata.variable_names("watermark:")) >= watched,
            timeout=240,
        )
        s3, gcs = Ledger(services.s3.client(), BUCKET), GcsLedger(services.gcs, BUCKET)
        droppers = [enter(Dropper(s3, 1, rate=1)), enter(Dropper(gcs, 2, rate=1))]
        writers = enter(Writers(services.postgres, writers=1, seed=3, habits=Habits(rest=0.5)))
        sources: list[Source] = [
            Objects("s3_objects", s3, droppers[0]),
            Objects("gcs_objects", gcs, droppers[1]),
            Rows("rows", writers),
            Windows("windows", writers),
            Rows("mariadb_rows", enter(Inserter(services.mariadb, rate=1))),
        ]
        system = System(
            services=services,
            networks=networks,
            airflow=airflow,
            sources=sources,
            results=results,
            small_disk=path / "watermarks",
        )
        system.wait_for_news(timeout=240)
        yield system


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def _make_sources(services: Services) -> None:
    create_table(services.postgres)
    services.mariadb.execute("""
        create table events (
            id bigint primary key auto_increment, payload text,
            updated_at datetime(6) default (utc_timestamp(6)), index (updated_at, id)
        )
    """)
    for bucket in (BUCKET, "lake"):
        services.s3.client().create_bucket(Bucket=bucket)
        services.gcs.create_bucket(bucket)
    services.postgres.execute("""
        create table tickets (
            id bigint primary key, state text, amount numeric(10, 2), updated_at timestamptz default now()
        );
        create index on tickets (updated_at, id);
        create table sales (id bigint primary key, amount integer, updated_at timestamptz default now());
        create index on sales (updated_at);
        create table sales_copy (like sales including all);
    """)


def _airflow(path: Path, services: Services, networks: Networks) -> RunningAirflow:
    gcs = _port(services.gcs.endpoint_url)
    aws = services.s3.airflow_connection_json()
    postgres = services.postgres.airflow_connection_json()
    mariadb = services.mariadb.airflow_connection_json()
    return RunningAirflow(
        path,
        services.metadata,
        connections={
            "gcs_source": services.gcs.airflow_connection_json(),
            "mariadb_source": _elsewhere(mariadb, services.mariadb.port, networks.mariadb.port),
            "aws_default": aws,
            "google_cloud_default": services.gcs.airflow_connection_json(),
            "postgres_default": postgres,
        },
        environment={
            "STORAGE_EMULATOR_HOST": _elsewhere(services.gcs.endpoint_url, gcs, networks.gcs.port),
            "EXAMPLE_POLL_INTERVAL": "2",
            "AIRFLOW__WATERMARK__OBJECT_STORAGE_PATH": f"file://{path / 'watermarks' / 'kept'}",
        },
        dags=(*sorted(DAGS.glob("*.py")), *sorted(EXAMPLES.glob("*.py"))),
    )


def _stored_connections(services: Services, networks: Networks) -> dict[str, str]:
    """Return the connections that a user keeps in Airflow, and may change there."""
    role = services.postgres.create_role(ROLE)
    services.postgres.execute(f"grant select on events to {ROLE}")
    aws, s3 = services.s3.airflow_connection_json(), _port(services.s3.endpoint_url)
    return {
        "s3_source": _elsewhere(aws, s3, networks.s3.port),
        "pg_source": _elsewhere(role.airflow_connection_json(), role.port, networks.postgres.port),
    }


def _elsewhere(address: str, port: int, other: int) -> str:
    """Return an address, or an Airflow connection, that leads to another port."""
    assert address.count(str(port)) == 1
    return address.replace(str(port), str(other))
