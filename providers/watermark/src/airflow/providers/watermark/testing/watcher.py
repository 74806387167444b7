"""
What every watcher must do.

.. code-block:: python

    class TestMyTrigger(WatcherContract):  # or WindowContract
        @pytest.fixture
        def source(self):
            with my_server() as server:
                yield WatchedServer(server)

The tests are asynchronous and marked for pytest-asyncio, in its strict mode as well as in its auto mode.
``source`` gives a :class:`~airflow.providers.watermark.testing.source.WatchedSource`: how to change the
source by its own means, and what it cannot do. A test is skipped only for what the source declares to lack,
with the reason; a subclass cannot replace a test.
"""

from __future__ import annotations

from airflow.providers.watermark.testing.watching.answering import AnsweringContract, BoundContract
from airflow.providers.watermark.testing.watching.configuring import ConfiguringContract, PayloadContract
from airflow.providers.watermark.testing.watching.delivering import (
    DeliveringContract,
    LateContract,
    LimitsContract,
)
from airflow.providers.watermark.testing.watching.failing import FailingContract
from airflow.providers.watermark.testing.watching.operating import OperatingContract
from airflow.providers.watermark.testing.watching.restarting import RestartingContract
from airflow.providers.watermark.testing.watching.telling import TellingContract
from airflow.providers.watermark.testing.watching.windowing import WindowSourceContract
from airflow.providers.watermark.testing.watching.windows import WindowsContract
from airflow.providers.watermark.testing.watching.windows_restarting import WindowsRestartingContract

__all__ = ["WatcherContract", "WindowContract"]


class WatcherContract(
    AnsweringContract,
    DeliveringContract,
    LimitsContract,
    LateContract,
    RestartingContract,
    FailingContract,
    OperatingContract,
    ConfiguringContract,
    PayloadContract,
    TellingContract,
):
    """All that a watcher of changes must do."""


class WindowContract(
    WindowsContract,
    WindowsRestartingContract,
    WindowSourceContract,
    BoundContract,
    FailingContract,
    OperatingContract,
    ConfiguringContract,
    TellingContract,
):
    """
    All that a watcher must do whose events carry the bounds of final windows.

    Its source implements :meth:`~airflow.providers.watermark.testing.source.WatchedSource.between` as well.
    """
