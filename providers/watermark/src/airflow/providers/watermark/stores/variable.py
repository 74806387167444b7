"""
Watermarks as Airflow Variables: the default, with nothing to set up.

One Variable a watermark, in the metadata database. Airflow never collects it, and it can be seen and edited
in the UI and on the command line. In the triggerer and in tasks the store goes through the task SDK; where
there is none, on the command line, through the server-side model.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow.providers.watermark.change import digest
from airflow.providers.watermark.exceptions import StoreError
from airflow.providers.watermark.stores.base import (
    BaseWatermarkStore,
    WatermarkKey,
    from_text,
    has_supervisor,
    key_in,
    to_text,
)
from airflow.providers.watermark.version_compat import (
    call_supervised,
    find_variables,
    hides_values_of,
    is_variable_missing,
    write_variable,
)

__all__ = ["VariableStore", "variable_name"]

_log = logging.getLogger(__name__)

_PREFIX: Final = "watermark:"
_MAX_NAME: Final = 250  # Variable keys are a VARCHAR(250)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9 _.:@+=~-]")


def variable_name(key: WatermarkKey) -> str:
    """
    Name the Variable of a new watermark: ``watermark:<namespace>:<asset_name>:<key>``.

    What Airflow cannot carry in the path of its Execution API (all but ASCII is an error, and in 3.0 so is
    ``/``; ``%``, ``?``, ``#`` and ``/../`` name another Variable) becomes ``_``. A name that is changed by
    this, that is longer than 250 characters, or that could be read in two ways ends in a digest of the whole.
    A name that Airflow's secrets masker takes for a secret's (``api_token_log``) is that digest alone: each
    value that a sensitive Variable ever had stays in the masker's pattern, which would grow with each save.
    """
    return _names(key)[0]


def _names(key: WatermarkKey) -> tuple[str, str]:
    """
    Give both names that the Variable of a watermark may have, first the one for a new watermark.

    What the masker takes for a secret changes with Airflow's release and configuration. A watermark that was
    stored before such a change has the other name.
    """
    readable, hidden = _readable_name(key), f"{_PREFIX}:{digest(*key)}"
    return (hidden, readable) if hides_values_of(readable) else (readable, hidden)


def _readable_name(key: WatermarkKey) -> str:
    name = f"{_PREFIX}{key.namespace}:{key.asset_name}:{key.key}"
    plain = _UNSAFE.sub("_", name)
    if plain != name or len(name) > _MAX_NAME or ":" in key.namespace + key.key:
        name_digest = digest(*key)
        return f"{plain[: _MAX_NAME - len(name_digest) - 1]}:{name_digest}"
    return name


def _plain_key(name: str) -> WatermarkKey | None:
    """Read the name of a Variable that holds the three parts as they are."""
    namespace, _, rest = name.removeprefix(_PREFIX).partition(":")
    asset_name, colon, key = rest.rpartition(":")
    found = WatermarkKey(asset_name, namespace, key)
    return found if colon and _readable_name(found) == name else None


def _text(key: WatermarkKey, name: str, value: dict[str, Any]) -> str:
    """Write a watermark, with its key if the name of its Variable does not tell it."""
    return to_text(value, None if _plain_key(name) == key else key)


class VariableStore(BaseWatermarkStore):
    """
    Keeps each watermark in an Airflow Variable.

    It has no compare-and-set: a save reads, compares and writes. Two triggerers that overlap may therefore
    deliver a change twice; neither loses one, since every stored version of a watermark is true.
    """

    def __init__(self) -> None:
        self._elsewhere: dict[WatermarkKey, str] = {}  # those that are not under the name for new ones

    async def load(self, key: WatermarkKey) -> dict[str, Any] | None:
        """Read a watermark; a Variable that cannot be read is an error, never a missing one."""
        return (await self._find(key))[1]

    async def save(
        self, key: WatermarkKey, value: dict[str, Any], *, expected: dict[str, Any] | None
    ) -> None:
        """Read, compare, write; a watermark stays in the Variable that it is in."""
        name, stored = await self._find(key, *self._known(key))
        self.compare(key, stored, expected)
        text = _text(key, name, value)
        await self._call(name, _variables().write, name, text, f"Watermark of the asset {key.asset_name}")

    async def delete(self, key: WatermarkKey, *, expected: dict[str, Any]) -> None:
        """
        Read, compare, delete.

        :raises StoreError: It is deleted, but the other Variable that it may be in holds one, too.
        """
        name, stored = await self._find(key, *self._known(key))
        if stored is None:
            return
        self.compare(key, stored, expected)
        await self._call(name, _variables().delete, name)
        (other,) = {*_names(key)} - {name}
        if await self._call(other, _variables().read, other) is not None:
            msg = (
                f"the Variable {name!r}, with the watermark {'/'.join(key)}, is deleted, but the Variable "
                f"{other!r} holds one for the same watcher, which would go on there; delete that one, too"
            )
            raise StoreError(msg)

    async def keys(self) -> list[WatermarkKey]:
        """Find all watermarks."""
        texts: Mapping[str, str] = await self._call(f"{_PREFIX}*", _variables().find)
        found = {}
        for name, text in texts.items():
            told = key_in(text)
            key = told if told is not None and name in _names(told) else _plain_key(name)
            if key is not None:
                found[key] = True  # once, even if it has both Variables
        return list(found)

    def _known(self, key: WatermarkKey) -> tuple[str, ...]:
        return (self._elsewhere[key],) if key in self._elsewhere else ()

    async def _find(self, key: WatermarkKey, *known: str) -> tuple[str, dict[str, Any] | None]:
        """
        Find a watermark, and the name of its Variable; of two, the one that a new watermark has counts.

        :param known: The names to look under first.
        """
        new, other = _names(key)
        # Twice under the first: it may be moved there from the other while this looks.
        for name in (*known, new, other, new):
            text = await self._call(name, _variables().read, name)
            if text is not None:
                self._remember(key, name, new)
                return name, from_text(key, text, f"the Variable {name!r}")
        self._elsewhere.pop(key, None)
        return new, None

    def _remember(self, key: WatermarkKey, name: str, new: str) -> None:
        if name == new:
            self._elsewhere.pop(key, None)
        elif self._elsewhere.get(key) != name:
            self._elsewhere[key] = name
            _log.warning(
                "The watermark %s is in the Variable %r, and stays there. By what Airflow's secrets masker "
                "hides today, a new one would be in %r. Nothing is lost, but each load takes longer. To move "
                "it, pause the Dag, set a Variable of that name to the same text, then delete the old one",
                "/".join(key),
                name,
                new,
            )

    @staticmethod
    async def _call(name: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return await call_supervised(function, *args)
        except StoreError:
            raise
        except Exception as error:
            msg = (
                f"the Variable {name!r} cannot be reached ({type(error).__name__}); the metadata database or "
                "the API server may be down. Nothing is lost: it is tried again"
            )
            raise StoreError(msg) from error


class _SdkVariables:
    """Variables through the task SDK."""

    @staticmethod
    def read(name: str) -> str | None:
        from airflow.sdk import Variable

        text: str | None = Variable.get(name, default=None)
        if text is None and not is_variable_missing(name):
            raise StoreError(_unreadable(name))
        return text

    @staticmethod
    def write(name: str, text: str, description: str) -> None:
        write_variable(name, text, description)

    @staticmethod
    def delete(name: str) -> None:
        from airflow.sdk import Variable

        Variable.delete(name)

    @classmethod
    def find(cls) -> dict[str, str]:
        return {name: cls.read(name) or "" for name in find_variables(_PREFIX)}


class _ServerVariables:
    """Variables past the secrets backends, in the metadata database itself."""

    @staticmethod
    def read(name: str) -> str | None:
        from sqlalchemy import select

        from airflow.models.variable import Variable
        from airflow.utils.session import create_session

        with create_session() as session:
            variable = session.scalar(select(Variable).where(Variable.key == name))
            if variable is None:
                return None
            if (text := variable.val) is None:  # the model has told why in the log
                raise StoreError(_unreadable(name))
            return str(text)

    @staticmethod
    def write(name: str, text: str, description: str) -> None:
        from airflow.models.variable import Variable

        Variable.set(name, text, description)

    @staticmethod
    def delete(name: str) -> None:
        from airflow.models.variable import Variable

        Variable.delete(name)

    @staticmethod
    def find() -> dict[str, str]:
        from sqlalchemy import select

        from airflow.models.variable import Variable
        from airflow.utils.session import create_session

        with create_session() as session:
            found = session.scalars(select(Variable).where(Variable.key.startswith(_PREFIX, autoescape=True)))
            return {variable.key: variable.val or "" for variable in found}


def _unreadable(name: str) -> str:
    return (
        f"the Variable {name!r} exists but cannot be read just now: the metadata database does not answer, "
        "or [core] fernet_key was changed. Bring the old key back, behind the new one, or delete the "
        "Variable to start anew. Nothing is lost: it is tried again"
    )


def _variables() -> type[_SdkVariables | _ServerVariables]:
    """Choose as Airflow's own model does: whoever has a supervisor must go through it."""
    return _SdkVariables if has_supervisor() else _ServerVariables
