"""
The contracts of all mutants.

Not collected by itself: ``test_mutants.py`` runs it, and compares what fails with what each mutant declares.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow.providers.watermark.testing import StoreContract, WatcherContract, WindowContract
from airflow.providers.watermark.testing.doubles import ListTrigger, WatchedList
from tests.contract import mutant_watchers, mutant_windows
from tests.contract.declaring import FAILS
from tests.contract.mutant_stores import Texts, TextStore

__all__ = ["FAILS", "STORES", "WATCHERS", "WINDOWS"]


def _watcher_contract(trigger: type[ListTrigger], contract: type) -> type:
    @pytest.fixture
    def source(self: Any) -> WatchedList:
        watched = WatchedList()
        vars(watched)["trigger_class"] = trigger
        return watched

    return type(f"Test{trigger.__name__}", (contract,), {"source": source})


def _store_contract(store_class: type[TextStore]) -> type:
    @pytest.fixture
    def backend(self: Any) -> Texts:
        return Texts(store_class)

    return type(f"Test{store_class.__name__}", (StoreContract,), {"backend": backend})


WATCHERS = [
    mutant for mutant in ListTrigger.__subclasses__() if mutant.__module__ == mutant_watchers.__name__
]
WINDOWS = [
    mutant
    for mutant in vars(mutant_windows).values()
    if isinstance(mutant, type) and mutant.__module__ == mutant_windows.__name__ and mutant.__name__[0] != "_"
]
STORES = [TextStore, *TextStore.__subclasses__()]
for _watcher in WATCHERS:
    globals()[f"Test{_watcher.__name__}"] = _watcher_contract(_watcher, WatcherContract)
for _watcher in WINDOWS:
    globals()[f"Test{_watcher.__name__}"] = _watcher_contract(_watcher, WindowContract)
for _store in STORES:
    globals()[f"Test{_store.__name__}"] = _store_contract(_store)
