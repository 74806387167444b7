"""Attach a watermark trigger to an asset."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.watermark.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
    from airflow.sdk import Asset

__all__ = ["watch"]


def watch(
    name: str,
    trigger: BaseWatermarkTrigger,
    *,
    uri: str | None = None,
    group: str | None = None,
    extra: Mapping[str, Any] | None = None,
    watcher_name: str | None = None,
) -> Asset:
    """
    Make an asset that gets an event whenever its source has something new.

    .. code-block:: python

        orders = watch("orders", S3PrefixTrigger(bucket_name="lake", prefix="orders/"))

    :param name: The asset's name; the trigger's ``asset_name`` is set to it.
    :param trigger: One of the watermark triggers; it is copied, so it may be used for several assets.
    :param uri: By default the name, as in Airflow (percent-encoded if it is not ASCII): only one asset per
        uri is active, and two watchers on one prefix must both live. What is watched stands in
        ``extra["source"]``.
    :param group: The asset's group.
    :param extra: More of the asset's ``extra``; ``"source"`` is set here.
    :param watcher_name: By default the name.
    :return: A plain asset with one plain watcher.
    :raises InvalidArgumentError: An argument is wrong; in a Dag file this is an import error.
    """
    from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger
    from airflow.sdk import Asset, AssetWatcher

    if not isinstance(trigger, BaseWatermarkTrigger):
        msg = f"watch({name!r}): trigger={trigger!r}: must be a watermark trigger, such as S3PrefixTrigger"
        raise InvalidArgumentError(msg)
    if trigger.asset_name not in ("", name):
        msg = f"watch({name!r}): asset_name={trigger.asset_name!r}: must be left out, or be the asset's name"
        raise InvalidArgumentError(msg)
    trigger = type(trigger)(**{**trigger.arguments(), "asset_name": name})
    trigger.serialize()  # finds mistakes here, where the traceback shows the line
    _check_json(name, extra)
    texts: dict[str, object] = {"uri": uri, "group": group, "watcher_name": watcher_name}
    for option, value in texts.items():
        if value == "" or not isinstance(value, str | None):
            msg = f"watch({name!r}): {option}={value!r}: must be a string, not an empty one, or left out"
            raise InvalidArgumentError(msg)
    if uri is None and not name.isascii():
        uri = quote(name, safe=" /:@")  # Airflow stores ASCII URIs only, and says so in the log alone
    if extra is not None and extra.get("source", trigger.source) != trigger.source:
        msg = f"watch({name!r}): extra['source']={extra['source']!r}: is set to the trigger's source"
        raise InvalidArgumentError(msg)
    given = {"uri": uri, "group": group}
    options: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    return Asset(
        name=name,
        watchers=[AssetWatcher(name=watcher_name or name, trigger=trigger)],
        extra={**(extra or {}), "source": trigger.source},
        **options,
    )


def _check_json(name: str, extra: object) -> None:
    """Refuse what Airflow cannot store: it would drop the whole Dag file, and say so in its log alone."""
    if extra is None:
        return
    if isinstance(extra, Mapping):
        with contextlib.suppress(TypeError, ValueError):
            json.dumps(dict(extra), allow_nan=False)
            return
    msg = f"watch({name!r}): extra={extra!r}: must be a mapping that JSON can hold"
    raise InvalidArgumentError(msg)
