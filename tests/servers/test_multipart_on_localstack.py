"""Multipart uploads on LocalStack, which stamps them as AWS does: with the time they began."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow.providers.watermark.testing import Harness
from airflow.providers.watermark.triggers.s3 import S3PrefixTrigger
from devtools.s3_servers import S3Server, localstack

LATE_ARRIVAL = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with localstack() as server:
        server.client().create_bucket(Bucket="multipart")
        yield server


@pytest.fixture
def trigger(server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    monkeypatch.setenv("AIRFLOW_CONN_LOCALSTACK", server.airflow_connection_json())
    prefix = f"{request.node.name}/"
    return S3PrefixTrigger(
        asset_name="uploads",
        bucket_name="multipart",
        prefix=prefix,
        aws_conn_id="localstack",
        late_arrival=LATE_ARRIVAL,
    )


class Upload:
    """An upload in one part, which ends when the test says so."""

    def __init__(self, client: Any, key: str, body: bytes) -> None:
        self.client, self.key = client, key
        self.id = client.create_multipart_upload(Bucket="multipart", Key=key)["UploadId"]
        part = client.upload_part(Bucket="multipart", Key=key, UploadId=self.id, PartNumber=1, Body=body)
        self.part = {"PartNumber": 1, "ETag": part["ETag"]}

    def complete(self) -> None:
        self.client.complete_multipart_upload(
            Bucket="multipart", Key=self.key, UploadId=self.id, MultipartUpload={"Parts": [self.part]}
        )


async def wait_until_settled(watcher: Harness, condition: Callable[[list[str]], bool]) -> list[str]:
    """Sweep until what was delivered meets a condition; the server's clock is the real one."""
    keys: list[str] = []
    deadline = time.monotonic() + 30
    while not condition(keys) and time.monotonic() < deadline:
        await asyncio.sleep(0.3)
        for delivery in await watcher.deliver():
            keys += [change["key"] for change in delivery.payload["changes"]]
    return keys


async def pass_time(watcher: Harness, prefix: str, client: Any) -> None:
    """Have the low watermark move well past now: by other objects that come and settle."""
    before = (await watcher.stored()).low
    await asyncio.sleep(LATE_ARRIVAL + 2.5)
    client.put_object(Bucket="multipart", Key=f"{prefix}time passes", Body=str(time.time()).encode())
    await wait_until_settled(watcher, lambda keys: f"{prefix}time passes" in keys)
    assert (await watcher.stored()).low > before


async def test_an_upload_that_ends_long_after_the_low_watermark_passed_its_stamp_is_delivered_once(
    server, trigger
):
    client, key = server.client(), f"{trigger.prefix}slow upload.bin"
    async with Harness(trigger) as watcher:
        await watcher.deliver()
        upload = Upload(client, key, b"slow")
        await pass_time(watcher, trigger.prefix, client)
        upload.complete()
        stamp = client.list_objects_v2(Bucket="multipart", Prefix=key)["Contents"][0]["LastModified"]
        assert stamp <= (await watcher.stored()).low, "this server does not stamp uploads as AWS does"
        assert await wait_until_settled(watcher, lambda keys: key in keys) == [key]
        assert await watcher.deliver(sweeps=3) == []


async def test_an_upload_that_was_under_way_when_the_watcher_was_first_started_is_delivered(server, trigger):
    client, key = server.client(), f"{trigger.prefix}early.bin"
    client.put_object(Bucket="multipart", Key=key, Body=b"an older version, and no news")
    await asyncio.sleep(2.5)
    upload = Upload(client, key, b"begun before the watcher")
    await asyncio.sleep(2.5)
    async with Harness(trigger) as watcher:
        assert await watcher.deliver() == []
        await pass_time(watcher, trigger.prefix, client)
        upload.complete()
        assert await wait_until_settled(watcher, lambda keys: key in keys) == [key]


async def test_an_upload_that_ends_while_the_triggerer_is_down_is_delivered_after_its_restart(
    server, trigger
):
    client, key = server.client(), f"{trigger.prefix}meanwhile.bin"
    async with Harness(trigger) as watcher:
        await watcher.deliver()
        upload = Upload(client, key, b"meanwhile")
        await pass_time(watcher, trigger.prefix, client)
        await watcher.crash()
        upload.complete()
        keys = await wait_until_settled(watcher, lambda keys: key in keys)
        assert keys.count(key) == 1
