"""Google Cloud Storage emulators as sources under test."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from airflow.providers.watermark.testing import WatchedSource
from airflow.providers.watermark.triggers.gcs import GCSPrefixTrigger
from devtools.gcs_servers import GcsServer
from devtools.gcs_stub import StubGCS

BUCKET = "lake"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NO_LATE = "an upload appears with the time at which it was finished"


class WatchedBucket(WatchedSource):
    """
    What both have in common.

    :param server: The server; it holds the bucket.
    """

    count_limit: ClassVar[str] = "max_objects_per_event"
    trigger_class: ClassVar[type[GCSPrefixTrigger]] = GCSPrefixTrigger
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, server: GcsServer) -> None:
        number = next(self._numbers)
        self.prefix = f"in-{number}/"
        self.connection = f"gcs_{server.name}_{number}"
        self._environment = {
            f"AIRFLOW_CONN_{self.connection.upper()}": server.airflow_connection_json(),
            "STORAGE_EMULATOR_HOST": server.endpoint_url,
        }
        os.environ.update(self._environment)

    def close(self) -> None:
        for name in self._environment:
            del os.environ[name]

    def make_trigger(self, **arguments: Any) -> GCSPrefixTrigger:
        given = {"bucket_name": BUCKET, "prefix": self.prefix, "gcp_conn_id": self.connection, **arguments}
        return self.trigger_class(**given)

    def make_stranger(self, **arguments: Any) -> GCSPrefixTrigger:
        return self.make_trigger(**{"prefix": f"not-{self.prefix}", **arguments})

    def name_of(self, change: Mapping[str, Any]) -> str:
        return str(change["key"]).removeprefix(self.prefix)


class WatchedStub(WatchedBucket):
    """The stub, with its clock in our hands."""

    lacks: ClassVar[Mapping[str, str]] = {"late": NO_LATE}

    def __init__(self, stub: StubGCS) -> None:
        super().__init__(stub.server)
        self.stub = stub
        self.time = NOON
        stub.clock = lambda: self.time.timestamp()  # noqa: PLW0108 - the time of then, not of now

    async def put(self, *names: str, ago: float = 0.0, version: int = 1) -> None:
        for name in names:
            self.stub.put(self.prefix + name, b"x" * version, self.time - timedelta(seconds=ago))

    async def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def now(self) -> datetime:
        return self.time

    def between_accesses(self, action: Callable[[], Awaitable[None]]) -> None:
        loop, waiting = asyncio.get_running_loop(), 1

        async def act() -> None:
            await action()

        def on_request(_: Any) -> None:  # called in the server's thread, before each answer
            nonlocal waiting
            if waiting:
                waiting -= 1
                return
            self.stub.on_request = None
            asyncio.run_coroutine_threadsafe(act(), loop).result()

        self.stub.on_request = on_request

    async def break_down(self) -> None:
        self.stub.fail(404, "notFound")

    async def mend(self) -> None:
        self.stub.clear()


class WatchedFakeGcs(WatchedBucket):
    """A real emulator, whose clock is everybody's."""

    late_arrival: ClassVar[float] = 2.0
    lacks: ClassVar[Mapping[str, str]] = {
        "accesses": "nothing can be done between two requests",
        "errors": "it cannot be made to fail without losing what it holds",
        "late": NO_LATE,
        "stamps": "it stamps objects itself",
        "turns": "its clock is the machine's",
    }

    def __init__(self, server: GcsServer) -> None:
        super().__init__(server)
        self.server = server

    async def put(self, *names: str, ago: float = 0.0, version: int = 1) -> None:
        for name in names:
            self.server.put(BUCKET, self.prefix + name, b"x" * version)

    async def advance(self, seconds: float) -> None:
        # Its stamps have microseconds, and its Date header whole seconds: up to the next whole second.
        await asyncio.sleep(seconds - 1 + (1 - time.time() % 1) + 0.01)

    def now(self) -> datetime:
        return datetime.now(UTC)
