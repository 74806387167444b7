"""
What differs between the releases of Airflow that this package runs on: 3.0.6 and later.

Whatever talks to the triggerer's supervisor goes through :func:`call_supervised`. Below Airflow 3.2 the
supervisor's socket carries one conversation at a time and knows no request ids: who is cancelled between
question and answer leaves the answer to whoever asks next, and the whole triggerer ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from asgiref.sync import sync_to_async

__all__ = [
    "HAS_ACK_MODE",
    "AdvanceItem",
    "AdvanceOutcome",
    "SharedStreamProducer",
    "call_supervised",
    "find_variables",
    "get_connection",
    "hides_values_of",
    "is_variable_missing",
    "round_trip",
    "stats",
    "unbroken",
    "write_variable",
]

_T = TypeVar("_T")

HAS_ACK_MODE: Final = find_spec("airflow.triggers.shared_stream") is not None
"""Whether Airflow says when an event is stored: 3.3 and later."""

if TYPE_CHECKING or HAS_ACK_MODE:
    from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer
else:  # as much of them as the contract suites need to acknowledge events themselves

    class AdvanceOutcome(NamedTuple):
        """How an event was resolved."""

        acked: int
        failed: int
        rejected: int = 0

        @property
        def is_clean(self) -> bool:
            """Whether it is stored."""
            return self.acked > 0 and not self.failed and not self.rejected

    class AdvanceItem(NamedTuple):
        """An event that was resolved."""

        broker_payload: Any
        outcome: AdvanceOutcome

    class SharedStreamProducer:
        """Opens a stream, and is told what became of its events."""


_ABSENT_TIMES: Final = 3
_NO_VARIABLE: Final = "watermark::none:"

_conversations: set[asyncio.Future[Any]] = set()


async def unbroken(conversation: Awaitable[_T]) -> _T:
    """
    Await something that talks to the supervisor; whoever is cancelled meanwhile leaves it to its end.

    :raises Exception: Whatever it raises.
    """
    task = asyncio.ensure_future(conversation)
    _conversations.add(task)  # the loop alone would not keep it
    task.add_done_callback(_ended)
    return await asyncio.shield(task)


def _ended(task: asyncio.Future[Any]) -> None:
    _conversations.discard(task)
    if not task.cancelled():
        task.exception()  # it was raised, or nobody waits for it any more


async def call_supervised(function: Callable[..., _T], *args: Any) -> _T:
    """
    Call a function that talks to the supervisor.

    :raises Exception: Whatever it raises.
    """
    # Not asyncio.to_thread: below Airflow 3.2 each thread would read from the socket by itself.
    return await unbroken(sync_to_async(function)(*args))


async def round_trip() -> None:
    """
    Return once the supervisor has answered a question, for which it had to ask the metadata database.

    :raises Exception: There is no supervisor, or its answer is an error.
    """
    await call_supervised(_ask_database)


def _ask_database() -> None:
    from airflow.sdk.execution_time.comms import GetDRCount

    _ask(GetDRCount(dag_id="airflow-provider-watermark"))


def _ask(question: Any) -> Any:
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    answer = SUPERVISOR_COMMS.send(question)
    if not isinstance(answer, ErrorResponse):
        return answer
    if answer.error == ErrorType.VARIABLE_NOT_FOUND:
        return None
    raise AirflowRuntimeError(answer)


def get_connection(conn_id: str) -> Any:
    """
    Read an Airflow connection; call it supervised.

    :raises Exception: It does not exist, or cannot be read.
    """
    try:
        from airflow.sdk import BaseHook
    except ImportError:  # Airflow 3.0
        from airflow.hooks.base import BaseHook  # type: ignore[attr-defined, no-redef]
    return BaseHook.get_connection(conn_id)


def is_variable_missing(name: str) -> bool:
    """
    Find out whether a Variable that could not be read is really missing; call it supervised.

    ``Variable.get`` answers "not found" to every failure but a denial (task SDK, execution_api.py).

    :raises Exception: It cannot be found out.
    """
    from airflow.sdk import Variable

    if hasattr(Variable, "keys"):  # Airflow 3.3
        return name not in Variable.keys(prefix=name)
    # Here the server, too, says "not found" when it could not read its table (models/variable.py). So it is
    # asked again and again, and between for something that fails without the table: to delete what is none.
    from airflow.sdk.execution_time.comms import DeleteVariable, GetVariable

    for _ in range(_ABSENT_TIMES):
        _ask(DeleteVariable(key=_NO_VARIABLE))
        if _ask(GetVariable(key=name)) is not None:
            return False
    return True


def write_variable(name: str, text: str, description: str) -> None:
    """
    Write a Variable; call it supervised.

    :raises Exception: It may or may not have been written.
    """
    from airflow.sdk import Variable

    Variable.set(name, text, description)
    if not hasattr(Variable, "keys") and Variable.get(name, default=None) != text:
        # Below Airflow 3.3 errors are only logged (task SDK, definitions/variable.py).
        msg = f"the Variable {name!r} does not hold what was written to it; Airflow's log says why"
        raise OSError(msg)


def find_variables(prefix: str) -> list[str]:
    """
    Name the Variables that begin with a prefix; call it supervised.

    :raises NotImplementedError: Below Airflow 3.3 the task SDK cannot list Variables.
    """
    from airflow.sdk import Variable

    if not hasattr(Variable, "keys"):
        msg = "below Airflow 3.3 the task SDK cannot list Variables; use the command line"
        raise NotImplementedError(msg)
    return list(Variable.keys(prefix=prefix))


def hides_values_of(name: str) -> bool:
    """Tell whether Airflow's secrets masker takes the values of a Variable for secrets."""
    try:
        from airflow.sdk._shared.secrets_masker import should_hide_value_for_key
    except ImportError:  # Airflow 3.0
        from airflow.sdk.execution_time.secrets_masker import (  # type: ignore[no-redef]
            should_hide_value_for_key,
        )
    return bool(should_hide_value_for_key(name))


def stats() -> Any:
    """Give Airflow's metrics: ``incr``, ``gauge`` and ``timing``, each with ``tags``."""
    # Of the two copies in Airflow 3.3 only the server's is set up in the triggerer, before it forks.
    try:
        from airflow.observability.stats import Stats
    except ImportError:  # below Airflow 3.2
        from airflow.stats import Stats  # type: ignore[assignment]
    return Stats
