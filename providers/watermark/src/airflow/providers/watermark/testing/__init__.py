"""
Contract suites for watchers and stores, to inherit from; a harness; and doubles.

It needs the extra ``testing``: pytest, pytest-asyncio and Hypothesis.
"""

from __future__ import annotations

import pkgutil

import pytest

# Before the modules are imported: else their assertions fail without telling the values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from airflow.providers.watermark.testing.backend import StoreBackend  # noqa: E402
from airflow.providers.watermark.testing.delivered import Delivery  # noqa: E402
from airflow.providers.watermark.testing.harness import Harness  # noqa: E402
from airflow.providers.watermark.testing.source import WatchedSource  # noqa: E402
from airflow.providers.watermark.testing.store import StoreContract  # noqa: E402
from airflow.providers.watermark.testing.watcher import WatcherContract, WindowContract  # noqa: E402

__all__ = [
    "Delivery",
    "Harness",
    "StoreBackend",
    "StoreContract",
    "WatchedSource",
    "WatcherContract",
    "WindowContract",
]
