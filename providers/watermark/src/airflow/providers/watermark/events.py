"""
Event payloads: how they are built, and how a consumer reads them.

An event carries strict JSON. One Dag run may get many events, in any order, some of them repeated after a
crash; consumers do not parse them by hand but call :func:`read_changes`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from airflow.providers.watermark.change import Change, digest
from airflow.providers.watermark.exceptions import EventError, StateError
from airflow.providers.watermark.position import (
    BEGINNING,
    Position,
    decode_position,
    encode_position,
    is_after,
    parse_timestamp,
)
from airflow.providers.watermark.values import decode_value

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from airflow.sdk.definitions.asset import AssetNameRef

__all__ = [
    "EVENT_VERSION",
    "Batch",
    "DeliveredChange",
    "ObjectChange",
    "ReadWindow",
    "RowChange",
    "read_changes",
    "read_window",
    "window_payload",
]

EVENT_VERSION: Final = 1

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class Batch:
    """
    Collects changes for one event, as many as its limits allow.

    :param watcher: The watcher's short name.
    :param source: What it watches, for people.
    :param low: The sweep's low watermark.
    :param high: The sweep's high watermark.
    :param epoch: The watermark's epoch.
    :param max_changes: The most changes that an event may carry, at least 1.
    :param max_bytes: The most bytes of JSON that an event may have; one change always fits.
    :ivar changes: What was added since the last event.
    """

    def __init__(
        self,
        *,
        watcher: str,
        source: str,
        low: Position,
        high: Position,
        epoch: int,
        max_changes: int,
        max_bytes: int,
    ) -> None:
        self._watermark: dict[str, Any] = {
            "version": EVENT_VERSION,
            "event_id": digest(),
            "epoch": epoch,
            "watcher": watcher,
            "source": source,
            "low": encode_position(low),
            "high": encode_position(high),
        }
        self._max_changes = max_changes
        self._max_bytes = max_bytes
        # The largest count takes as many digits as max_changes has.
        self._empty_bytes = _json_size({"watermark": self._watermark, "count": max_changes, "changes": []})
        self._clear()

    def _clear(self) -> None:
        self.changes: list[dict[str, Any]] = []
        self._bytes = self._empty_bytes

    def add(self, change: Change) -> bool:
        """
        Add a change.

        :return: Whether it was added: ``False`` if there is no room for it beside the others.
        :raises EventError: Its detail is not strict JSON, or has an ``id``; the message names the change.
        """
        if "id" in change.detail:
            msg = f"the detail of change {change.identity!r} has an 'id', which is the change's own"
            raise EventError(msg)
        entry = {"id": change.id, **change.detail}
        try:
            size = (_json_size(entry) if change.size is None else change.size) + len(", ")
        except (TypeError, ValueError) as error:
            msg = f"the detail of change {change.identity!r} is not strict JSON: {error}"
            raise EventError(msg) from error
        full = len(self.changes) >= self._max_changes or self._bytes + size > self._max_bytes
        if full and self.changes:
            return False
        self.changes.append(entry)
        self._bytes += size
        return True

    def close(self) -> dict[str, Any] | None:
        """Give the event's payload, or ``None`` without changes; and begin a new batch."""
        return self.close_empty() if self.changes else None

    def close_empty(self) -> dict[str, Any]:
        """Give the event's payload, be it without changes; and begin a new batch."""
        changes = self.changes
        self._clear()
        return {
            "watermark": {
                **self._watermark,
                "event_id": digest("batch", *_identify(self._watermark, changes)),
            },
            "count": len(changes),
            "changes": changes,
        }


