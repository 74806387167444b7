"""Real S3 emulators as child processes on a free loopback port.

Each context manager starts one server, waits until it answers, and stops it on exit::

    with ministack() as server:
        server.client().create_bucket(Bucket="lake")

Every server is the leader of its own session and its whole group is killed on exit. On Linux it also
dies with the thread that started it (``PR_SET_PDEATHSIG``), so that a parent ended by SIGKILL leaves
none behind. Start servers from a thread that lives as long as the server: normally the main one.

Which server for what:

* :func:`ministack`: the main one. Keys, order and paging are right, non-ASCII included.
* :func:`moto`: a second opinion on listings. Not on uploads in progress.
* :func:`localstack`: the only one of the three that stamps a multipart object with the time its upload was
  initiated, as AWS does. Its paging loses keys that need percent-encoding, so use plain ASCII keys there.
* :func:`stub`: :mod:`devtools.s3_stub` in a process of its own, for very many keys. Errors, odd replies and
  a clock to turn are there too, in-process.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

START_TIMEOUT = 60.0
"""Seconds a server may take to answer. A first start builds caches: LocalStack's takes about 5 s."""

_STOP_TIMEOUT = 5.0
_LOG_TAIL_LINES = 40
_FIRST_PORT = 10000
"""Below it, well-known servers may be started meanwhile."""

# Run in the child in place of ``preexec_fn``, which is unsafe (and warns) in a process with threads: ask to
# be killed with the parent, make sure that the parent did not end meanwhile, then become the server.
_DIE_WITH_PARENT = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerStartError(RuntimeError):
    """The server ended, or did not answer in time; the message carries the tail of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running S3 server and how to reach it."""

    name: str
    endpoint_url: str
    region: str = "us-east-1"
    access_key: str = "test"
    secret_key: str = "test"

    def client(self) -> Any:
        """Return a new boto3 client for this server (path-style addressing, proxies bypassed)."""
        session = boto3.session.Session(
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
        )
        config = Config(s3={"addressing_style": "path"}, proxies={})
        return session.client("s3", endpoint_url=self.endpoint_url, config=config)

    def airflow_connection_json(self) -> str:
        """Return an Airflow AWS connection as JSON text: the value of ``AIRFLOW_CONN_<ID>``."""
        return json.dumps(
            {
                "conn_type": "aws",
                "login": self.access_key,
                "password": self.secret_key,
                "extra": {
                    "endpoint_url": self.endpoint_url,
                    "region_name": self.region,
                    "config_kwargs": {"s3": {"addressing_style": "path"}},
                },
            }
        )


@contextlib.contextmanager
def ministack(*, port: int | None = None, python: str | Path = sys.executable) -> Iterator[S3Server]:
    """Run ``ministack`` from PyPI, with S3 only and everything in memory.

    Differs from AWS: a multipart object is stamped when it is completed; ``LastModified`` has milliseconds in
    listings; ``MaxKeys`` is not capped; a made-up continuation token is accepted; ``ListMultipartUploads``
    ignores ``encoding-type``, and repeats the marker's key when only a key marker is given.

    :param port: the loopback port, or None for a free one.
    :param python: an interpreter with ``ministack`` installed.
    """
    port = port or free_port()
    environment = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "LOG_LEVEL": "WARNING",
        "S3_PERSIST": "0",
    }
    command = [str(python), "-m", "ministack"]
    with _serve("ministack", command, port, ready="/_ministack/health", environment=environment) as server:
        yield server


