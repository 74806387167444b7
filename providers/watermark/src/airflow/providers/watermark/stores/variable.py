"""
Watermarks as Airflow Variables: the default, with nothing to set up.

One Variable a watermark, in the metadata database. Airflow never collects it, and it can be seen and edited
in the UI and on the command line. The store works where the task SDK does: in the triggerer and in tasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async

from airflow.providers.watermark.change import digest
from airflow.providers.watermark.exceptions import StoreError
from airflow.providers.watermark.stores.base import BaseWatermarkStore, WatermarkKey

__all__ = ["VariableStore", "variable_name"]

_MAX_NAME = 250  # Variable keys are a VARCHAR(250)
_UNSAFE = re.compile(r"[^A-Za-z0-9 _.:/@+=~-]|(?<=/)\.")


def variable_name(key: WatermarkKey) -> str:
    """
    Name the Variable of a watermark: ``watermark:<namespace>:<asset_name>:<key>``.

    What Airflow 3.3 cannot carry in the path of its Execution API (all but ASCII is an error; ``%``, ``?``,
    ``#`` and ``/../`` name another Variable) becomes ``_``. A name that is changed by this, that is longer
    than 250 characters, or that could be read in two ways ends in a digest of the whole. So does the name of
    an asset that Airflow's secrets masker takes for a secret (``api_token_log``): each value that a sensitive
    Variable ever had stays in the masker's pattern, which would grow with each save.
    """
    from airflow.sdk._shared.secrets_masker import should_hide_value_for_key

    name = f"watermark:{key.namespace}:{key.asset_name}:{key.key}"
    if should_hide_value_for_key(name):
        return f"watermark::{digest(*key)}"
    plain = _UNSAFE.sub("_", name)
    if plain != name or len(name) > _MAX_NAME or ":" in key.namespace + key.key:
        name_digest = digest(*key)
        return f"{plain[: _MAX_NAME - len(name_digest) - 1]}:{name_digest}"
    return name


class VariableStore(BaseWatermarkStore):
    """
    Keeps each watermark in an Airflow Variable.

    It has no compare-and-set: a save reads, compares and writes. Two triggerers that overlap may therefore
    deliver a change twice; neither loses one, since every stored version of a watermark is true.
    """

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """Read a watermark; a Variable that cannot be read is an error, never a missing one."""
        name = variable_name(key)
        text = await self._call(name, _read, name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            msg = f"the Variable {name!r} does not hold JSON; repair it, or delete it to start anew"
            raise StoreError(msg) from error
        if not isinstance(value, dict):
            msg = f"the Variable {name!r} does not hold a JSON object; repair it, or delete it to start anew"
            raise StoreError(msg)
        return value

    async def save(self, key: WatermarkKey, value: dict[str, Any], *, expected: int | None) -> None:
        """Read, compare, write."""
        name = variable_name(key)
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        self.compare(key, await self.load(key), expected)
        await self._call(name, _write, name, text, f"Watermark of the asset {key.asset_name}")

    @staticmethod
    async def _call(name: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            # Not asyncio.to_thread: below Airflow 3.2 it desynchronises the supervisor's socket.
            return await sync_to_async(function)(*args)
        except StoreError:
            raise
        except Exception as error:
            msg = (
                f"the Variable {name!r} cannot be reached ({type(error).__name__}); the metadata database or "
                "the API server may be down. Nothing is lost: it is tried again"
            )
            raise StoreError(msg) from error


def _read(name: str) -> str | None:
    from airflow.sdk import Variable

    text: str | None = Variable.get(name, default=None)
    if text is None and name in Variable.keys(prefix=name):
        # Variable.get answers "not found" to every failure but a denial (task SDK, execution_api.py).
        msg = f"the Variable {name!r} exists but cannot be read just now. Nothing is lost: it is tried again"
        raise StoreError(msg)
    return text


def _write(name: str, text: str, description: str) -> None:
    from airflow.sdk import Variable

    Variable.set(name, text, description)
