"""
Watermarks in Airflow's own asset state: native, for Airflow 3.3 and later, and not for every Dag.

Airflow deletes the state of an asset about a minute after the last Dag that refers to it is gone: its file
was removed, the asset was renamed, or a file does not import in a bundle that once lost a Dag
(``scheduler_job_runner.py``, ``models/asset.py``). Until then it reads the state of an asset that is not
active as missing. Hence this is not the default, and what a process has read or written is never missing to
it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final

from airflow.providers.watermark.change import digest
from airflow.providers.watermark.exceptions import ConfigurationError, StoreError
from airflow.providers.watermark.stores.base import (
    BaseWatermarkStore,
    WatermarkKey,
    finished,
    from_text,
    has_supervisor,
    key_in,
    to_text,
)
from airflow.providers.watermark.version_compat import call_supervised

__all__ = ["AssetStateStore"]

_PREFIX: Final = "watermark:"
_MAX_NAME: Final = 512
_MISSING: Final = object()
_TOO_OLD: Final = "the asset_state store needs Airflow 3.3 or later; choose another one in [watermark] store"
_log = logging.getLogger(__name__)

_known: dict[WatermarkKey, str] = {}
"""What this process has read or written last."""

_said: set[str] = set()


def state_name(key: WatermarkKey) -> str:
    """Name the state of a watermark among those of its asset: ``watermark:<namespace>:<key>``."""
    name = f"{_PREFIX}{key.namespace}:{key.key}"
    if len(name) > _MAX_NAME or ":" in key.namespace or "\0" in name:
        name_digest = digest(key.namespace, key.key)
        start = name.replace("\0", "_")[: _MAX_NAME - len(name_digest) - 1]
        return f"{start}:{name_digest}"
    return name


class AssetStateStore(BaseWatermarkStore):
    """
    Keeps each watermark in the state of its asset.

    In a trigger it works with the asset that ``asset_name`` names, of one or several that the trigger
    watches; in a task with the task's inlets and outlets. It has no compare-and-set: a save reads, compares
    and writes.

    A triggerer cannot tell whether Airflow has deleted a state or an operator has. So a watcher that comes
    back in the same triggerer goes on from what that knows, says so, and writes it anew, even after
    ``airflow watermarks delete``. To have it start anew use ``airflow watermarks reset``.
    """

    def __init__(self) -> None:
        self._trigger: Any = None

    def bind(self, trigger: Any) -> None:
        """Use the state that the triggerer has given to a trigger."""
        self._trigger = trigger
        if "warning" not in _said:
            _said.add("warning")
            _log.warning(
                "Watermarks are kept in asset state. Airflow deletes it about a minute after no Dag refers "
                "to the asset any more: when its file is removed, when the asset is renamed, or when a file "
                "does not import in a bundle that has lost a Dag before. The sql store and the variable "
                "store keep watermarks for good"
            )

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """Read a watermark; what this process knows is not taken for missing."""
        if (found := await self._find(key)) is not None:
            return found
        if (text := _known.get(key)) is not None:
            self._say(
                key,
                "has vanished from the asset's state: Airflow has deleted it, or the asset is not active. "
                "What this process knows of it is used, and written anew",
            )
            return from_text(key, text, "what this process knows")
        start = getattr(self._trigger, "start_from", None)
        self._say(
            key,
            "is not in the asset's state: it is new, or Airflow has deleted it"
            + ("" if start is None else f". The watcher starts anew, from start_from={start!r}"),
        )
        return None

    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        """Read, compare, write."""
        text = to_text(value, key)

        async def work() -> None:
            self.compare(key, await self._find(key), expected)
            await self._call(key, "set", state_name(key), text)
            _known[key] = text

        await finished(work())

    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        """Read, compare, delete."""

        async def work() -> None:
            if (found := await self._find(key)) is not None:
                self.compare(key, found, expected)
                await self._call(key, "delete", state_name(key))
            _known.pop(key, None)

        await finished(work())

    async def keys(self) -> list[WatermarkKey]:
        """Find all watermarks, those of assets that are not active too; on the command line only."""
        if has_supervisor():
            return await super().keys()
        found = await self._guard("the watermarks", call_supervised, _server_rows)
        return [key for row in found if (key := _key_of(*row)) is not None]

    async def _find(self, key: WatermarkKey) -> dict[str, Any] | None:
        found = await self._call(key, "get", state_name(key), _MISSING)
        if found is _MISSING:
            return None
        # As text, since the supervisor's wire has no big numbers; an operator may have written an object.
        text = found if isinstance(found, str) else json.dumps(found)
        value = from_text(key, text, f"the state {state_name(key)!r} of the asset {key.asset_name!r}")
        _known[key] = text
        return value

    async def _call(self, key: WatermarkKey, action: str, *args: Any) -> Any:
        what = f"the watermark {'/'.join(key)}"
        if not has_supervisor() and self._trigger is None:
            return await self._guard(what, call_supervised, _SERVER[action], key.asset_name, *args)
        accessor = self._accessor(key)
        if self._trigger is not None and (asynchronous := getattr(accessor, f"a{action}", None)):
            return await self._guard(what, asynchronous, *args)
        return await self._guard(what, call_supervised, getattr(accessor, action), *args)

    def _accessor(self, key: WatermarkKey) -> Any:
        from airflow.sdk.definitions.asset import AssetNameRef

        try:
            return self._accessors()[AssetNameRef(name=key.asset_name)]
        except KeyError:
            msg = (
                f"the state of the asset {key.asset_name!r} is out of reach: a trigger's asset_name must be "
                "that of the asset that it watches for, and a task must have the asset as an inlet or outlet"
            )
            raise ConfigurationError(msg) from None

    def _accessors(self) -> Any:
        """Give the state of all assets within reach; where none is, Airflow gives nothing."""
        from airflow.sdk import get_current_context
        from airflow.sdk.execution_time import context

        if self._trigger is not None:
            accessors = getattr(self._trigger, "asset_state_store", _MISSING)
        else:
            none = {} if hasattr(context, "AssetStateStoreAccessors") else _MISSING
            try:
                accessors = get_current_context().get("asset_state_store", none)
            except RuntimeError as error:
                msg = "the asset_state store works in a task, or in a trigger by its asset_watermark"
                raise ConfigurationError(msg) from error
        if accessors is _MISSING:
            raise ConfigurationError(_TOO_OLD)
        return {} if accessors is None else accessors

    @staticmethod
    async def _guard(what: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return await function(*args)
        except StoreError:
            raise
        except ImportError as error:  # on the command line
            raise ConfigurationError(_TOO_OLD) from error
        except Exception as error:
            msg = (
                f"{what} cannot be reached in the asset's state ({type(error).__name__}); the asset may not "
                "be active, or the metadata database or the API server may be down. Nothing is lost: it is "
                "tried again"
            )
            raise StoreError(msg) from error

    def _say(self, key: WatermarkKey, text: str) -> None:
        line = f"The watermark {'/'.join(key)} {text}"
        if line not in _said:
            _said.add(line)
            _log.warning("%s", line)


def _key_of(asset_name: str, name: str, value: str) -> WatermarkKey | None:
    try:
        stored = json.loads(value)
    except ValueError:
        stored = None
    told = key_in(stored if isinstance(stored, str) else value)
    if told is not None and told.asset_name == asset_name and state_name(told) == name:
        return told
    namespace, _, key = name.removeprefix(_PREFIX).partition(":")
    plain = WatermarkKey(asset_name, namespace, key)
    return plain if state_name(plain) == name else None


def _server_scope(asset_name: str, session: Any) -> Any:
    """Find the asset: the active one of that name, or else the newest."""
    from sqlalchemy import select

    from airflow._shared.state import AssetScope
    from airflow.models.asset import AssetModel

    query = (
        select(AssetModel.id)
        .where(AssetModel.name == asset_name)
        .order_by(AssetModel.active.has().desc(), AssetModel.id.desc())
        .limit(1)
    )
    asset_id = session.scalar(query)
    return None if asset_id is None else AssetScope(asset_id=asset_id)


def _server_get(asset_name: str, name: str, default: Any) -> Any:
    from airflow.state import get_state_backend
    from airflow.utils.session import create_session

    with create_session() as session:
        scope = _server_scope(asset_name, session)
        text = None if scope is None else get_state_backend().get(scope, name, session=session)
    return default if text is None else _loaded(text)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _server_set(asset_name: str, name: str, value: str) -> None:
    from airflow.state import get_state_backend
    from airflow.utils.session import create_session

    with create_session() as session:
        if (scope := _server_scope(asset_name, session)) is None:
            msg = f"Airflow knows no asset {asset_name!r}, so no watermark can be stored with it"
            raise StoreError(msg)
        get_state_backend().set(scope, name, json.dumps(value), session=session)


def _server_delete(asset_name: str, name: str) -> None:
    from airflow.state import get_state_backend
    from airflow.utils.session import create_session

    with create_session() as session:
        if (scope := _server_scope(asset_name, session)) is not None:
            get_state_backend().delete(scope, name, session=session)


def _server_rows() -> list[tuple[str, str, str]]:
    from sqlalchemy import select

    from airflow.models.asset import AssetModel
    from airflow.models.asset_state_store import AssetStateStoreModel as State
    from airflow.utils.session import create_session

    query = (
        select(AssetModel.name, State.key, State.value)
        .join(AssetModel, AssetModel.id == State.asset_id)
        .where(State.key.startswith(_PREFIX, autoescape=True))
    )
    with create_session() as session:
        return [(row[0], row[1], row[2]) for row in session.execute(query)]


_SERVER: Final[dict[str, Callable[..., Any]]] = {
    "get": _server_get,
    "set": _server_set,
    "delete": _server_delete,
}
