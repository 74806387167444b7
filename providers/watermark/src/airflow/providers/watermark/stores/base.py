"""What a watermark store is."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, final

from airflow.providers.watermark.exceptions import ConfigurationError, WatermarkConflictError
from airflow.providers.watermark.settings import store_class_path

__all__ = ["BaseWatermarkStore", "WatermarkKey", "configured_store"]


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

    compare_and_set: ClassVar[bool] = False
    """Whether :meth:`save` compares and writes in one indivisible step."""

    durable: ClassVar[bool] = True
    """Whether what is saved outlives this process."""

    @abstractmethod
    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """
        Read a watermark.

        :param key: Which.
        :return: The JSON object that was saved last, or ``None`` if it is *known* that there is none.
        :raises StoreError: It cannot be found out, or what is stored is no JSON object.
        """

    @abstractmethod
    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        """
        Write a watermark, durably once this returns.

        :param key: Which.
        :param value: A JSON object with an integer under ``revision``.
        :param expected: The ``revision`` that must be stored now, or ``None`` if none may be stored.
            Stores without :attr:`compare_and_set` read before they write, which leaves a small gap.
        :raises WatermarkConflictError: Something else is stored; nothing was written.
        :raises StoreError: It may or may not have been written.
        """

    @final
    @staticmethod
    def compare(key: WatermarkKey, stored: dict[str, Any] | None, expected: int | None) -> None:
        """
        Compare what is stored with what :meth:`save` was told to expect.

        A watermark that has vanished is no conflict: the writer knows more than the store does.

        :raises WatermarkConflictError: They differ.
        """
        if stored is not None and stored.get("revision") != expected:
            msg = (
                f"the watermark {'/'.join(key)} was changed by another writer: revision "
                f"{stored.get('revision')!r} is stored, {expected!r} was expected"
            )
            raise WatermarkConflictError(msg)


def configured_store() -> BaseWatermarkStore:
    """
    Build the store that ``[watermark] store`` names.

    :raises ConfigurationError: The class path leads nowhere, to something that is no store, or to one that
        is not durable.
    """
    path = store_class_path()
    try:
        store_class = pkgutil.resolve_name(path)
    except Exception as error:
        msg = f"[watermark] store = {path!r} cannot be imported ({error}); name the class path of a store"
        raise ConfigurationError(msg) from error
    if not (isinstance(store_class, type) and issubclass(store_class, BaseWatermarkStore)):
        msg = f"[watermark] store = {path!r} is no BaseWatermarkStore; name the class path of a store"
        raise ConfigurationError(msg)
    if not store_class.durable:
        msg = (
            f"[watermark] store = {path!r} forgets watermarks when the triggerer ends, and changes would be "
            "lost; name a durable store"
        )
        raise ConfigurationError(msg)
    try:
        return store_class()
    except Exception as error:
        msg = f"[watermark] store = {path!r} cannot be built ({error}); see to it that it needs no arguments"
        raise ConfigurationError(msg) from error
