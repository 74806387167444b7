"""S3 servers as sources under test."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from airflow.providers.watermark.testing import WatchedSource
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from devtools.s3_servers import S3Server
from devtools.s3_stub import StubS3

BUCKET = "lake"
SECRET_KEY = "wJalrXUtnFEMI-never-to-be-told"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class WatchedBucket(WatchedSource):
    """
    What both have in common.

    :param server: The server; it holds the bucket.
    """

    count_limit: ClassVar[str] = "max_objects_per_event"
    trigger_class: ClassVar[type[S3PrefixTrigger]] = S3PrefixTrigger
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, server: S3Server) -> None:
        number = next(self._numbers)
        self.prefix = f"in-{number}/"
        self.connection = f"s3_{server.name}_{number}"
        os.environ[f"AIRFLOW_CONN_{self.connection.upper()}"] = server.airflow_connection_json()

    def close(self) -> None:
        del os.environ[f"AIRFLOW_CONN_{self.connection.upper()}"]

    def make_trigger(self, **arguments: Any) -> S3PrefixTrigger:
        given = {"bucket_name": BUCKET, "prefix": self.prefix, "aws_conn_id": self.connection, **arguments}
        return self.trigger_class(**given)

    def make_stranger(self, **arguments: Any) -> S3PrefixTrigger:
        return self.make_trigger(**{"prefix": f"not-{self.prefix}", **arguments})

    def name_of(self, change: Mapping[str, Any]) -> str:
        return str(change["key"]).removeprefix(self.prefix)


class WatchedStub(WatchedBucket):
    """The stub, with its clock in our hands."""

    def __init__(self, stub: StubS3) -> None:
        super().__init__(dataclasses.replace(stub.server, secret_key=SECRET_KEY))
        self.stub = stub
        self.time = NOON
        stub.clock = lambda: self.time.timestamp()  # noqa: PLW0108 - the time of then, not of now

    @property
    def secrets(self) -> list[str]:
        return [SECRET_KEY]

    async def put(self, *names: str, ago: float = 0.0, version: int = 1) -> None:
        for name in names:
            body = b"x" * version
            self.stub.put(self.prefix + name, body, last_modified=self.time - timedelta(seconds=ago))

    async def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def now(self) -> datetime:
        return self.time

    async def begin(self, name: str) -> Callable[[], Awaitable[None]]:
        upload = self.stub.create_upload(self.prefix + name)

        async def finish() -> None:
            self.stub.complete_upload(upload, b"late")

        return finish

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
        self.stub.fail("NoSuchBucket")

    async def mend(self) -> None:
        self.stub.clear()


class WatchedMinistack(WatchedBucket):
    """A real emulator, whose clock is everybody's."""

    late_arrival: ClassVar[float] = 2.0
    lacks: ClassVar[Mapping[str, str]] = {
        "accesses": "nothing can be done between two requests",
        "errors": "it cannot be made to fail without losing what it holds",
        "late": "it stamps a multipart object when it is completed",
        "stamps": "it stamps objects itself",
        "turns": "its clock is the machine's",
    }

    def __init__(self, server: S3Server) -> None:
        super().__init__(server)
        self.client = server.client()

    def close(self) -> None:
        self.client.close()
        super().close()

    async def put(self, *names: str, ago: float = 0.0, version: int = 1) -> None:
        for name in names:
            self.client.put_object(Bucket=BUCKET, Key=self.prefix + name, Body=b"x" * version)

    async def advance(self, seconds: float) -> None:
        # Its stamps have milliseconds, and its Date header whole seconds: up to the next whole second.
        await asyncio.sleep(seconds - 1 + (1 - time.time() % 1) + 0.01)

    def now(self) -> datetime:
        return datetime.now(UTC)
