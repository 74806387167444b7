"""The servers in containers, through testcontainers; each keeps its loopback port through restarts.

The images are the official ones, or what the environment names: ``SYSTEM_TEST_POSTGRES_IMAGE``,
``SYSTEM_TEST_MARIADB_IMAGE``, ``SYSTEM_TEST_LOCALSTACK_IMAGE``, ``SYSTEM_TEST_GCS_IMAGE``.

Each container is labelled with the process that made it, and with ``SYSTEM_TEST_RUN`` if the environment has
that, so that who ran the tests finds what they left behind.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import docker  # type: ignore[import-untyped, unused-ignore]
from docker.errors import (  # type: ignore[import-untyped, unused-ignore]
    DockerException,
    ImageNotFound,
    NotFound,
)
from testcontainers.core.container import DockerContainer

from devtools.databases import MariaDB, Postgres
from devtools.gcs_servers import GcsServer
from devtools.s3_servers import START_TIMEOUT, S3Server, ServerStartError, free_port
from devtools.server_process import ServerProcess

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator, Mapping

    from devtools.databases import Options

_DEFAULT_IMAGES = {
    "POSTGRES": "postgres:15",
    "MARIADB": "mariadb:10.11",
    "LOCALSTACK": "localstack/localstack:4.13.1",
    "GCS": "fsouza/fake-gcs-server:1.54.0",
}
IMAGES = {name: os.environ.get(f"SYSTEM_TEST_{name}_IMAGE", image) for name, image in _DEFAULT_IMAGES.items()}
"""The images by the name in their environment variable."""

_PROCESS_LABEL = "airflow-provider-watermark.process"
_RUN_LABEL = "airflow-provider-watermark.run"
_STAND_IN_LABEL = "airflow-provider-watermark.stand-in"
_LOG_TAIL_LINES = 40
_STOP_TIMEOUT = 30


def daemon_problem() -> str | None:
    """Tell why Docker cannot be used, or None if it can."""
    problem = None
    with warnings.catch_warnings():
        # A client that cannot connect leaves its socket to the garbage collector: not to a test's warnings.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with contextlib.closing(docker.from_env(timeout=10)) as client:
                client.ping()
        except DockerException as error:
            problem = f"no Docker daemon answers ({str(error).splitlines()[0][:100]})"
        gc.collect()
    return problem


@functools.cache
def images_in_words() -> tuple[str, ...]:
    """Name the images, and say which are those of ``images/ensure.sh``, in place of the official ones."""
    words = []
    with contextlib.closing(docker.from_env(timeout=10)) as client:
        for image in IMAGES.values():
            labels: dict[str, str] = {}
            with contextlib.suppress(ImageNotFound):  # it will be pulled
                labels = client.images.get(image).labels
            words.append(f"stand-in for {image}" if _STAND_IN_LABEL in labels else image)
    return tuple(words)


def made_by(process: int) -> list[str]:
    """Return the names of the containers that a process has made, and that are not removed."""
    with contextlib.closing(docker.from_env(timeout=10)) as client:
        found = client.containers.list(all=True, filters={"label": f"{_PROCESS_LABEL}={process}"})
        return [container.name for container in found]


class Container(ServerProcess):
    """A server in a container; it takes the place of a process.

    :param name: what messages call it
    :param image: the image
    :param port: where the server listens, inside; outside it is :attr:`host_port`
    :param environment: what the image is told
    :param command: what is run in place of the image's own command
    """

    def __init__(
        self,
        name: str,
        image: str,
        port: int,
        environment: Mapping[str, str] | None = None,
        command: list[str] | None = None,
    ) -> None:
        super().__init__(name, [], Path(), death_signal=NotImplemented)
        self.host_port = free_port()
        # By its name it is found, and removed, even if its start fails half-way.
        self._container_name = f"system-test-{name}-{os.getpid()}-{self.host_port}"
        labels = {_PROCESS_LABEL: str(os.getpid()), _RUN_LABEL: os.environ.get("SYSTEM_TEST_RUN", "")}
        self._container = DockerContainer(image, name=self._container_name, labels=labels)
        ports: dict[str, Any] = self._container.ports  # which may bind an address, too
        ports[f"{port}/tcp"] = ("127.0.0.1", self.host_port)
        self._container.with_envs(**(environment or {}))
        if command:
            self.with_command(command)
        self._made = False

    def with_command(self, command: list[str]) -> None:
        """Say what is run in place of the image's own command, before the start."""
        self._container.with_command(command)

    def start(self, attempt: Callable[[], object], not_yet: type[Exception]) -> None:
        """Start the server, and return when an attempt to use it succeeds."""
        if self._made:
            self._inner.start()
        else:
            self._create()
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                attempt()
            except not_yet as error:
                self._inner.reload()
                if self._inner.status != "exited" and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                logs = self._inner.logs(tail=_LOG_TAIL_LINES).decode(errors="replace")
                raise ServerStartError(f"{self.name} did not start ({error}):\n{logs}") from error
            return

    def _create(self) -> None:
        try:
            self._container.start()
        except DockerException as error:
            raise ServerStartError(
                f"the container of {self.name} cannot be made: {error}. Where no registry is reached, "
                'eval "$(system_tests/images/ensure.sh)" first, or set SYSTEM_TEST_SERVICES=local'
            ) from error
        self._made = True

    def stop(self, *signals: signal.Signals) -> None:
        """Signal the server, and return when it is gone; its data stays."""
        self._inner.kill(signals[0].value)
        self._inner.wait(timeout=_STOP_TIMEOUT)

    def remove(self) -> None:
        """Remove the container and its data, if it was made."""
        client = self._container.get_docker_client().client
        with contextlib.closing(client), contextlib.suppress(NotFound):
            client.containers.get(self._container_name).remove(force=True, v=True)

    @property
    def _inner(self) -> Any:
        return self._container.get_wrapped_container()