@contextlib.contextmanager
def moto(*, port: int | None = None, python: str | Path = sys.executable) -> Iterator[S3Server]:
    """Run ``moto_server`` from ``moto[server]``, everything in memory.

    Differs from AWS: a multipart object is stamped when it is completed; a newline in a key is a 404; a
    control character in ``StartAfter`` gets a reply that is no XML, and a bad continuation token a 500;
    ``MaxKeys`` is not capped. ``ListMultipartUploads`` is no use: every upload began in 2010, in no order,
    and there are no pages.

    :param port: the loopback port, or None for a free one.
    :param python: an interpreter with ``moto[server]`` installed.
    """
    port = port or free_port()
    command = [str(python), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _serve("moto", command, port, ready="/moto-api/") as server:
        yield server


@contextlib.contextmanager
def localstack(
    *, python: str | Path = ".venv-localstack/bin/python", port: int | None = None
) -> Iterator[S3Server]:
    """Run LocalStack without Docker, with S3 only and its state in a scratch folder.

    Differs from AWS: listings sort by key but page by percent-encoded key, so keys with anything besides
    ``[A-Za-z0-9_.~/-]`` are lost or repeated between pages, and such a ``StartAfter`` starts elsewhere; a bad
    continuation token is a 500; ``MaxKeys`` is not capped, and 0 counts as 1,000. Two at a time must use
    different bucket names: multipart uploads lie in one fixed folder of the machine.

    :param python: an interpreter with ``localstack-core[base-runtime]`` installed. Its pins do not mix with
        Airflow's, hence the separate environment.
    :param port: the loopback port, or None for a free one.
    """
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="localstack-") as state:
        environment = {
            "OVERRIDE_IN_DOCKER": "0",
            "FILESYSTEM_ROOT": state,
            "GATEWAY_SERVER": "hypercorn",
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "SERVICES": "s3",
            "EAGER_SERVICE_LOADING": "1",
            "DNS_ADDRESS": "0",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
        }
        command = [str(python), "-m", "localstack.runtime.main"]
        with _serve(
            "localstack", command, port, ready="/_localstack/health", environment=environment
        ) as server:
            yield server


@contextlib.contextmanager
def stub(
    *,
    objects: int = 0,
    prefix: str = "orders/",
    bucket: str = "lake",
    age: float = 86400,
    delay: float = 0,
    port: int | None = None,
) -> Iterator[S3Server]:
    """Run :mod:`devtools.s3_stub` as a process, so that a benchmark does not share an interpreter with it.

    :param objects: how many hive-style keys the bucket holds from the start.
    :param prefix: what those keys begin with.
    :param bucket: the name of its one bucket.
    :param age: how many seconds ago those objects were written.
    :param delay: seconds before each reply: the network and AWS take 50 to 200 ms for a page.
    :param port: the loopback port, or None for a free one.
    """
    port = port or free_port()
    options = {
        "port": port,
        "objects": objects,
        "prefix": prefix,
        "bucket": bucket,
        "age": age,
        "delay": delay,
    }
    command = [
        sys.executable,
        "-m",
        "devtools.s3_stub",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    ready = f"/{bucket}?list-type=2&max-keys=1"
    environment = {"PYTHONPATH": str(Path(__file__).absolute().parents[1])}
    with _serve("stub", command, port, ready=ready, environment=environment) as server:
        yield server


def free_port() -> int:
    """Return a loopback port that is free now, and that the kernel gives to no outgoing connection.

    So a server finds it free again after a restart. It is not reserved: another process may bind it
    meanwhile, which is unlikely, since it is one of thousands, at random. Where outgoing connections are
    given all ports, it is any that is free.
    """
    first, last = _outgoing_ports()
    ports = list(range(_FIRST_PORT, 65536))
    ports = [port for port in ports if not first <= port <= last] or ports
    chooser = random.SystemRandom()  # tests, and libraries of theirs, seed the other one
    while ports:
        port = ports.pop(chooser.randrange(len(ports)))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerStartError(f"of the loopback ports from {_FIRST_PORT} on none is free")


def _outgoing_ports() -> tuple[int, int]:
    """Return the first and the last of the ports that outgoing connections are given."""
    try:
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except FileNotFoundError:
        return 49152, 65535  # IANA's, which macOS keeps to
    return first, last


@contextlib.contextmanager
def _serve(
    name: str,
    command: Sequence[str],
    port: int,
    *,
    ready: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[S3Server]:
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as scratch:
        log = Path(scratch, "server.log")
        process = _spawn(command, log, environment or {})
        try:
            _wait_until_ready(name, process, port, ready, log)
            yield S3Server(name=name, endpoint_url=f"http://127.0.0.1:{port}")
        finally:
            _stop(process)


def _spawn(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # An emulator must not act on the AWS settings of whoever runs the tests.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    program = str(Path(command[0]).absolute())  # not resolved: a venv's python is a link, and must stay one
    wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), program]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*wrapper, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**inherited, "PYTHONUNBUFFERED": "1", "TMPDIR": str(log.parent), **environment},
            start_new_session=True,
        )


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if (status := process.poll()) is not None:
            raise ServerStartError(f"{name} ended with status {status} while starting:\n{_tail(log)}")
        if _answers(port, path):
            return
        time.sleep(0.05)
    raise ServerStartError(f"{name} did not answer within {START_TIMEOUT:.0f} s:\n{_tail(log)}")


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]) or "(its log is empty)"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server's whole group: asked first, killed after a few seconds, children included."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT)
