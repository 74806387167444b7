"""What differs between releases of Airflow, over stand-ins for the supervisor and the task SDK's Variable."""

from __future__ import annotations

import asyncio
import gc

import pytest

from airflow.providers.watermark import version_compat
from airflow.sdk import Variable
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DRCount, ErrorResponse, VariableResult

MISSING = ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
BROKEN = ErrorResponse(error=ErrorType.API_SERVER_ERROR)


class Comms:
    """The line to the supervisor: gives the answers that it was given, the last one again and again."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def send(self, question):
        self.asked.append(question)
        answers = self.answers[question.type]
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def comms(monkeypatch):
    line = Comms(GetDRCount=[DRCount(count=0)], DeleteVariable=[None], GetVariable=[MISSING])
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", line, raising=False)
    return line


@pytest.fixture
def old(monkeypatch):
    monkeypatch.delattr(Variable, "keys", raising=False)  # new in Airflow 3.3


# --- conversations ------------------------------------------------------------------------------------------


async def test_a_conversation_gives_what_it_gives():
    assert await version_compat.call_supervised(divmod, 7, 2) == (3, 1)


async def test_a_conversation_raises_what_it_raises():
    with pytest.raises(ZeroDivisionError):
        await version_compat.call_supervised(divmod, 7, 0)


async def test_a_conversation_goes_on_when_its_caller_is_cancelled():
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def conversation():
        begun.set()
        await may_end.wait()
        ended.set()

    caller = asyncio.create_task(version_compat.unbroken(conversation()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gc.collect()  # nobody else holds it
    may_end.set()
    await asyncio.wait_for(ended.wait(), 5)
    await asyncio.sleep(0)
    assert not version_compat._conversations


async def test_an_error_that_nobody_waits_for_any_more_is_not_complained_of():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def conversation():
        await asyncio.sleep(0.01)
        raise RuntimeError("the supervisor is gone")

    caller = asyncio.create_task(version_compat.unbroken(conversation()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await asyncio.sleep(0.05)
    gc.collect()
    assert not complaints


# --- round trips --------------------------------------------------------------------------------------------


async def test_a_round_trip_asks_for_what_needs_the_database(comms):
    await version_compat.round_trip()
    assert [question.type for question in comms.asked] == ["GetDRCount"]


async def test_an_error_is_no_answer(comms):
    comms.answers["GetDRCount"] = [BROKEN]
    with pytest.raises(AirflowRuntimeError):
        await version_compat.round_trip()


# --- Variables below Airflow 3.3 ----------------------------------------------------------------------------


def test_a_variable_is_missing_only_if_it_is_so_again_and_again(comms, old):
    assert version_compat.is_variable_missing("watermark:x") is True
    assert [question.type for question in comms.asked] == ["DeleteVariable", "GetVariable"] * 3
    assert "watermark:x" not in {q.key for q in comms.asked if q.type == "DeleteVariable"}


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_variable_that_is_found_later_is_not_missing(comms, old, times):
    comms.answers["GetVariable"] = [*[MISSING] * times, VariableResult(key="watermark:x", value="{}")]
    assert version_compat.is_variable_missing("watermark:x") is False


@pytest.mark.parametrize("question", ["DeleteVariable", "GetVariable"])
def test_whether_a_variable_is_missing_cannot_be_told_by_a_broken_server(comms, old, question):
    comms.answers[question] = [BROKEN]
    with pytest.raises(AirflowRuntimeError):
        version_compat.is_variable_missing("watermark:x")


def test_a_write_is_read_back(monkeypatch, old):
    stored = {}
    monkeypatch.setattr(Variable, "set", lambda key, value, _: stored.update({key: value}))
    monkeypatch.setattr(Variable, "get", lambda key, **_: stored.get(key))
    version_compat.write_variable("watermark:x", "1", "")
    assert stored == {"watermark:x": "1"}
    monkeypatch.setattr(Variable, "set", lambda *_: None)  # it failed, and Airflow has only logged that
    with pytest.raises(OSError, match="watermark:x"):
        version_compat.write_variable("watermark:x", "2", "")


def test_variables_cannot_be_listed(old):
    with pytest.raises(NotImplementedError, match=r"3\.3"):
        version_compat.find_variables("watermark:")


@pytest.mark.parametrize(("name", "hidden"), [("watermark:s3:orders:k", False), ("api_token", True)])
def test_what_the_secrets_masker_hides_is_known(name, hidden):
    assert version_compat.hides_values_of(name) is hidden