def _identify(watermark: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name a batch by its changes; one without any by where it stands."""
    return [change["id"] for change in changes] or [watermark["source"], json.dumps(watermark["high"])]


def window_payload(
    *,
    watcher: str,
    source: str,
    low: Position,
    high: Position,
    epoch: int,
    count: int,
    column: str | None,
) -> dict[str, Any]:
    """
    Build the payload of a window.

    Its ``event_id`` is made from the source, the epoch and the bounds only: rows may leave a final window,
    but it is the very same one.
    """
    bounds = {"low": encode_position(low), "high": encode_position(high)}
    return {
        "watermark": {
            "version": EVENT_VERSION,
            "event_id": digest("window", source, str(epoch), json.dumps(bounds, sort_keys=True)),
            "epoch": epoch,
            "watcher": watcher,
            "source": source,
            **bounds,
        },
        "count": count,
        "cursor_column": column,
    }


def _json_size(value: object) -> int:
    """Count the bytes of strict JSON; what a database or another process would refuse raises here."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return len(text) if text.isascii() else len(json.dumps(value))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveredChange:
    """
    A change as a consumer gets it.

    Over several runs, tell repeats by (``epoch``, ``id``): a repeat after a crash has both the same, while
    a rewind delivers again on purpose, in a higher epoch.

    :param id: Names this version of this thing, whenever it is delivered.
    :param epoch: The watermark's epoch when it was delivered.
    :param event_id: The event that carried it.
    :param detail: What the watcher told of it, as JSON.
    """

    id: str
    epoch: int
    event_id: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, watermark: Mapping[str, Any], entry: Mapping[str, Any]) -> Self:
        """Read one entry of an event's ``changes``."""
        return cls(
            id=entry["id"],
            epoch=watermark["epoch"],
            event_id=watermark["event_id"],
            detail={name: value for name, value in entry.items() if name != "id"},
        )

    @property
    def order(self) -> tuple[Any, ...]:
        """What changes of one kind are sorted by, oldest first."""
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectChange(DeliveredChange):
    """
    A new or overwritten object in a bucket.

    :param bucket: The bucket's name.
    :param key: The object's key, exactly as the store has it.
    :param uri: ``s3://bucket/key`` or ``gs://bucket/key``, the key not quoted.
    :param size: Bytes.
    :param etag: S3's entity tag, without quotes: a change token, not always an MD5. Empty for GCS.
    :param generation: GCS's number of this version of the object. Empty for S3.
    :param last_modified: When the store says it was written; aware, in UTC. For a multipart upload to S3
        that is the moment when the upload was begun.
    """

    bucket: str
    key: str
    uri: str
    size: int
    etag: str = ""
    generation: str = ""
    last_modified: datetime

    @classmethod
    def from_wire(cls, watermark: Mapping[str, Any], entry: Mapping[str, Any]) -> Self:
        """Read one entry of an event's ``changes``."""
        scheme, _, rest = _typed(watermark, "source", str).partition("://")
        bucket = rest.partition("/")[0]
        key = _typed(entry, "key", str)
        version = "generation" if scheme == "gs" else "etag"
        return cls(
            id=entry["id"],
            epoch=watermark["epoch"],
            event_id=watermark["event_id"],
            detail={name: value for name, value in entry.items() if name != "id"},
            bucket=bucket,
            key=key,
            uri=f"{scheme}://{bucket}/{key}",
            size=_typed(entry, "size", int),
            **{version: _typed(entry, version, str)},
            last_modified=parse_timestamp(entry["last_modified"]),
        )

    @property
    def order(self) -> tuple[Any, ...]:
        """Objects are sorted by time, then by key."""
        return (self.last_modified, self.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChange(DeliveredChange):
    """
    A new or changed row.

    :param key: The primary key's columns.
    :param cursor: The value of the cursor column.
    :param row: The selected columns, typed as the driver gave them; ``None`` if only keys are delivered, or
        if the row alone was larger than an event may be.
    :param truncated: Whether the row was left out because it was too large: read it by its key.
    """

    key: Mapping[str, Any]
    cursor: Position
    row: Mapping[str, Any] | None
    truncated: bool

    @classmethod
    def from_wire(cls, watermark: Mapping[str, Any], entry: Mapping[str, Any]) -> Self:
        """Read one entry of an event's ``changes``."""
        row = entry.get("row")
        return cls(
            id=entry["id"],
            epoch=watermark["epoch"],
            event_id=watermark["event_id"],
            detail={name: value for name, value in entry.items() if name != "id"},
            key={name: decode_value(value) for name, value in entry["key"].items()},
            cursor=decode_position(entry["cursor"]),
            row=None if row is None else {name: decode_value(value) for name, value in row.items()},
            truncated=entry.get("truncated", False),
        )

    @property
    def order(self) -> tuple[Any, ...]:
        """Rows are sorted by the cursor."""
        return (self.cursor,)


_TYPES: Final[Mapping[str, type[DeliveredChange]]] = {
    "gcs": ObjectChange,
    "s3": ObjectChange,
    "sql": RowChange,
}


def read_changes(
    triggering_asset_events: Mapping[Any, Sequence[Any]] | None, asset: Asset | AssetNameRef
) -> list[Any]:
    """
    Read all changes that this Dag run was started with.

    Events of the asset that do not come from a watermark trigger (made by hand in the UI, say) carry no
    changes; they are passed over, with a line in the log.

    :param triggering_asset_events: The task's ``triggering_asset_events``, as it is; ``None`` or empty (a
        manual or a scheduled run) gives no changes.
    :param asset: The watched asset, as ``watch()`` returned it, or ``Asset.ref(name=...)``.
    :return: :class:`ObjectChange` objects for object stores, :class:`DeliveredChange` objects for other
        watchers; each change once, in its newest epoch; objects and rows oldest first.
    :raises EventError: An event is damaged, carries a window of rows rather than changes, or was written
        by a newer release.
    """
    changes: dict[tuple[str, str], DeliveredChange] = {}
    for payload in sorted(_payloads(triggering_asset_events, asset), key=_payload_order):
        watermark = payload["watermark"]
        if "changes" not in payload:
            msg = f"event {watermark.get('event_id')} of asset {asset.name!r} carries a window, not changes"
            raise EventError(msg)
        kind = _TYPES.get(watermark["watcher"], DeliveredChange)
        try:
            for entry in payload["changes"]:
                change = kind.from_wire(watermark, entry)
                # Later epochs replace earlier ones. Two sources may well hold equal things.
                changes[_typed(watermark, "source", str), _typed(entry, "id", str)] = change
        except (StateError, KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"event {watermark.get('event_id')} of asset {asset.name!r} is damaged: {error!r}"
            raise EventError(msg) from error
    try:
        return sorted(changes.values(), key=lambda change: (type(change).__name__, change.order))
    except TypeError as error:
        msg = f"the changes of asset {asset.name!r} have no common order: {error}"
        raise EventError(msg) from error


def _typed(entry: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    value = entry[name]
    if not isinstance(value, kind):
        msg = f"{name}={value!r}"
        raise TypeError(msg)
    return value


def _payload_order(payload: Mapping[str, Any]) -> tuple[int, str]:
    # Within an epoch the order of events does not matter to what is read; fixing it makes runs repeatable.
    watermark = payload["watermark"]
    return (watermark["epoch"], watermark["event_id"])


def _payloads(
    events: Mapping[Any, Iterable[Any]] | None, asset: Asset | AssetNameRef
) -> Iterator[Mapping[str, Any]]:
    """Find the payloads of our own events of an asset."""
    if not isinstance(getattr(asset, "name", None), str):
        msg = f"asset={asset!r}: must be the watched Asset, as watch() returned it, or Asset.ref(name=...)"
        raise EventError(msg)
    try:
        found = list(events[asset]) if events else []
    except KeyError:
        found = []
    except TypeError as error:
        msg = f"triggering_asset_events of asset {asset.name!r} is not what Airflow gives a task: {error}"
        raise EventError(msg) from error
    for event in found:
        extra = getattr(event, "extra", None)
        payload: Any = (
            extra.get("payload") if isinstance(extra, Mapping) and extra.get("from_trigger") else None
        )
        match payload:
            case {
                "watermark": {"version": int(version), "epoch": int(), "event_id": str(), "watcher": str()}
            }:
                if version > EVENT_VERSION:
                    msg = (
                        f"asset {asset.name!r} has an event of version {version}, this release reads up to "
                        f"{EVENT_VERSION}: upgrade airflow-provider-watermark on the workers"
                    )
                    raise EventError(msg)
                yield payload
            case {"watermark": _}:
                msg = f"an event of asset {asset.name!r} is damaged: {payload['watermark']!r}"
                raise EventError(msg)
            case _:
                log.info("An event of asset %r is not from a watermark trigger; passed over", asset.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadWindow:
    """
    All windows of a Dag run as one: the rows with ``low < cursor <= high`` are complete and final.

    :param low: The lower bound, exclusive; ``BEGINNING`` if there is none.
    :param high: The upper bound, inclusive.
    :param count: How many rows it had when it was delivered.
    :param epoch: The watermark's epoch: raised by a rewind, which delivers again on purpose.
    :param column: The cursor column, quoted for its database.
    """

    low: Position
    high: Position
    count: int
    epoch: int
    column: str | None

    @property
    def parameters(self) -> dict[str, Position]:
        """The bounds to bind, by name: ``low`` (not if it is the beginning) and ``high``."""
        bounds = {"high": self.high}
        return bounds if self.low is BEGINNING else {"low": self.low, **bounds}

    def where(self, paramstyle: str = "pyformat") -> str:
        """
        Give the window as a predicate, to be sent with :attr:`parameters`.

        :param paramstyle: ``"pyformat"`` (``%(low)s``: psycopg, PyMySQL) or ``"named"`` (``:low``: SQLite,
            ``sqlalchemy.text``).
        :raises EventError: The style is another, or the event tells no column.
        """
        mark = {"pyformat": "%({})s", "named": ":{}"}.get(paramstyle)
        if mark is None or self.column is None:
            msg = f"no predicate for column {self.column!r} in paramstyle {paramstyle!r}"
            raise EventError(msg)
        column = self.column.replace("%", "%%") if paramstyle == "pyformat" else self.column
        upper = f"{column} <= {mark.format('high')}"
        return upper if self.low is BEGINNING else f"{column} > {mark.format('low')} AND {upper}"


def read_window(
    triggering_asset_events: Mapping[Any, Sequence[Any]] | None, asset: Asset | AssetNameRef
) -> ReadWindow | None:
    """
    Read the window of rows that this Dag run was started for.

    Adjacent windows are merged, repeats and overlaps are clipped, and only the newest epoch counts.

    :param triggering_asset_events: The task's ``triggering_asset_events``, as it is.
    :param asset: The watched asset, as ``watch()`` returned it, or ``Asset.ref(name=...)``.
    :return: ``None`` without window events: the run was started by hand, say.
    :raises EventError: There is a gap between the windows, they are of different sources, or an event carries
        changes, is damaged, or was written by a newer release.
    """
    payloads = list(_payloads(triggering_asset_events, asset))
    windows = [_window(payload, asset) for payload in payloads]
    if not windows:
        return None
    if len(sources := {str(payload["watermark"].get("source")) for payload in payloads}) > 1:
        msg = f"asset {asset.name!r}: its windows are of more than one source: {', '.join(sorted(sources))}"
        raise EventError(msg)
    epoch = max(window.epoch for window in windows)
    newest = {(window.low, window.high): window for window in windows if window.epoch == epoch}
    merged: ReadWindow | None = None
    for window in sorted(newest.values(), key=cmp_to_key(_compare_windows)):
        if merged is None:
            merged = window
        elif is_after(window.low, merged.high):
            msg = (
                f"asset {asset.name!r}: there is a gap between the windows up to {merged.high!r} and from "
                f"{window.low!r}; another run may have it. Clear that run first"
            )
            raise EventError(msg)
        elif is_after(window.high, merged.high):
            merged = replace(merged, high=window.high, count=merged.count + window.count)
    return merged


def _window(payload: Mapping[str, Any], asset: Asset | AssetNameRef) -> ReadWindow:
    watermark = payload["watermark"]
    if "changes" in payload:
        msg = f"event {watermark['event_id']} of asset {asset.name!r} carries changes; use read_changes()"
        raise EventError(msg)
    try:
        return ReadWindow(
            low=decode_position(watermark["low"]),
            high=decode_position(watermark["high"]),
            count=_typed(payload, "count", int),
            epoch=watermark["epoch"],
            column=payload.get("cursor_column"),
        )
    except (KeyError, StateError, TypeError) as error:
        msg = f"event {watermark['event_id']} of asset {asset.name!r} is damaged: {error!r}"
        raise EventError(msg) from error


def _compare_windows(one: ReadWindow, other: ReadWindow) -> int:
    for first, second in ((one.low, other.low), (one.high, other.high)):
        if is_after(first, second):
            return 1
        if is_after(second, first):
            return -1
    return 0
