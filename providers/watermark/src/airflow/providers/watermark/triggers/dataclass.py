"""Triggers whose arguments are dataclass fields, and whose constructor never raises."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, dataclass_transform

from airflow.triggers.base import BaseEventTrigger

__all__ = ["DataclassTrigger"]


@dataclass_transform(kw_only_default=True, eq_default=False)
class DataclassTrigger(BaseEventTrigger):
    """
    Makes each subclass a keyword-only dataclass whose constructor accepts, and keeps, what it does not know.

    In the triggerer a ``TypeError`` would leave the watcher dead, and any other error would end the whole
    triggerer; a trigger stored by another release must therefore never raise. In a Dag file the unknown
    arguments are found by ``serialize()``. Decorating a subclass with ``dataclass`` once more does no harm:
    it leaves a constructor that is there alone.

    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
        generated: Any = cls.__init__
        known = set(inspect.signature(generated).parameters) - {"self"}

        @functools.wraps(generated)
        def __init__(self: DataclassTrigger, /, **kwargs: Any) -> None:  # noqa: N807
            BaseEventTrigger.__init__(self)
            self.__dict__["_unknown"] = {name: value for name, value in kwargs.items() if name not in known}
            generated(self, **{name: value for name, value in kwargs.items() if name in known})

        cls.__init__ = __init__  # type: ignore[assignment]

    @property
    def unknown_arguments(self) -> dict[str, Any]:
        """What was given that is no field."""
        unknown: dict[str, Any] = self.__dict__.get("_unknown", {})
        return unknown

    def arguments(self) -> dict[str, Any]:
        """Give the arguments that differ from their defaults, and those that are unknown here."""
        given = dict(self.unknown_arguments)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            default = (
                field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            )
            if value != default:
                given[field.name] = value
        return given

    def __repr__(self) -> str:
        """Show the arguments; none is a secret, those stay in Airflow connections."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        return f"{type(self).__name__}({given})"
