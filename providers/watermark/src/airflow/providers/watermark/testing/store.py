"""
What every watermark store must do.

.. code-block:: python

    class TestMyStore(StoreContract):
        @pytest.fixture
        def backend(self):
            with my_server() as server:
                yield MyBackend(server)

The tests are asynchronous and marked for pytest-asyncio, in its strict mode as well as in its auto mode.
``backend`` gives a :class:`StoreBackend`; in auto mode it may be an asynchronous fixture. A test is skipped
only for what the backend declares to lack, with the reason; a subclass cannot replace a test.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow.providers.watermark.exceptions import StoreError, WatermarkConflictError
from airflow.providers.watermark.testing.backend import COLLIDING, KEY, ODD_PARTS, StoreBackend
from airflow.providers.watermark.testing.contract import Contract

__all__ = ["StoreContract"]

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)
_VALUES = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), _JSON, max_size=5)


class StoreContract(Contract):
    """All of it."""

    _count: ClassVar[itertools.count[int]] = itertools.count()

    @pytest.fixture
    def backend(self) -> StoreBackend:
        """Give a new, empty backend; to be overridden."""
        msg = "override the fixture 'backend', and give a StoreBackend"
        raise NotImplementedError(msg)

    async def test_what_was_never_saved_is_missing(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        assert await store.load(KEY) is None
        assert await store.load(KEY) is None
        await store.save(KEY, {"revision": 1}, expected=None)
        assert await store.load(KEY._replace(key="another")) is None

    async def test_what_was_saved_last_is_loaded_by_every_process(self, backend: StoreBackend) -> None:
        store, last = backend.make_store(), None
        for revision in range(1, 4):
            value = {"revision": revision, "low": {"type": "integer", "value": str(revision)}}
            await store.save(KEY, value, expected=last)
            last = await store.load(KEY)
            assert last == value
            assert await backend.make_store().load(KEY) == value

    # Each example has a key of its own, and each class that inherits this its own backend.
    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
        max_examples=40,
        deadline=None,
    )
    @given(value=_VALUES)
    async def test_any_json_object_is_loaded_as_it_was(
        self, backend: StoreBackend, value: dict[str, Any]
    ) -> None:
        store, key = backend.make_store(), KEY._replace(key=f"any-{next(self._count)}")
        value["revision"] = 1
        await store.save(key, value, expected=None)
        assert await store.load(key) == value

    @pytest.mark.parametrize(
        "bad",
        [float("nan"), float("inf"), b"bytes", {1, 2}, object()],
        ids=["NaN", "infinity", "bytes", "set", "object"],
    )
    async def test_what_is_no_strict_json_is_refused_and_changes_nothing(
        self, backend: StoreBackend, bad: Any
    ) -> None:
        store = backend.make_store()
        await store.save(KEY, {"revision": 1}, expected=None)
        with pytest.raises((TypeError, ValueError)):
            await store.save(KEY, {"revision": 2, "bad": bad}, expected={"revision": 1})
        assert await store.load(KEY) == {"revision": 1}

    async def test_nobody_else_holds_what_is_stored(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        value = {"revision": 1, "seen": [["a", "b"]]}
        await store.save(KEY, value, expected=None)
        value["seen"].append(["c", "d"])  # type: ignore[attr-defined]
        loaded = await store.load(KEY)
        assert loaded == {"revision": 1, "seen": [["a", "b"]]}
        loaded["seen"][0].append("e")
        assert await store.load(KEY) == {"revision": 1, "seen": [["a", "b"]]}

    @pytest.mark.parametrize(
        "expected",
        [None, {"revision": 1}, {"revision": 3}, {"revision": 2}, {"revision": 2, "by": "an editor"}],
        ids=["none", "an older one", "a newer one", "less of it", "an edit that kept the revision"],
    )
    async def test_what_is_not_expected_is_a_conflict_and_stays(
        self, backend: StoreBackend, expected: dict[str, Any] | None
    ) -> None:
        store = backend.make_store()
        await store.save(KEY, {"revision": 2, "by": "another"}, expected=None)
        with pytest.raises(WatermarkConflictError, match=KEY.asset_name):
            await store.save(KEY, {"revision": 3, "by": "us"}, expected=expected)
        if expected is not None:
            with pytest.raises(WatermarkConflictError, match=KEY.asset_name):
                await store.delete(KEY, expected=expected)
        assert await store.load(KEY) == {"revision": 2, "by": "another"}

    async def test_a_watermark_that_has_vanished_is_written_anew(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        await store.save(KEY, {"revision": 8}, expected={"revision": 7})
        assert await store.load(KEY) == {"revision": 8}

    async def test_what_was_deleted_is_missing_and_can_be_saved_again(self, backend: StoreBackend) -> None:
        store, other = backend.make_store(), KEY._replace(key="another")
        for key in (KEY, other):
            await store.save(key, {"revision": 1}, expected=None)
        await store.delete(KEY, expected={"revision": 1})
        assert await store.load(KEY) is None
        assert await backend.make_store().load(KEY) is None
        assert await store.load(other) == {"revision": 1}
        await store.delete(KEY, expected={"revision": 1})
        await store.save(KEY, {"revision": 1, "anew": True}, expected=None)
        assert await store.load(KEY) == {"revision": 1, "anew": True}

    async def test_of_concurrent_writers_one_wins_and_the_others_are_told(
        self, backend: StoreBackend
    ) -> None:
        stores = [backend.make_store() for _ in range(8)]
        await stores[0].save(KEY, {"revision": 1}, expected=None)
        saves = [
            store.save(KEY, {"revision": 2, "by": number}, expected={"revision": 1})
            for number, store in enumerate(stores)
        ]
        results = await asyncio.gather(*saves, return_exceptions=True)
        winners = [number for number, result in enumerate(results) if result is None]
        others = [result for result in results if result is not None]
        assert all(isinstance(result, WatermarkConflictError) for result in others)
        assert winners
        if stores[0].compare_and_set:
            assert len(winners) == 1
        final = await stores[0].load(KEY)
        assert final in [{"revision": 2, "by": number} for number in winners]

    async def test_a_megabyte_is_no_problem(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        value = {"revision": 1, "seen": ["0123456789abcdef" * 64] * 1024}
        await store.save(KEY, value, expected=None)
        assert await store.load(KEY) == value

    async def test_odd_keys_are_kept_apart(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        keys = [KEY._replace(**{field: part}) for part in ODD_PARTS for field in KEY._fields]
        for number, key in enumerate(keys):
            await store.save(key, {"revision": 1, "number": number}, expected=None)
        loaded = [await store.load(key) for key in keys]
        assert loaded == [{"revision": 1, "number": number} for number in range(len(keys))]

    async def test_keys_that_look_alike_once_joined_are_kept_apart(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        for number, key in enumerate(COLLIDING):
            await store.save(key, {"revision": 1, "number": number}, expected=None)
        loaded = [await store.load(key) for key in COLLIDING]
        assert loaded == [{"revision": 1, "number": number} for number in range(len(COLLIDING))]

    async def test_what_cannot_be_read_is_an_error_and_never_missing(self, backend: StoreBackend) -> None:
        self._need(backend, "errors")
        store = backend.make_store()
        await store.save(KEY, {"revision": 1}, expected=None)
        await backend.break_down()
        for key in (KEY, KEY._replace(key="missing")):
            with pytest.raises(StoreError, match=KEY.asset_name):
                await store.load(key)
        await backend.mend()
        assert await store.load(KEY) == {"revision": 1}
        assert await store.load(KEY._replace(key="missing")) is None

    async def test_what_cannot_be_written_is_an_error(self, backend: StoreBackend) -> None:
        self._need(backend, "errors")
        store = backend.make_store()
        await store.save(KEY, {"revision": 1}, expected=None)
        await backend.break_down()
        for work in (
            store.save(KEY, {"revision": 2}, expected={"revision": 1}),
            store.delete(KEY, expected={"revision": 1}),
        ):
            with pytest.raises(StoreError, match=KEY.asset_name) as caught:
                await work
            assert not isinstance(caught.value, WatermarkConflictError)
        await backend.mend()
        assert await store.load(KEY) in ({"revision": 1}, {"revision": 2}, None)

    async def test_all_watermarks_are_listed(self, backend: StoreBackend) -> None:
        self._need(backend, "keys")
        store = backend.make_store()
        assert await store.keys() == []
        keys = {KEY, *COLLIDING, *(KEY._replace(**{field: p}) for p in ODD_PARTS for field in KEY._fields)}
        for key in keys:
            await store.save(key, {"revision": 1}, expected=None)
        found = await backend.make_store().keys()
        assert set(found) == keys
        assert len(found) == len(keys)
        await store.delete(KEY, expected={"revision": 1})
        assert set(await store.keys()) == keys - {KEY}

    async def test_a_damaged_watermark_is_listed(self, backend: StoreBackend) -> None:
        self._need(backend, "keys")
        self._need(backend, "raw")
        store = backend.make_store()
        await store.save(KEY, {"revision": 1}, expected=None)
        await backend.plant(KEY, "no JSON")
        assert await store.keys() == [KEY]

    async def test_watermarks_that_cannot_be_listed_are_an_error(self, backend: StoreBackend) -> None:
        self._need(backend, "keys")
        self._need(backend, "errors")
        store = backend.make_store()
        await store.save(KEY, {"revision": 1}, expected=None)
        await backend.break_down()
        with pytest.raises(StoreError):
            await store.keys()
        await backend.mend()
        assert await store.keys() == [KEY]

    @pytest.mark.parametrize("text", ["", "no JSON", '{"revision": 1', "[1]", "1", "null", '"text"'])
    async def test_what_is_damaged_is_an_error_and_never_missing(
        self, backend: StoreBackend, text: str
    ) -> None:
        self._need(backend, "raw")
        store = backend.make_store()
        await store.save(KEY, {"revision": 1}, expected=None)
        await backend.plant(KEY, text)
        with pytest.raises(StoreError, match=KEY.asset_name):
            await store.load(KEY)
        with pytest.raises(StoreError, match=KEY.asset_name):
            await store.save(KEY, {"revision": 2}, expected={"revision": 1})
        with pytest.raises(StoreError, match=KEY.asset_name):
            await store.delete(KEY, expected={"revision": 1})

    async def test_what_an_operator_has_edited_is_loaded(self, backend: StoreBackend) -> None:
        self._need(backend, "raw")
        store = backend.make_store()
        await store.save(KEY, {"revision": 1}, expected=None)
        value = {"revision": 7, "note": "edited"}
        await backend.plant(KEY, json.dumps(value, indent=2))
        assert await store.load(KEY) == value

    async def test_an_interrupted_save_has_happened_or_not(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        old: dict[str, Any] = {"revision": 1, "text": "old"}
        await store.save(KEY, old, expected=None)
        for turns in [*range(12), 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016]:
            new = {"revision": old["revision"] + 1, "text": "new" * 1000}
            save = asyncio.create_task(store.save(KEY, new, expected=old))
            await self._pass(turns)
            save.cancel()
            await asyncio.gather(save, return_exceptions=True)
            found = await store.load(KEY)
            assert found in (old, new)
            old = found

    async def test_an_interrupted_save_does_not_undo_a_later_one(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        value: dict[str, Any] = {"revision": 1}
        await store.save(KEY, value, expected=None)
        for turns in [*range(12), 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016]:
            revision = value["revision"]
            save = asyncio.create_task(store.save(KEY, {"revision": revision + 1}, expected=value))
            await self._pass(turns)
            save.cancel()
            await asyncio.gather(save, return_exceptions=True)
            found = await store.load(KEY)
            assert found is not None
            value = {"revision": revision + 2}
            await store.save(KEY, value, expected=found)
            await asyncio.sleep(0.005)
            assert await store.load(KEY) == value

    async def test_an_interrupted_load_changes_nothing(self, backend: StoreBackend) -> None:
        store = backend.make_store()
        await store.save(KEY, {"revision": 1}, expected=None)
        for turns in [*range(12), 0.001, 0.004]:
            load = asyncio.create_task(store.load(KEY))
            await self._pass(turns)
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            assert await store.load(KEY) == {"revision": 1}

    @staticmethod
    async def _pass(turns: float) -> None:
        """Let some turns of the loop pass, or a fraction of a second."""
        if turns % 1:
            await asyncio.sleep(turns)
        else:
            for _ in range(int(turns)):
                await asyncio.sleep(0)

    @staticmethod
    def _need(backend: StoreBackend, capability: str) -> None:
        if reason := backend.lacks.get(capability):
            pytest.skip(f"{type(backend).__name__} lacks {capability!r}: {reason}")
