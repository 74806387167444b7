"""The list watcher that delivers windows keeps the contract."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.testing import WindowContract
from airflow.providers.watermark.testing.doubles import WatchedListWindows


class TestListWindowTrigger(WindowContract):
    @pytest.fixture
    def source(self):
        return WatchedListWindows()
