"""A store without a fault, and stores that are broken, each in one way."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from airflow.providers.watermark.exceptions import StoreError, WatermarkConflictError
from airflow.providers.watermark.stores import BaseWatermarkStore, WatermarkKey
from airflow.providers.watermark.testing.backend import KEY, StoreBackend
from tests.contract.declaring import fails


class TextStore(BaseWatermarkStore):
    """Keeps texts in a dictionary that others can reach, and that can fail."""

    compare_and_set: ClassVar[bool] = True

    def __init__(self, texts: dict[Any, Any]) -> None:
        self.texts = texts
        self.named: dict[Any, WatermarkKey] = texts.setdefault("named", {})

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

    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        text = self.encode(value)
        await asyncio.sleep(0)
        self.compare(key, self.read(key), expected)
        self.write(key, text)

    def write(self, key: WatermarkKey, text: Any) -> None:
        self.texts[self.name(key)] = text
        self.named[self.name(key)] = key

    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        self.compare(key, self.read(key), expected)
        self.texts.pop(self.name(key), None)
        self.named.pop(self.name(key), None)

    async def keys(self) -> list[WatermarkKey]:
        await asyncio.sleep(0)
        self.check(KEY)
        return list(self.named.values())


@fails("what_is_not_expected_is_a_conflict_and_stays")
class DoesNotCompare(TextStore):
    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        await super().save(key, value, expected=self.read(key))


@fails("of_concurrent_writers_one_wins_and_the_others_are_told")
class ComparesTooEarly(TextStore):
    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        self.compare(key, self.read(key), expected)
        await asyncio.sleep(0)
        self.write(key, self.encode(value))


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
    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        if expected is not None and self.read(key) is None:
            raise WatermarkConflictError(key.asset_name)
        await super().save(key, value, expected=expected)


@fails("nobody_else_holds_what_is_stored")
class StoresTheVeryObject(TextStore):
    def encode(self, value: dict[str, Any]) -> Any:
        super().encode(value)
        return value

    def decode(self, key: WatermarkKey, text: Any) -> dict[str, Any] | None:
        return text if isinstance(text, dict) else super().decode(key, text)


@fails("keys_that_look_alike_once_joined_are_kept_apart", "all_watermarks_are_listed")
class JoinsItsKeys(TextStore):
    def name(self, key: WatermarkKey) -> Any:
        return ":".join(key)


@fails("odd_keys_are_kept_apart", "all_watermarks_are_listed")
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
    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        text = self.encode(value)
        self.compare(key, self.read(key), expected)
        self.texts.pop(self.name(key), None)
        await asyncio.sleep(0)
        self.write(key, text)


@fails(
    "an_interrupted_save_does_not_undo_a_later_one",
    "of_concurrent_writers_one_wins_and_the_others_are_told",
)
class GoesOnWhenItIsInterrupted(TextStore):
    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        async def write() -> None:
            text = self.encode(value)
            self.compare(key, self.read(key), expected)
            await asyncio.sleep(0.004 * (1 - value["revision"] % 2))
            self.write(key, text)

        await asyncio.shield(asyncio.create_task(write()))


@fails("what_is_not_expected_is_a_conflict_and_stays")
class ComparesRevisionsOnly(TextStore):
    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        stored = self.read(key)
        same = stored is not None and stored["revision"] == (expected or {}).get("revision")
        await super().save(key, value, expected=stored if same else expected)


@fails("what_is_not_expected_is_a_conflict_and_stays")
class DeletesWhateverIsThere(TextStore):
    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        await super().delete(key, expected=self.read(key) or expected)


@fails("what_was_deleted_is_missing_and_can_be_saved_again")
class DeletesTheWholeAsset(TextStore):
    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        await super().delete(key, expected=expected)
        for other in [name for name, named in self.named.items() if named.asset_name == key.asset_name]:
            self.texts.pop(other, None)


@fails("what_was_deleted_is_missing_and_can_be_saved_again")
class TakesADeletedOneForAConflict(TextStore):
    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        if self.read(key) is None:
            raise WatermarkConflictError(key.asset_name)
        await super().delete(key, expected=expected)


@fails("what_cannot_be_written_is_an_error")
class TakesAFailureToDeleteForSuccess(TextStore):
    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        if "broken" not in self.texts:
            await super().delete(key, expected=expected)


@fails("watermarks_that_cannot_be_listed_are_an_error")
class ListsNothingWhenItFails(TextStore):
    async def keys(self) -> list[WatermarkKey]:
        return [] if "broken" in self.texts else await super().keys()


@fails("a_damaged_watermark_is_listed")
class ListsOnlyWhatItCanRead(TextStore):
    async def keys(self) -> list[WatermarkKey]:
        return [key for key in await super().keys() if self.texts[self.name(key)].startswith("{")]


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
