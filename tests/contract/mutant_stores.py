"""A store without a fault, and stores that are broken, each in one way."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from airflow.providers.watermark.exceptions import StoreError
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey
from airflow.providers.watermark.testing.store import StoreBackend
from tests.contract.declaring import fails


class TextStore(BaseWatermarkStore):
    """Keeps texts in a dictionary that others can reach, and that can fail."""

    compare_and_set: ClassVar[bool] = True

    def __init__(self, texts: dict[Any, Any]) -> None:
        self.texts = texts

    def name(self, key: WatermarkKey) -> Any:
        return key

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        await asyncio.sleep(0)
        return self.read(key)

    def read(self, key: WatermarkKey) -> dict[str, Any] | None:
        self.check(key)
        text = self.texts.get(self.name(key))
        return None if text is None else self.decode(key, text)

    def check(self, key: WatermarkKey) -> None:
        if "broken" in self.texts:
            msg = f"the texts of {key} cannot be reached"
            raise StoreError(msg)

    def decode(self, key: WatermarkKey, text: str) -> dict[str, Any] | None:
        try:
            value = json.loads(text)
        except ValueError as error:
            msg = f"the text of {key} is no JSON"
            raise StoreError(msg) from error
        if not isinstance(value, dict):
            msg = f"the text of {key} is no JSON object"
            raise StoreError(msg)
        return value

    def encode(self, value: dict[str, Any]) -> Any:
        return json.dumps(value, allow_nan=False)

    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        text = self.encode(value)
        await asyncio.sleep(0)
        self.compare(key, self.read(key), expected)
        self.texts[self.name(key)] = text


@fails("another_revision_than_expected_is_a_conflict_and_stays")
class DoesNotCompare(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        await super().save(key, value, expected=(self.read(key) or {}).get("revision"))


@fails("of_concurrent_writers_one_wins_and_the_others_are_told")
class ComparesTooEarly(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        self.compare(key, self.read(key), expected)
        await asyncio.sleep(0)
        self.texts[self.name(key)] = self.encode(value)


@fails("what_cannot_be_read_is_an_error_and_never_missing", "what_is_damaged_is_an_error_and_never_missing")
class TakesAFailureForAbsence(TextStore):
    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        try:
            return await super().load(key)
        except StoreError:
            return None


@fails("what_is_damaged_is_an_error_and_never_missing")
class TakesDamageForAbsence(TextStore):
    def decode(self, key: WatermarkKey, text: str) -> dict[str, Any] | None:
        try:
            return super().decode(key, text)
        except StoreError:
            return None


@fails("a_watermark_that_has_vanished_is_written_anew")
class TakesAbsenceForAConflict(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        self.compare(key, self.read(key) or {"revision": None}, expected)
        await super().save(key, value, expected=expected)


@fails("nobody_else_holds_what_is_stored")
class StoresTheVeryObject(TextStore):
    def encode(self, value: dict[str, Any]) -> Any:
        super().encode(value)
        return value

    def decode(self, key: WatermarkKey, text: Any) -> dict[str, Any] | None:
        return text if isinstance(text, dict) else super().decode(key, text)


@fails("keys_that_look_alike_once_joined_are_kept_apart")
class JoinsItsKeys(TextStore):
    def name(self, key: WatermarkKey) -> Any:
        return ":".join(key)


@fails("odd_keys_are_kept_apart")
class CutsItsKeys(TextStore):
    def name(self, key: WatermarkKey) -> Any:
        return tuple(part[:250] for part in key)


@fails("what_is_no_strict_json_is_refused_and_changes_nothing")
class IsLaxAboutJson(TextStore):
    def encode(self, value: dict[str, Any]) -> Any:
        return json.dumps(value, default=str)


@fails(
    "an_interrupted_save_does_not_undo_a_later_one",
    "an_interrupted_save_has_happened_or_not",
    "of_concurrent_writers_one_wins_and_the_others_are_told",
)
class DeletesBeforeItWrites(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        text = self.encode(value)
        self.compare(key, self.read(key), expected)
        self.texts.pop(self.name(key), None)
        await asyncio.sleep(0)
        self.texts[self.name(key)] = text


@fails(
    "an_interrupted_save_does_not_undo_a_later_one",
    "of_concurrent_writers_one_wins_and_the_others_are_told",
)
class GoesOnWhenItIsInterrupted(TextStore):
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        async def write() -> None:
            text = self.encode(value)
            self.compare(key, self.read(key), expected)
            await asyncio.sleep(0.004 * (1 - value["revision"] % 2))
            self.texts[self.name(key)] = text

        await asyncio.shield(asyncio.create_task(write()))


class Texts(StoreBackend):
    def __init__(self, store_class: type[TextStore]) -> None:
        self.store_class = store_class
        self.texts: dict[Any, Any] = {}

    def make_store(self) -> TextStore:
        return self.store_class(self.texts)

    async def break_down(self) -> None:
        self.texts["broken"] = ""

    async def mend(self) -> None:
        del self.texts["broken"]

    async def plant(self, key: WatermarkKey, text: str) -> None:
        self.texts[self.make_store().name(key)] = text
