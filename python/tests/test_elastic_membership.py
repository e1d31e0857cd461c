"""How processes of a training of any framework find each other, under a scheduler of version 0.1. Processes are threads
where they live."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed: `make python` installs it")

import numpy as np

from launching import environment, free_port, in_threads
from pollux._elastic import membership
from pollux._elastic.errors import LostError, UsageError
from pollux._elastic.membership import Membership

FIXTURES = Path(__file__).parents[2] / "crates/api/tests/fixtures/v1"


@contextmanager
def first_version(assignment: dict[str, Any]) -> Iterator[str]:
    """Where a scheduler of version 0.1 tells of one assignment."""
    is_over = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if f"after={assignment['generation']}" in self.path and "wait_s=0" not in self.path:
                is_over.wait(30.0)
            text = json.dumps(assignment).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    # Whoever was killed takes no answer.
    server.handle_error = lambda *_: None
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        is_over.set()
        server.shutdown()
        server.server_close()


def told(replicas: int) -> dict[str, Any]:
    """What version 0.1 tells of a group of so many, with a port that is free."""
    assignment: dict[str, Any] = json.loads((FIXTURES / "assignment.json").read_text())
    assert "rendezvous" not in assignment
    assignment["master_port"] = free_port()
    return assignment | {"replicas": assignment["replicas"][:replicas]}


def variables(url: str, assignment: dict[str, Any], rank: int) -> dict[str, str]:
    """What a process of it finds in its environment."""
    return {
        "POLLUX_URL": url,
        "POLLUX_JOB_ID": "1",
        "POLLUX_TOKEN": "secret",
        "POLLUX_HOST_ADDRESS": "127.0.0.1",
        "POLLUX_GENERATION": str(assignment["generation"]),
        "POLLUX_REPLICA_ID": str(assignment["replicas"][rank]["replica"]),
    }


def made(monkeypatch, url: str, assignment: dict[str, Any], rank: int) -> Membership:
    for name, value in variables(url, assignment, rank).items():
        monkeypatch.setenv(name, value)
    return Membership()


def test_a_group_meets_at_the_port_that_the_first_version_of_the_scheduler_gives(monkeypatch) -> None:
    assignment = told(8)
    with first_version(assignment) as url:
        members = [made(monkeypatch, url, assignment, rank) for rank in range(8)]
        entered = in_threads(8, lambda rank: members[rank].enter())
        groups = [group for group, _ in entered]
        sums = [np.full(9, float(rank)) for rank in range(8)]
        in_threads(8, lambda rank: groups[rank].sum(sums[rank]))
        assert [own.tolist() for own in sums] == [[28.0] * 9] * 8
        assert [newcomers for _, newcomers in entered] == [list(range(1, 8))] * 8
        for group, member in zip(groups, members):
            group.close()
            member.close()


@pytest.mark.parametrize(
    ("rank", "message"), [(0, "^not all of generation 4 came within 0 s$"), (1, "^.*Connection refused$")]
)
def test_nobody_waits_for_ever(monkeypatch, rank, message) -> None:
    monkeypatch.setattr(membership, "_PATIENCE_S", 0.2)
    assignment = told(2)
    with first_version(assignment) as url:
        member = made(monkeypatch, url, assignment, rank)
        [lost] = in_threads(1, lambda _: member.enter())
        assert isinstance(lost, LostError)
        with pytest.raises(LostError, match=message):
            raise lost
        member.close()


def test_a_port_that_is_taken_is_told(monkeypatch) -> None:
    assignment = told(2)
    with first_version(assignment) as url, socket.create_server(("127.0.0.1", assignment["master_port"])):
        member = made(monkeypatch, url, assignment, 0)
        [lost] = in_threads(1, lambda _: member.enter())
        assert isinstance(lost, LostError)
        assert str(lost).startswith(f"cannot listen on port {assignment['master_port']}: ")
        member.close()


def test_torchrun_within_a_job_is_refused(monkeypatch) -> None:
    for name, value in {"POLLUX_REPLICA_ID": "1", "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UsageError, match="^torchrun with 4 processes within a job, .*; submit the script without torchrun"
    ):
        Membership()


STOPPING = """
import os, signal
from pollux._elastic.group import Group
from pollux._elastic.membership import Membership

Group.gather = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
Membership().enter()
"""


def test_a_newcomer_that_stops_while_the_group_forms_does_not_hold_it(monkeypatch) -> None:
    monkeypatch.setattr(membership, "_FORMING_S", 4.0)
    assignment = told(2)
    with first_version(assignment) as url:
        member = made(monkeypatch, url, assignment, 0)
        environ = environment() | variables(url, assignment, 1)
        with subprocess.Popen([sys.executable, "-c", STOPPING], env=environ) as newcomer:
            try:
                [lost] = in_threads(1, lambda _: member.enter())
                ended = os.waitid(os.P_PID, newcomer.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                assert ended is not None and ended.si_status == signal.SIGSTOP
            finally:
                newcomer.kill()
        assert isinstance(lost, LostError)
        member.close()
