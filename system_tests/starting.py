"""The start of it all: services, networks that can be bad, Airflow, and traffic that never stops."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from devtools.dropper import Dropper
from devtools.ledger import GcsLedger, Ledger
from devtools.postgres_stress import Habits, Writers, create_table
from devtools.tcp_proxy import TcpProxy
from system_tests.inserter import Inserter
from system_tests.running import COMPONENTS, DAGS, EXAMPLES, RunningAirflow
from system_tests.system import Networks, System
from system_tests.traffic import Objects, Rows, Source, Windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from system_tests.results import Results
    from system_tests.services import Services

BUCKET = "system-test"
ROLE = "watcher"
"""What watchers of databases log in as."""


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
        with contextlib.ExitStack() as writing:
            system = System(
                services=services,
                networks=networks,
                airflow=airflow,
                sources=_sources(services, writing.enter_context),
                results=results,
                small_disk=path / "watermarks",
            )
            system.wait_for_news(timeout=240)
            yield system
        # What writers did last was to ask whether all is there that they wrote: a failure is raised here.
        if system.is_complete:
            system.check()
            system.summarize()


def _sources(services: Services, enter: Callable[[Any], Any]) -> list[Source]:
    """Return the sources, with writers at work.

    :param enter: starts a writer, and sees to its end
    """
    s3, gcs = Ledger(services.s3.client(), BUCKET), GcsLedger(services.gcs, BUCKET)
    writers = enter(Writers(services.postgres, writers=1, seed=3, habits=Habits(rest=0.5)))
    return [
        Objects("s3_objects", s3, enter(Dropper(s3, 1, rate=1))),
        Objects("gcs_objects", gcs, enter(Dropper(gcs, 2, rate=1))),
        Rows("rows", writers),
        Windows("windows", writers),
        Rows("mariadb_rows", enter(Inserter(services.mariadb, rate=1))),
    ]


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
    return RunningAirflow(
        path,
        services.metadata,
        connections={
            "gcs_source": services.gcs.airflow_connection_json(),
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
    postgres, mariadb = services.postgres.create_role(ROLE), services.mariadb.create_role(ROLE)
    services.postgres.execute(f"grant select on events to {ROLE}")
    services.mariadb.execute(f"grant process on *.* to {ROLE}")
    aws, s3 = services.s3.airflow_connection_json(), _port(services.s3.endpoint_url)
    return {
        "s3_source": _elsewhere(aws, s3, networks.s3.port),
        "pg_source": _elsewhere(postgres.airflow_connection_json(), postgres.port, networks.postgres.port),
        "mariadb_source": _elsewhere(mariadb.airflow_connection_json(), mariadb.port, networks.mariadb.port),
    }


def _elsewhere(address: str, port: int, other: int) -> str:
    """Return an address, or an Airflow connection, that leads to another port."""
    assert address.count(str(port)) == 1
    return address.replace(str(port), str(other))
