"""Below Airflow 3.3: a real supervisor and a real metadata database, and what is said between them and us."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar

import pytest

from airflow.providers.watermark import version_compat
from airflow.providers.watermark.exceptions import StoreError
from airflow.providers.watermark.stores import WatermarkKey
from airflow.providers.watermark.stores.variable import VariableStore, variable_name
from airflow.providers.watermark.testing import StoreBackend, StoreContract
from tests.contract.supervisor import supervisor as supervisor_process

if version_compat.HAS_ACK_MODE:
    pytest.skip("for Airflow below 3.3; tests/contract has the others", allow_module_level=True)

KEY = WatermarkKey("orders", "s3", "k")


class MetadataDatabase(StoreBackend):
    lacks: ClassVar[Mapping[str, str]] = {"keys": "below Airflow 3.3 the task SDK cannot list Variables"}

    def __init__(self, supervisor) -> None:
        self.supervisor = supervisor

    def make_store(self):
        return VariableStore()

    async def break_down(self):
        self.supervisor.execute("ALTER TABLE variable RENAME TO elsewhere")

    async def mend(self):
        self.supervisor.execute("ALTER TABLE elsewhere RENAME TO variable")

    async def plant(self, key, text):
        # In the clear, as where no Fernet key is set.
        update = "UPDATE variable SET val = ?, is_encrypted = 0 WHERE key = ?"
        self.supervisor.execute(update, text, variable_name(key))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with supervisor_process(tmp_path_factory.mktemp("supervisor")) as started:
        yield started


@pytest.fixture
async def supervisor(running):
    running.execute("DELETE FROM variable")
    async with running.attached():
        yield running


class TestVariableStore(StoreContract):
    @pytest.fixture
    async def backend(self, supervisor):
        return MetadataDatabase(supervisor)


async def test_the_supervisor_answers(supervisor):
    await version_compat.round_trip()


async def test_without_a_supervisor_there_is_no_answer():
    with pytest.raises(ImportError):
        await version_compat.round_trip()


async def test_an_answer_needs_the_metadata_database(supervisor):
    supervisor.execute("ALTER TABLE dag_run RENAME TO elsewhere")
    try:
        with pytest.raises(Exception, match="API_SERVER_ERROR"):
            await version_compat.round_trip()
    finally:
        supervisor.execute("ALTER TABLE elsewhere RENAME TO dag_run")
    await version_compat.round_trip()


@pytest.mark.parametrize("after", [0, 0.001, 0.005, 0.02])
async def test_who_is_cancelled_between_question_and_answer_leaves_the_wire_in_order(supervisor, after):
    store = VariableStore()
    await store.save(KEY, {"revision": 1}, expected=None)
    for _ in range(5):
        asking = asyncio.create_task(store.load(KEY))
        await asyncio.sleep(after)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled() or asking.result() == {"revision": 1}
        async with asyncio.timeout(30):
            await version_compat.round_trip()
            assert await store.load(KEY) == {"revision": 1}
    await asyncio.wait_for(asyncio.gather(*version_compat._conversations), 30)


async def test_many_watchers_may_ask_at_once(supervisor):
    keys = [WatermarkKey(f"asset {number}", "s3", "k") for number in range(20)]
    await asyncio.gather(
        *(VariableStore().save(key, {"revision": 1, "of": key.asset_name}, expected=None) for key in keys)
    )
    found = await asyncio.gather(*(VariableStore().load(key) for key in keys))
    assert found == [{"revision": 1, "of": key.asset_name} for key in keys]


async def test_a_write_that_airflow_only_logs_is_an_error(supervisor):
    await VariableStore().save(KEY, {"revision": 1}, expected=None)
    supervisor.execute(
        "CREATE TRIGGER full BEFORE INSERT ON variable BEGIN SELECT RAISE(FAIL, 'disk full'); END"
    )
    supervisor.execute(
        "CREATE TRIGGER stuck BEFORE UPDATE ON variable BEGIN SELECT RAISE(FAIL, 'disk full'); END"
    )
    try:
        with pytest.raises(StoreError):
            await VariableStore().save(KEY, {"revision": 2}, expected={"revision": 1})
    finally:
        supervisor.execute("DROP TRIGGER full")
        supervisor.execute("DROP TRIGGER stuck")
    assert await VariableStore().load(KEY) == {"revision": 1}


@pytest.mark.parametrize(
    "asset_name", ["a/b", "/", "../..", "a b", "ü", "a?b#c%d", "a+b", "a@b=~", "..", "a:b"]
)
async def test_every_name_can_be_written_and_read(supervisor, asset_name):
    key = WatermarkKey(asset_name, "s3", "k")
    await VariableStore().save(key, {"revision": 1}, expected=None)
    assert await VariableStore().load(key) == {"revision": 1}
    assert supervisor.execute("SELECT key FROM variable") == [(variable_name(key),)]
