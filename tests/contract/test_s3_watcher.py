"""The S3 watcher keeps the contract: all of it against the stub, its heart against a real emulator too."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.testing import WatcherContract
from airflow.providers.watermark.testing.watching.delivering import DeliveringContract
from devtools.s3_servers import ministack
from devtools.s3_stub import StubS3
from tests.contract.watched_s3 import BUCKET, WatchedMinistack, WatchedStub


@pytest.fixture(scope="module")
def server():
    with ministack() as server:
        client = server.client()
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield server


class TestS3PrefixTriggerOnTheStub(WatcherContract):
    @pytest.fixture
    def source(self):
        with StubS3(BUCKET) as stub:
            source = WatchedStub(stub)
            yield source
            source.close()


class TestS3PrefixTriggerOnMinistack(DeliveringContract):
    @pytest.fixture
    def source(self, server):
        source = WatchedMinistack(server)
        yield source
        source.close()