@contextlib.contextmanager
def postgres(*, options: Options | None = None) -> Iterator[Postgres]:
    """Run PostgreSQL."""
    settings = {"timezone": "UTC", "fsync": "off", "full_page_writes": "off", **(options or {})}
    command = ["postgres", *(part for name, value in settings.items() for part in ("-c", f"{name}={value}"))]
    server = Container("postgres", IMAGES["POSTGRES"], 5432, {"POSTGRES_PASSWORD": "postgres"}, command)
    login = {"user": "postgres", "password": "postgres", "dbname": "postgres"}
    database = Postgres(port=server.host_port, **login, server=server)
    with _removing(server):
        database.start()
        yield database


@contextlib.contextmanager
def mariadb() -> Iterator[MariaDB]:
    """Run MariaDB."""
    environment = {"MYSQL_ROOT_PASSWORD": "root", "MYSQL_DATABASE": "test"}
    server = Container("mariadb", IMAGES["MARIADB"], 3306, environment)
    login = {"user": "root", "password": "root", "dbname": "test"}
    database = MariaDB(port=server.host_port, **login, server=server)
    with _removing(server):
        database.start()
        yield database


@contextlib.contextmanager
def localstack() -> Iterator[S3Server]:
    """Run LocalStack, with S3 only."""
    server = Container("localstack", IMAGES["LOCALSTACK"], 4566, {"SERVICES": "s3"})
    url = f"http://127.0.0.1:{server.host_port}"
    with _removing(server):
        server.start(lambda: _get(f"{url}/_localstack/health"), OSError)
        yield S3Server(name="localstack", endpoint_url=url)


@contextlib.contextmanager
def fake_gcs() -> Iterator[GcsServer]:
    """Run fake-gcs-server, everything in memory."""
    server = Container("fake-gcs-server", IMAGES["GCS"], 4443)
    url = f"http://127.0.0.1:{server.host_port}"
    options = ["-scheme", "http", "-backend", "memory", "-external-url", url, "-log-level", "warn"]
    server.with_command(options)
    gcs = GcsServer(name="fake_gcs", endpoint_url=url)
    with _removing(server):
        server.start(lambda: gcs.call("GET", "b", project="test"), OSError)
        yield gcs


@contextlib.contextmanager
def _removing(server: Container) -> Iterator[None]:
    try:
        yield
    finally:
        server.remove()


def _get(url: str) -> None:
    try:
        build_opener(ProxyHandler({})).open(url, timeout=5).close()
    except URLError:
        raise
    except Exception as error:  # half an answer, while it starts
        raise OSError(str(error)) from error
