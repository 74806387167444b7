"""What a watermark store is."""

from __future__ import annotations

import asyncio
import json
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, final

from airflow.providers.watermark.exceptions import ConfigurationError, StoreError, WatermarkConflictError
from airflow.providers.watermark.settings import store_class_path

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

__all__ = [
    "BaseWatermarkStore",
    "WatermarkKey",
    "configured_store",
    "finished",
    "from_text",
    "has_supervisor",
    "key_in",
    "to_text",
]

_T = TypeVar("_T")

_KEY: Final = "watermark"


class WatermarkKey(NamedTuple):
    """
    Names one watermark.

    :param asset_name: The watched asset.
    :param namespace: By default the watcher's short name.
    :param key: By default a digest of what is watched.
    """

    asset_name: str
    namespace: str
    key: str


class BaseWatermarkStore(ABC):
    """
    Keeps watermarks: a JSON object by :class:`WatermarkKey`.

    A store never guesses. What it cannot find out is a
    :class:`~airflow.providers.watermark.exceptions.StoreError`, never a missing watermark: a watcher
    without a watermark starts anew. All methods may be cancelled at any ``await`` and then have either
    happened or not.
    """

    compare_and_set: bool = False
    """Whether :meth:`save` compares and writes in one indivisible step."""

    durable: ClassVar[bool] = True
    """Whether what is saved outlives this process."""

    def bind(self, trigger: BaseTrigger) -> None:  # noqa: B027 - most need nothing of it
        """
        Take what the store needs of the trigger whose watermark it keeps.

        :param trigger: It runs, or is about to.
        """

    @abstractmethod
    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """
        Read a watermark.

        :param key: Which.
        :return: The JSON object that was saved last, or ``None`` if it is *known* that there is none.
        :raises StoreError: It cannot be found out, or what is stored is no JSON object.
        """

    @abstractmethod
    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        """
        Write a watermark, durably once this returns.

        A watermark that has vanished is no conflict: it is written anew, since the writer knows more than
        the store does.

        :param key: Which.
        :param value: A JSON object with an integer under ``revision``, another one than in ``expected``.
        :param expected: What must be stored now, the whole of it as it was loaded or saved last, or
            ``None`` if nothing may be stored. Stores without :attr:`compare_and_set` read before they
            write, which leaves a small gap.
        :raises WatermarkConflictError: Something else is stored; nothing was written.
        :raises StoreError: It may or may not have been written.
        """

    @abstractmethod
    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        """
        Remove a watermark: a watcher that starts without one starts anew. What is gone already is no error.

        :param key: Which.
        :param expected: What must be stored now, as in :meth:`save`.
        :raises WatermarkConflictError: Something else is stored; it stays.
        :raises StoreError: It may or may not have been removed.
        """

    async def keys(self) -> list[WatermarkKey]:
        """
        Find all watermarks, those that are damaged too, in no particular order.

        :raises StoreError: They cannot be found out, or the store cannot list what it keeps.
        """
        msg = f"a {type(self).__name__} cannot list its watermarks; name the one that you mean"
        raise StoreError(msg)

    async def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release what the store holds in this event loop, before the loop ends; it may be used again."""

    @final
    @staticmethod
    def compare(key: WatermarkKey, stored: dict[str, Any] | None, expected: dict[str, Any] | None) -> None:
        """
        Compare what is stored with what :meth:`save` or :meth:`delete` was told to expect.

        :param stored: ``None`` if nothing is, which is no conflict.
        :raises WatermarkConflictError: They differ.
        """
        if stored is not None and stored != expected:
            was = "none" if expected is None else expected.get("revision")
            now = stored.get("revision")
            how = (
                "it was edited, and its revision left as it was"
                if now == was
                else f"revision {now!r} is stored, {was!r} was expected"
            )
            msg = f"the watermark {'/'.join(key)} was changed by another writer: {how}"
            raise WatermarkConflictError(msg)


def to_text(value: dict[str, Any], key: WatermarkKey | None = None) -> str:
    """
    Write a watermark as compact, strict JSON.

    :param value: The watermark.
    :param key: Its key, if that has to be found again in the text: where it is stored under a digest.
    :raises TypeError: It is no JSON.
    :raises ValueError: It is no strict JSON.
    """
    named = value if key is None else {_KEY: list(key), **value}
    return json.dumps(named, allow_nan=False, separators=(",", ":"))


def from_text(key: WatermarkKey, text: str | bytes, where: str) -> dict[str, Any]:
    """
    Read what :func:`to_text` wrote, or an operator.

    :param key: Of which watermark it is.
    :param text: The text.
    :param where: Where it is stored, for people: ``"the Variable 'x'"``.
    :raises StoreError: It is no JSON object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(_damaged(key, where, "JSON")) from error
    if not isinstance(value, dict):
        raise StoreError(_damaged(key, where, "a JSON object"))
    if value.get(_KEY) == list(key):
        del value[_KEY]
    return value


def key_in(text: str | bytes) -> WatermarkKey | None:
    """Find the key that :func:`to_text` put into a text; ``None`` if there is none."""
    try:
        parts = json.loads(text)[_KEY]
        return WatermarkKey(*parts) if all(isinstance(part, str) for part in parts) else None
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def has_supervisor() -> bool:
    """Tell whether this process reaches Airflow through a supervisor: in the triggerer and in tasks."""
    task_runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return getattr(task_runner, "SUPERVISOR_COMMS", None) is not None


async def finished(work: Coroutine[Any, Any, _T]) -> _T:
    """
    Run something to its end even if the caller is cancelled, and only then pass the cancellation on.

    So an interrupted save cannot happen later, behind the back of whoever goes on. The work must end by
    itself, and soon.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody else will ask for it
        raise


def _damaged(key: WatermarkKey, where: str, what: str) -> str:
    return (
        f"{where}, with the watermark {'/'.join(key)}, does not hold {what}; repair it, or delete it to "
        "start anew"
    )


def configured_store(path: str | None = None) -> BaseWatermarkStore:
    """
    Build a store.

    :param path: The class path; by default the one that ``[watermark] store`` names.
    :raises ConfigurationError: The class path leads nowhere, to something that is no store, or to one that
        is not durable.
    """
    where = "[watermark] store" if path is None else "store"
    path = store_class_path() if path is None else path
    try:
        store_class = pkgutil.resolve_name(path)
    except Exception as error:
        msg = f"{where} = {path!r} cannot be imported ({error}); name the class path of a store"
        raise ConfigurationError(msg) from error
    if not (isinstance(store_class, type) and issubclass(store_class, BaseWatermarkStore)):
        msg = f"{where} = {path!r} is no BaseWatermarkStore; name the class path of a store"
        raise ConfigurationError(msg)
    if not store_class.durable:
        msg = (
            f"{where} = {path!r} forgets watermarks when the triggerer ends, and changes would be "
            "lost; name a durable store"
        )
        raise ConfigurationError(msg)
    try:
        return store_class()
    except ConfigurationError:
        raise
    except Exception as error:
        msg = f"{where} = {path!r} cannot be built ({error}); see to it that it needs no arguments"
        raise ConfigurationError(msg) from error
