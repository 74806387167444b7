"""The list watcher keeps the contract."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.testing import WatcherContract
from airflow.providers.watermark.testing.doubles import WatchedList


class TestListTrigger(WatcherContract):
    @pytest.fixture
    def source(self):
        return WatchedList()
