"""
Errors, grouped by what the reader has to do next.

.. code-block:: text

    WatermarkError
    ├── ConfigurationError      fix the Dag, the connection or the permissions
    │   └── InvalidArgumentError    a trigger argument, found while the Dag is parsed
    ├── SourceError             wait: the source does not answer as it should; it is tried again
    │   └── ThrottledError          it asks for fewer requests, and gets fewer
    ├── StoreError              wait: the watermark store does not answer; it is tried again
    │   └── WatermarkConflictError  somebody else changed the watermark; it is loaded again
    ├── StateError              repair or reset the stored watermark
    │   └── PositionTypeError       two positions that have no common order
    └── EventError              an event payload that cannot be built or read

A message says what happened, where (asset, source, key) and what to do. No message carries a secret.
"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "EventError",
    "InvalidArgumentError",
    "PositionTypeError",
    "SourceError",
    "StateError",
    "StoreError",
    "ThrottledError",
    "WatermarkConflictError",
    "WatermarkError",
]


class WatermarkError(Exception):
    """Root of all errors of this package."""


class ConfigurationError(WatermarkError):
    """The Dag, the connection or the permissions must be fixed; the watcher goes on by itself afterwards."""


class InvalidArgumentError(ConfigurationError, ValueError):
    """A trigger argument is wrong; raised while the Dag is parsed, so it is an import error of the Dag."""


class SourceError(WatermarkError):
    """The source failed or answered nonsense; the watcher tries again and has lost nothing."""


class ThrottledError(SourceError):
    """The source is asked too much; the watcher asks less of it at a time."""


class StoreError(WatermarkError):
    """The watermark store failed; nothing is known about the watermark, and nothing is assumed."""


class WatermarkConflictError(StoreError):
    """Another writer changed the stored watermark since it was loaded."""


class StateError(WatermarkError):
    """The stored watermark cannot be used as it is; repair or reset it."""


class PositionTypeError(StateError, TypeError):
    """Two positions of different types were compared, or a value is no position at all."""


class EventError(WatermarkError):
    """An event payload is not strict JSON, or is not one of ours."""
