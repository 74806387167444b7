"""The GCS watcher keeps the contract: all of it against the stub, its heart against a real emulator too."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.testing import WatcherContract
from airflow.providers.watermark.testing.watching.delivering import DeliveringContract
from devtools.gcs_servers import fake_gcs
from devtools.gcs_stub import StubGCS
from tests.contract.watched_gcs import BUCKET, WatchedFakeGcs, WatchedStub


@pytest.fixture(scope="module")
def server():
    with fake_gcs() as server:
        server.create_bucket(BUCKET)
        yield server


class TestGCSPrefixTriggerOnTheStub(WatcherContract):
    @pytest.fixture
    def source(self):
        with StubGCS(BUCKET) as stub:
            source = WatchedStub(stub)
            yield source
            source.close()


class TestGCSPrefixTriggerOnFakeGcsServer(DeliveringContract):
    @pytest.fixture
    def source(self, server):
        source = WatchedFakeGcs(server)
        yield source
        source.close()
