"""Containers, where those are used: none is left behind, whatever becomes of it."""

from __future__ import annotations

import gc
import os
import socket

import pytest

from devtools.s3_servers import ServerStartError
from system_tests import containers, services


@pytest.mark.quick
def test_a_daemon_that_does_not_answer_is_told_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A socket that is left to the garbage collector is an error of whichever test runs by then."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    assert "no Docker daemon answers" in (containers.daemon_problem() or "")
    gc.collect()


if services.chosen()[0] == "docker":

    @pytest.mark.quick
    def test_a_container_that_cannot_start_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
        """It is made before its port is found to be taken."""
        before = containers.made_by(os.getpid())
        with socket.create_server(("127.0.0.1", 0)) as taken:
            monkeypatch.setattr(containers, "free_port", lambda: taken.getsockname()[1])
            with pytest.raises(ServerStartError, match="cannot be made"), containers.fake_gcs():
                pass
        assert containers.made_by(os.getpid()) == before
