"""The engine of object stores keeps the contract: from end to end, and in parts, one key on a page."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.objects import landmarks
from airflow.providers.watermark.testing import WatcherContract
from airflow.providers.watermark.testing.objects import WatchedObjects


class TestLocalPrefixTriggerFromEndToEnd(WatcherContract):
    @pytest.fixture
    def source(self):
        return WatchedObjects(page_size=2, list_concurrency=1)


class TestLocalPrefixTriggerInParts(WatcherContract):
    @pytest.fixture
    def source(self, monkeypatch):
        # Each page is a part, so that a handful of objects is listed as a million would be.
        monkeypatch.setattr(landmarks, "FEWEST_PAGES", 1)
        return WatchedObjects(page_size=1, list_concurrency=8)


class TestLocalPrefixTriggerInOrder(WatcherContract):
    @pytest.fixture
    def source(self):
        # The contract's keys come in any order: the end of the prefix is long enough to have them all.
        return WatchedObjects(page_size=2, scan="ordered", lookback_keys=100)
