"""
What every watcher must do.

.. code-block:: python

    class TestMyTrigger(WatcherContract):
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

from airflow.providers.watermark.testing.watching.answering import AnsweringContract
from airflow.providers.watermark.testing.watching.configuring import ConfiguringContract
from airflow.providers.watermark.testing.watching.delivering import (
    DeliveringContract,
    LateContract,
    LimitsContract,
)
from airflow.providers.watermark.testing.watching.failing import FailingContract
from airflow.providers.watermark.testing.watching.operating import OperatingContract
from airflow.providers.watermark.testing.watching.restarting import RestartingContract

__all__ = ["WatcherContract"]


class WatcherContract(
    AnsweringContract,
    DeliveringContract,
    LimitsContract,
    LateContract,
    RestartingContract,
    FailingContract,
    OperatingContract,
    ConfiguringContract,
):
    """All of it."""
