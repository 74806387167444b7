"""The servers that the system tests use: in containers, or as processes of this machine.

``SYSTEM_TEST_SERVICES`` chooses: ``docker`` (testcontainers), ``local`` (the same servers from PyPI and the
system), or ``auto``, the default: ``docker`` if a daemon answers. The header of the run says which, and why.
Nothing is skipped where a server is missing: its start fails, and says what to install.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import pytest

from devtools import databases, gcs_servers, s3_servers
from system_tests import containers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devtools.databases import MariaDB, Options, Postgres
    from devtools.gcs_servers import GcsServer
    from devtools.s3_servers import S3Server

Kind = Literal["docker", "local", "auto"]

_VARIABLE = "SYSTEM_TEST_SERVICES"
_LOCALSTACK = Path(__file__).parents[1] / ".venv-localstack" / "bin" / "python"
POSTGRES_OPTIONS: Options = {"max_connections": 300, "max_prepared_transactions": 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Running servers.

    :param metadata: Postgres for Airflow's metadata, a server of its own
    :param postgres: a source
    :param mariadb: a source
    :param s3: LocalStack
    :param gcs: fake-gcs-server
    """

    metadata: Postgres
    postgres: Postgres
    mariadb: MariaDB
    s3: S3Server
    gcs: GcsServer


@functools.cache
def chosen() -> tuple[Literal["docker", "local"], str]:
    """Tell which servers are used, and why.

    :raises pytest.UsageError: the environment names something else, or Docker without a daemon
    """
    wanted = os.environ.get(_VARIABLE, "auto")
    if wanted not in get_args(Kind):
        raise pytest.UsageError(f"{_VARIABLE}={wanted!r}: it is one of {', '.join(get_args(Kind))}")
    if wanted == "local":
        return "local", f"{_VARIABLE}=local"
    problem = containers.daemon_problem()
    if wanted == "docker" and problem:
        raise pytest.UsageError(f"{_VARIABLE}=docker, but {problem}")
    if problem:
        return "local", f"{_VARIABLE}=auto, and {problem}"
    return "docker", f"{_VARIABLE}={wanted}, and a Docker daemon answers"


def header() -> list[str]:
    """Return what the header of the run says."""
    kind, why = chosen()
    if kind == "docker":
        return [f"services: containers ({why})", f"images: {', '.join(containers.images_in_words())}"]
    return [f"services: processes of this machine, from PyPI and the system ({why})"]


def end_by_sigterm_as_by_ctrl_c() -> None:
    """Let SIGTERM end this process in good order: servers and containers are stopped and removed.

    Only the first SIGTERM counts: a second one, such as make passes on, must not end that work.
    """

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which children would inherit
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@contextlib.contextmanager
def running() -> Iterator[Services]:
    """Start all servers, and stop them in the end."""
    module = containers if chosen()[0] == "docker" else _Local
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        yield Services(
            metadata=enter(module.postgres(options=POSTGRES_OPTIONS)),
            postgres=enter(module.postgres(options=POSTGRES_OPTIONS)),
            mariadb=enter(module.mariadb()),
            s3=enter(module.localstack()),
            gcs=enter(module.fake_gcs()),
        )


class _Local:
    """The servers as processes."""

    postgres = staticmethod(databases.postgres)
    mariadb = staticmethod(databases.mariadb)
    fake_gcs = staticmethod(gcs_servers.fake_gcs)

    @staticmethod
    def localstack() -> contextlib.AbstractContextManager[S3Server]:
        if not _LOCALSTACK.exists():
            raise s3_servers.ServerStartError("LocalStack is not installed: make localstack-venv")
        return s3_servers.localstack(python=_LOCALSTACK)
