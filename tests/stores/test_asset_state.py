"""The ``asset_state`` store: what is missing, what it says, and where it works."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from airflow.providers.watermark.exceptions import ConfigurationError, StoreError
from airflow.providers.watermark.stores import WatermarkKey, asset_state
from airflow.providers.watermark.stores.asset_state import AssetStateStore, state_name
from airflow.sdk.definitions.asset import AssetNameRef

KEY = WatermarkKey("orders", "s3", "k")
VALUE = {"revision": 1, "low": 5}


class Accessor:
    """The state of one asset, as Airflow 3.3.0 gives it: without asynchronous methods."""

    def __init__(self):
        self.values = {}
        self.error = None

    def get(self, name, default=None):
        if self.error:
            raise self.error
        return self.values.get(name, default)

    def set(self, name, value):
        if self.error:
            raise self.error
        self.values[name] = value

    def delete(self, name):
        self.values.pop(name, None)


class AsyncAccessor(Accessor):
    """As Airflow 3.3.2 gives it."""

    def get(self, name, default=None):
        raise AssertionError("the event loop would wait")

    async def aget(self, name, default=None):
        return Accessor.get(self, name, default)

    async def aset(self, name, value):
        Accessor.set(self, name, value)

    async def adelete(self, name):
        Accessor.delete(self, name)


@pytest.fixture(autouse=True)
def new_process():
    asset_state._known.clear()
    asset_state._said.clear()


@pytest.fixture(params=[Accessor, AsyncAccessor], ids=["Airflow 3.3.0", "Airflow 3.3.2"])
def accessor(request):
    return request.param()


def bound(accessor, *others):
    """A store in a trigger that watches some assets."""
    accessors = {
        AssetNameRef(name="orders"): accessor,
        **{AssetNameRef(name=name): Accessor() for name in others},
    }
    store = AssetStateStore()
    store.bind(SimpleNamespace(asset_state_store=accessors, start_from="now"))
    return store


@pytest.mark.parametrize("others", [(), ("sales", "stock")], ids=["one asset", "three assets"])
async def test_the_state_of_the_assets_own_name_is_used(accessor, others):
    store = bound(accessor, *others)
    await store.save(KEY, VALUE, expected=None)
    assert list(accessor.values) == ["watermark:s3:k"]
    assert await bound(accessor).load(KEY) == VALUE
    await store.delete(KEY, expected=VALUE)
    assert accessor.values == {}


async def test_what_airflow_has_deleted_is_not_missing_to_a_process_that_knows_it(accessor, caplog):
    await bound(accessor).save(KEY, VALUE, expected=None)
    accessor.values.clear()
    again = bound(accessor)  # the watcher was made anew, in the same triggerer
    assert await again.load(KEY) == VALUE
    assert await again.load(KEY) == VALUE
    assert caplog.text.count("orders/s3/k has vanished from the asset's state") == 1
    await again.save(KEY, {"revision": 2}, expected=VALUE)
    asset_state._known.clear()
    assert await bound(accessor).load(KEY) == {"revision": 2}


async def test_what_was_deleted_through_the_store_is_missing(accessor):
    store = bound(accessor)
    await store.save(KEY, VALUE, expected=None)
    await store.delete(KEY, expected=VALUE)
    assert await store.load(KEY) is None


async def test_a_missing_watermark_is_told_once_with_what_the_watcher_will_do(accessor, caplog):
    store = bound(accessor)
    assert await store.load(KEY) is None
    assert await store.load(KEY) is None
    assert (
        caplog.text.count(
            "it is new, or Airflow has deleted it. The watcher starts anew, from start_from='now'"
        )
        == 1
    )


def test_what_airflow_deletes_and_when_is_told_once(caplog):
    caplog.set_level(logging.WARNING)
    bound(Accessor())
    bound(Accessor())
    assert caplog.text.count("Airflow deletes it about a minute after no Dag refers") == 1


async def test_a_failure_is_an_error_and_not_missing(accessor):
    store = bound(accessor)
    await store.save(KEY, VALUE, expected=None)
    accessor.error = RuntimeError("hunter2")
    for work in (store.load(KEY), store.save(KEY, {"revision": 2}, expected=VALUE)):
        with pytest.raises(StoreError, match=r"orders/s3/k cannot be reached.*RuntimeError") as caught:
            await work
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("damage", [None, 1, [1], "text", "[]", True], ids=repr)
async def test_what_is_no_object_is_an_error(accessor, damage):
    accessor.values["watermark:s3:k"] = damage
    with pytest.raises(StoreError, match="orders/s3/k, does not hold"):
        await bound(accessor).load(KEY)


async def test_an_object_that_an_operator_has_written_is_read(accessor):
    accessor.values["watermark:s3:k"] = VALUE
    assert await bound(accessor).load(KEY) == VALUE


async def test_an_asset_that_the_trigger_does_not_watch_is_named(accessor):
    with pytest.raises(ConfigurationError, match="the asset 'sales' is out of reach"):
        await bound(accessor).load(KEY._replace(asset_name="sales"))


async def test_where_there_is_no_asset_state_another_store_is_asked_for():
    store = AssetStateStore()
    store.bind(SimpleNamespace())
    with pytest.raises(ConfigurationError, match=r"needs Airflow 3\.3"):
        await store.load(KEY)


async def test_a_trigger_or_task_that_is_given_no_state_is_told_why_and_not_to_upgrade(monkeypatch):
    from airflow.sdk.execution_time import context, task_runner

    bound_to_none = AssetStateStore()
    bound_to_none.bind(SimpleNamespace(asset_state_store=None))
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", object(), raising=False)
    monkeypatch.setattr("airflow.sdk.get_current_context", dict)  # as in a task without inlets and outlets
    for store in (bound_to_none, AssetStateStore()):
        with pytest.raises(ConfigurationError, match=r"'orders' is out of reach: .* an inlet or outlet"):
            await store.load(KEY)
    monkeypatch.delattr(context, "AssetStateStoreAccessors")  # as below Airflow 3.3
    with pytest.raises(ConfigurationError, match=r"needs Airflow 3\.3"):
        await AssetStateStore().load(KEY)


async def test_a_triggerer_without_the_trigger_is_told_what_to_use(monkeypatch):
    from airflow.sdk.execution_time import task_runner

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", object(), raising=False)
    with pytest.raises(ConfigurationError, match="asset_watermark"):
        await AssetStateStore().load(KEY)
    with pytest.raises(StoreError, match="cannot list"):
        await AssetStateStore().keys()


async def test_in_a_task_the_state_of_an_inlet_is_used(monkeypatch, accessor):
    from airflow.sdk.execution_time import task_runner

    given = Accessor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", object(), raising=False)
    monkeypatch.setattr(
        "airflow.sdk.get_current_context", lambda: {"asset_state_store": {AssetNameRef(name="orders"): given}}
    )
    await AssetStateStore().save(KEY, VALUE, expected=None)
    assert await AssetStateStore().load(KEY) == VALUE


def test_long_and_odd_names_fit_and_differ():
    keys = [KEY._replace(namespace=part) for part in ("x" * 600, "x" * 601, "a:b", "a\0")]
    keys += [KEY._replace(key=part) for part in ("x" * 600, "x" * 601, "a:b", "b")]
    names = {state_name(key) for key in keys}
    assert len(names) == len(keys)
    assert all(len(name) <= 512 and "\0" not in name for name in names)


async def test_an_airflow_that_has_no_asset_state_is_told_on_the_command_line_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow.models.asset_state_store", None)  # as below Airflow 3.3
    monkeypatch.setitem(sys.modules, "airflow.state", None)
    for work in (AssetStateStore().keys(), AssetStateStore().load(KEY)):
        with pytest.raises(ConfigurationError, match=r"needs Airflow 3\.3 or later"):
            await work
