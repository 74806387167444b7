"""Stores: which one is configured, how Variables are named, and what is never guessed."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow.providers.watermark import settings
from airflow.providers.watermark.exceptions import ConfigurationError, StoreError, WatermarkConflictError
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey, configured_store
from airflow.providers.watermark.stores.memory import MemoryStore
from airflow.providers.watermark.stores.variable import VariableStore, variable_name
from airflow.providers.watermark.version_compat import hides_values_of
from airflow.sdk import Variable
from airflow.sdk.execution_time import task_runner

KEY = WatermarkKey("orders", "s3", "k")


# --- which store is configured ------------------------------------------------------------------------------


@pytest.fixture
def configured(monkeypatch):
    return lambda path: monkeypatch.setenv("AIRFLOW__WATERMARK__STORE", path)


def test_the_default_store_needs_no_set_up():
    assert settings.store_class_path() == settings.DEFAULT_STORE
    assert type(configured_store()) is VariableStore


def test_the_default_of_the_code_is_that_of_the_provider_info():
    from airflow.providers.watermark.provider_info import get_provider_info

    options = get_provider_info()["config"]["watermark"]["options"]
    assert options["store"]["default"] == settings.DEFAULT_STORE


class Durable(MemoryStore):
    durable = True


def test_another_store_is_named_by_its_class_path(configured):
    configured("tests.unit.test_stores.Durable")
    assert settings.store_class_path() == "tests.unit.test_stores.Durable"


def test_a_configured_store_is_built(configured, monkeypatch):
    import sys
    import types

    module = types.ModuleType("somebodys_stores")
    module.Durable = Durable
    monkeypatch.setitem(sys.modules, "somebodys_stores", module)
    configured("somebodys_stores.Durable")
    assert type(configured_store()) is Durable


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("airflow.providers.watermark.stores.memory.MemoryStore", "forgets watermarks"),
        ("no.such.module.Store", "cannot be imported"),
        ("airflow.providers.watermark.stores.memory.NoStore", "cannot be imported"),
        ("MemoryStore", "cannot be imported"),
        ("", "name the class path of a store"),
        ("not a path!", "cannot be imported"),
        (".relative.Store", "cannot be imported"),
        ("builtins.dict", "is no BaseWatermarkStore"),
        ("json.dumps", "is no BaseWatermarkStore"),
        ("airflow.providers.watermark.stores.memory", "is no BaseWatermarkStore"),
        (
            "airflow.providers.watermark.stores.base.BaseWatermarkStore",
            "cannot be built (Can't instantiate abstract",
        ),
    ],
)
def test_a_store_that_cannot_be_is_an_error_of_the_configuration(configured, path, message):
    configured(path)
    with pytest.raises(ConfigurationError) as caught:
        configured_store()
    assert str(caught.value).startswith(f"[watermark] store = {path!r} ")
    assert message in str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyError("x"), SyntaxError("x")], ids=repr)
def test_a_store_whose_module_fails_is_an_error_of_the_configuration(
    configured, tmp_path, monkeypatch, error
):
    (tmp_path / "failing_store.py").write_text(f"raise {error!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    configured("failing_store.Store")
    with pytest.raises(ConfigurationError, match=r"failing_store\.Store.*cannot be imported"):
        configured_store()


# --- comparing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(None, None), (None, {"revision": 3}), ({"revision": 3}, {"revision": 3})],
    ids=["nothing, as expected", "vanished", "the same"],
)
def test_what_may_be_overwritten(stored, expected):
    BaseWatermarkStore.compare(KEY, stored, expected)


@pytest.mark.parametrize(
    ("stored", "expected", "message"),
    [
        ({"revision": 3}, None, "revision 3 is stored, 'none' was expected"),
        ({"revision": 3}, {"revision": 2}, "revision 3 is stored, 2 was expected"),
        ({"revision": 2}, {"revision": 3}, "revision 2 is stored, 3 was expected"),
        ({}, {"revision": 3}, "revision None is stored, 3 was expected"),
        ({"revision": "3"}, {"revision": 3}, "revision '3' is stored, 3 was expected"),
        ({"revision": 3, "low": 1}, {"revision": 3, "low": 2}, "it was edited"),
    ],
    ids=["there is one", "newer", "older", "without a revision", "a text", "an edit"],
)
def test_what_another_writer_stored_is_a_conflict_that_says_how_it_differs(stored, expected, message):
    with pytest.raises(WatermarkConflictError, match=r"orders/s3/k") as caught:
        BaseWatermarkStore.compare(KEY, stored, expected)
    assert message in str(caught.value)


# --- the names of Variables ---------------------------------------------------------------------------------


def test_a_variable_is_named_after_its_watermark():
    assert variable_name(KEY) == "watermark:s3:orders:k"


def test_a_long_name_is_cut_and_ends_in_a_digest_of_the_whole():
    names = {variable_name(WatermarkKey("a" * 300, "s3", key)) for key in ("k1", "k2")}
    assert len(names) == 2
    for name in names:
        assert len(name) == 250
        assert name.startswith("watermark:s3:aaaa")
        assert re.fullmatch(r".*a:[\w-]{11}", name)


@pytest.mark.parametrize(("length", "cut"), [(236, False), (237, True)])
def test_a_name_of_250_characters_fits(length, cut):
    name = variable_name(WatermarkKey("a" * length, "s3", ""))
    assert len(name) == 250
    assert name.endswith("a:") is not cut


@pytest.mark.parametrize("asset", ["api_token_log", "my_password", "secrets", "PRIVATE_KEY_events"])
def test_a_name_that_looks_like_a_secrets_is_a_digest(asset):
    """Each value of a sensitive Variable stays in the secrets masker for as long as the process lives."""
    name = variable_name(WatermarkKey(asset, "s3", "k"))
    assert re.fullmatch(r"watermark::[\w-]{11}", name)
    assert asset not in name
    assert not hides_values_of(name)


def test_an_ordinary_name_is_not_sensitive():
    assert not hides_values_of(variable_name(KEY))


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
long_names = st.builds(lambda text, times: text * times, names, st.sampled_from([1, 1, 20, 30]))
keys = st.builds(WatermarkKey, long_names, names, names)


@given(keys)
def test_every_watermark_has_a_name_that_airflow_can_store(key):
    name = variable_name(key)
    assert 0 < len(name) <= 250
    # The task SDK puts it into a URL's path as it is.
    assert re.fullmatch(r"[A-Za-z0-9 _.:@+=~-]+", name)
    assert variable_name(WatermarkKey(*key)) == name


@given(
    st.builds(WatermarkKey, *[st.text("a:b", max_size=4)] * 3),
    st.builds(WatermarkKey, *[st.text("a:b", max_size=4)] * 3),
)
def test_two_watermarks_have_two_names(one, two):
    assert (variable_name(one) == variable_name(two)) == (one == two)


# --- the variable store, over a stand-in for the task SDK's Variable ----------------------------------------


class Variables:
    """As the task SDK does: what cannot be read looks like what is missing."""

    def __init__(self):
        self.values: dict[str, str] = {}
        self.descriptions: dict[str, str] = {}
        self.get_fails = False
        self.error: Exception | None = None

    def get(self, key, default=None):
        if self.error:
            raise self.error
        return default if self.get_fails else self.values.get(key, default)

    def keys(self, prefix=None):
        if self.error:
            raise self.error
        return [key for key in self.values if key.startswith(prefix)]

    def set(self, key, value, description=None):
        if self.error:
            raise self.error
        self.values[key], self.descriptions[key] = value, description

    def delete(self, key):
        if self.error:
            raise self.error
        self.values.pop(key, None)


@pytest.fixture
def variables(monkeypatch):
    variables = Variables()
    for name in ("get", "keys", "set", "delete"):
        monkeypatch.setattr(Variable, name, getattr(variables, name), raising=False)  # keys: new in 3.3
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", object(), raising=False)
    return variables


async def test_a_watermark_is_kept_as_compact_json_with_a_description(variables):
    await VariableStore().save(KEY, {"revision": 1, "é": [1, None]}, expected=None)
    assert variables.values == {"watermark:s3:orders:k": '{"revision":1,"\\u00e9":[1,null]}'}
    assert variables.descriptions == {"watermark:s3:orders:k": "Watermark of the asset orders"}
    assert await VariableStore().load(KEY) == {"revision": 1, "é": [1, None]}


async def test_a_missing_watermark_is_missing(variables):
    assert await VariableStore().load(KEY) is None


async def test_a_watermark_whose_name_begins_like_another_is_not_taken_for_it(variables):
    variables.values["watermark:s3:orders:k2"] = "{}"
    assert await VariableStore().load(KEY) is None


async def test_a_watermark_that_cannot_be_read_is_an_error_and_not_missing(variables):
    await VariableStore().save(KEY, {"revision": 1}, expected=None)
    variables.get_fails = True
    with pytest.raises(StoreError, match="exists but cannot be read just now"):
        await VariableStore().load(KEY)
    with pytest.raises(StoreError):
        await VariableStore().save(KEY, {"revision": 2}, expected={"revision": 1})
    variables.get_fails = False
    assert await VariableStore().load(KEY) == {"revision": 1}


@pytest.mark.parametrize(
    "error", [RuntimeError("password=hunter2"), OSError("down"), TimeoutError()], ids=repr
)
async def test_a_store_that_is_down_is_an_error_without_its_text(variables, error):
    variables.error = error
    for work in (VariableStore().load(KEY), VariableStore().save(KEY, {"revision": 1}, expected=None)):
        with pytest.raises(StoreError, match=rf"cannot be reached \({type(error).__name__}\)") as caught:
            await work
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "not json", "{", "[1]", "1", "null", '"text"'], ids=repr)
async def test_what_is_no_json_object_is_an_error_that_says_what_to_do(variables, text):
    variables.values["watermark:s3:orders:k"] = text
    with pytest.raises(StoreError, match="repair it, or delete it to start anew"):
        await VariableStore().load(KEY)


async def test_another_writers_revision_is_a_conflict_and_nothing_is_written(variables):
    await VariableStore().save(KEY, {"revision": 5}, expected=None)
    for expected in (None, {"revision": 4}, {"revision": 6}):
        with pytest.raises(WatermarkConflictError):
            await VariableStore().save(KEY, {"revision": 9}, expected=expected)
    assert await VariableStore().load(KEY) == {"revision": 5}


@pytest.mark.parametrize(
    "key",
    [
        KEY,
        KEY._replace(asset_name="x" * 300),
        KEY._replace(asset_name="my_password"),
        KEY._replace(key="a:b"),
    ],
    ids=["plain", "long", "like a secret's", "ambiguous"],
)
async def test_a_watermark_is_listed_by_its_own_key_whatever_its_variable_is_called(variables, key):
    await VariableStore().save(key, {"revision": 1}, expected=None)
    variables.values["watermark:not_ours"] = "{}"
    variables.values["another:variable:of:somebody"] = "{}"
    assert await VariableStore().keys() == [key]
    assert await VariableStore().load(key) == {"revision": 1}


async def test_a_variable_that_was_stored_without_its_key_is_read_and_then_stored_with_it(variables):
    """As releases before this one did."""
    key = KEY._replace(asset_name="x" * 300)
    variables.values[variable_name(key)] = '{"revision":1}'
    assert await VariableStore().load(key) == {"revision": 1}
    await VariableStore().save(key, {"revision": 2}, expected={"revision": 1})
    assert json.loads(variables.values[variable_name(key)]) == {"watermark": list(key), "revision": 2}
    assert await VariableStore().keys() == [key]


async def test_a_save_reads_its_variable_once(variables, monkeypatch):
    await VariableStore().save(KEY, {"revision": 1}, expected=None)
    reads = []
    monkeypatch.setattr(Variable, "get", lambda name, default=None: reads.append(name) or variables.get(name))
    await VariableStore().save(KEY, {"revision": 2}, expected={"revision": 1})
    assert reads == ["watermark:s3:orders:k"]


# --- a watermark is found whatever the secrets masker hides today -------------------------------------------


@pytest.fixture
def masker(monkeypatch):
    """Hides what is asked for, as after an upgrade of Airflow or a change of its configuration."""

    def hide(*words):
        try:
            from airflow.sdk._shared.secrets_masker import _secrets_masker
        except ImportError:  # Airflow 3.0
            fields = "airflow.sdk.execution_time.secrets_masker.get_sensitive_variables_fields"
            monkeypatch.setattr(fields, lambda: frozenset(words))
        else:
            monkeypatch.setattr(_secrets_masker(), "sensitive_variables_fields", list(words))

    return hide


@pytest.fixture(params=["to be hidden", "to be seen"])
def change(request, masker):
    """Change what the masker thinks of ``orders``, to and fro."""
    words = {"before": [], "after": ["orders"]}
    if request.param == "to be seen":
        words = {"before": ["orders"], "after": []}
    masker(*words["before"])
    return lambda when: masker(*words[when])


@pytest.fixture
def asked(monkeypatch, variables):
    """Name the Variables that are read."""
    names = []
    monkeypatch.setattr(Variable, "get", lambda name, default=None: names.append(name) or variables.get(name))
    return names


NAMED = pytest.mark.parametrize(
    "key",
    [
        KEY,
        KEY._replace(asset_name="orders/" + "x" * 300),
        KEY._replace(asset_name="s3://lake/orders"),
        KEY._replace(key="a:b"),
    ],
    ids=["plain", "long", "unsafe", "ambiguous"],
)


@NAMED
async def test_a_watermark_is_found_and_kept_when_the_masker_changes_its_mind(variables, change, key):
    await VariableStore().save(key, {"revision": 1}, expected=None)
    (name,) = variables.values
    change("after")
    assert variable_name(key) != name
    store = VariableStore()
    assert await store.keys() == [key]
    assert await store.load(key) == {"revision": 1}
    await store.save(key, {"revision": 2}, expected={"revision": 1})
    await VariableStore().save(key, {"revision": 3}, expected={"revision": 2})  # one that has not loaded it
    assert variables.values.keys() == {name}
    assert await store.keys() == [key]
    change("before")
    for each in (store, VariableStore()):
        assert await each.load(key) == {"revision": 3}
    change("after")
    await VariableStore().delete(key, expected={"revision": 3})
    assert not variables.values
    assert await store.load(key) is None


async def test_another_writers_revision_is_a_conflict_under_the_other_name_too(variables, change):
    await VariableStore().save(KEY, {"revision": 5}, expected=None)
    change("after")
    for expected in (None, {"revision": 4}):
        with pytest.raises(WatermarkConflictError):
            await VariableStore().save(KEY, {"revision": 9}, expected=expected)
    with pytest.raises(WatermarkConflictError):
        await VariableStore().delete(KEY, expected={"revision": 4})
    assert await VariableStore().load(KEY) == {"revision": 5}


@pytest.mark.parametrize("unreadable", [0, 1], ids=["the name for a new one", "the other name"])
async def test_what_cannot_be_read_under_either_name_is_an_error(variables, monkeypatch, change, unreadable):
    names = [variable_name(KEY)]
    change("after")
    names.insert(0, variable_name(KEY))
    variables.values[names[unreadable]] = '{"revision":1}'
    monkeypatch.setattr(Variable, "get", lambda *_, default=None: default)
    store = VariableStore()
    for work in (
        store.load(KEY),
        store.save(KEY, {"revision": 2}, expected=None),
        store.delete(KEY, expected={"revision": 1}),
    ):
        with pytest.raises(StoreError, match=re.escape(f"{names[unreadable]!r} exists but cannot be read")):
            await work
    assert variables.values == {names[unreadable]: '{"revision":1}'}


async def test_an_unreadable_variable_is_not_passed_over_for_the_one_under_the_other_name(
    variables, monkeypatch, change
):
    old = variable_name(KEY)
    change("after")
    new = variable_name(KEY)
    variables.values.update({old: '{"revision":1}', new: '{"revision":2}'})
    monkeypatch.setattr(
        Variable, "get", lambda name, default=None: default if name == new else variables.get(name)
    )
    with pytest.raises(StoreError, match="exists but cannot be read"):
        await VariableStore().load(KEY)


async def test_of_two_variables_the_one_that_is_named_by_todays_rule_counts(variables, change):
    old = variable_name(KEY)
    change("after")
    new = variable_name(KEY)
    variables.values[old] = '{"revision":1}'
    store = VariableStore()
    assert await store.load(KEY) == {"revision": 1}
    variables.values[new] = '{"revision":7}'  # while a watcher is at work
    assert await store.load(KEY) == {"revision": 7}
    await store.save(KEY, {"revision": 8}, expected={"revision": 7})
    assert await VariableStore().load(KEY) == {"revision": 8}
    assert variables.values[old] == '{"revision":1}'
    assert await store.keys() == [KEY]


async def test_a_delete_that_leaves_the_other_variable_says_so(variables, change):
    """Else the watcher would go on from that one, and not start anew."""
    old = variable_name(KEY)
    change("after")
    new = variable_name(KEY)
    variables.values.update({old: '{"revision":1}', new: '{"revision":7}'})
    store = VariableStore()
    with pytest.raises(StoreError, match=re.escape(f"{old!r} holds one for the same watcher")):
        await store.delete(KEY, expected={"revision": 7})
    assert variables.values == {old: '{"revision":1}'}
    await store.delete(KEY, expected={"revision": 1})
    assert await store.load(KEY) is None


@pytest.mark.parametrize("gone", ["moved", "deleted"])
async def test_a_watermark_that_leaves_the_other_name_is_looked_for_again(variables, asked, change, gone):
    old = variable_name(KEY)
    await VariableStore().save(KEY, {"revision": 1}, expected=None)
    change("after")
    new = variable_name(KEY)
    store = VariableStore()
    await store.load(KEY)
    text = variables.values.pop(old)
    if gone == "moved":
        variables.values[new] = text
    await store.save(KEY, {"revision": 2}, expected={"revision": 1})
    assert variables.values.keys() == {new}
    asked.clear()
    await store.save(KEY, {"revision": 3}, expected={"revision": 2})
    assert asked == [new]
    assert await store.load(KEY) == {"revision": 3}


async def test_a_watermark_that_is_moved_while_it_is_looked_for_is_found(variables, monkeypatch, change):
    old = variable_name(KEY)
    change("after")
    new = variable_name(KEY)
    variables.values[old] = '{"revision":1}'

    def get(name, default=None):
        if name == old:
            variables.values[new] = variables.values.pop(old)
        return variables.get(name, default)

    monkeypatch.setattr(Variable, "get", get)
    assert await VariableStore().load(KEY) == {"revision": 1}


async def test_one_read_finds_a_watermark_under_the_name_for_new_ones_and_a_save_knows_the_other(
    variables, asked, change
):
    old = variable_name(KEY)
    store = VariableStore()
    await store.save(KEY, {"revision": 1}, expected=None)
    asked.clear()
    await store.load(KEY)
    assert asked == [old]
    change("after")
    new = variable_name(KEY)
    await store.load(KEY)
    assert asked == [old, new, old]
    asked.clear()
    await store.save(KEY, {"revision": 2}, expected={"revision": 1})
    assert asked == [old]


async def test_it_is_said_once_that_a_watermark_has_the_other_name(variables, change, caplog):
    caplog.set_level(logging.WARNING)
    old = variable_name(KEY)
    store = VariableStore()
    await store.save(KEY, {"revision": 1}, expected=None)
    await store.load(KEY)
    assert not caplog.messages
    change("after")
    for _ in range(2):
        await store.load(KEY)
    (message,) = caplog.messages
    assert "orders/s3/k" in message
    assert repr(old) in message
    assert repr(variable_name(KEY)) in message


def test_the_masker_is_asked_for_the_name_that_is_used(masker):
    masker("token")
    name = variable_name(KEY._replace(asset_name="x" * 300 + "token"))  # which is cut away
    assert name.startswith("watermark:s3:xxx")
    assert not hides_values_of(name)


async def test_a_store_that_cannot_list_says_so():
    class Mute(MemoryStore):
        keys = BaseWatermarkStore.keys

    with pytest.raises(StoreError, match="a Mute cannot list its watermarks; name the one that you mean"):
        await Mute().keys()


@pytest.mark.parametrize("store", [MemoryStore(), VariableStore()], ids=lambda store: type(store).__name__)
@pytest.mark.parametrize("value", [float("nan"), b"x", object()], ids=["NaN", "bytes", "an object"])
async def test_what_is_no_json_is_refused_before_anything_is_written(variables, store, value):
    with pytest.raises((TypeError, ValueError)):
        await store.save(KEY, {"revision": 1, "x": value}, expected=None)
    assert await store.load(KEY) is None


async def test_the_memory_store_hands_out_copies():
    store = MemoryStore()
    value = {"revision": 1, "list": [1]}
    await store.save(KEY, value, expected=None)
    value["list"].append(2)
    loaded = await store.load(KEY)
    loaded["list"].append(3)
    assert await store.load(KEY) == {"revision": 1, "list": [1]}


async def test_the_memory_store_compares_and_sets_in_one_step():
    store = MemoryStore()
    await store.save(KEY, {"revision": 0}, expected=None)
    saves = [store.save(KEY, {"revision": 1, "by": number}, expected={"revision": 0}) for number in range(10)]
    results = await asyncio.gather(*saves, return_exceptions=True)
    assert sum(result is None for result in results) == 1
    assert sum(isinstance(result, WatermarkConflictError) for result in results) == 9


def test_stores_say_what_they_are():
    assert (MemoryStore.durable, MemoryStore.compare_and_set) == (False, True)
    assert (VariableStore.durable, VariableStore.compare_and_set) == (True, False)


def test_a_watermark_in_a_variable_is_text_that_people_can_read():
    assert json.loads(json.dumps(KEY)) == ["orders", "s3", "k"]
