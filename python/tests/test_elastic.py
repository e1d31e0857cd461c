"""What trainings of every framework stand on: connections, sums, states. Processes are threads here."""

from __future__ import annotations

import fcntl
import io
import os
import resource
import socket
import subprocess
import sys
from typing import Any

import pytest

from launching import environment, in_threads, start

pytest.importorskip("numpy", reason="NumPy is not installed: `make python` installs it")

import numpy as np

from pollux._elastic.brain import Limits
from pollux._elastic.errors import CheckpointError, LostError, UsageError
from pollux._elastic.group import Group, Member, Ring
from pollux._elastic.line import JoinListener, Line, call, group_key
from pollux._elastic.options import Options
from pollux._elastic.session import Session
from pollux._elastic.state import State, compare, read_file, read_state, write_state

LIMIT_S = 30.0


def connected(count: int) -> list[Group]:
    """Groups of so many members, each to be used by a thread."""
    listeners = [JoinListener(("127.0.0.1", 0)) for _ in range(count)]
    members = tuple(Member(rank, rank) for rank in range(count))

    def form(rank: int) -> Group:
        following = call(("127.0.0.1", listeners[(rank + 1) % count].port), ["ring", rank, None])
        preceding, _ = listeners[rank].take(("ring", (rank - 1) % count), LIMIT_S)
        if rank > 0:
            lines = {0: call(("127.0.0.1", listeners[0].port), ["word", rank, None])}
        else:
            lines = {other: listeners[0].take(("word", other), LIMIT_S)[0] for other in range(1, count)}
        return Group(rank, members, lines, Ring(following, preceding))

    groups = in_threads(count, form)
    for listener in listeners:
        listener.close()
    return groups


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("size", [1, 7, 300_000])
def test_a_sum_is_the_same_bits_on_every_rank(count, size) -> None:
    groups = connected(count)
    values = [np.random.default_rng(rank).normal(size=size).astype(np.float32) for rank in range(count)]
    expected = np.sum(np.stack(values, dtype=np.float64), axis=0)
    for _ in range(2):
        sums = [own.copy() for own in values]
        assert in_threads(count, lambda rank, sums=sums: groups[rank].sum(sums[rank])) == [None] * count
    assert np.allclose(sums[0], expected, rtol=1e-5, atol=1e-5)
    assert all((own == sums[0]).all() for own in sums)


def test_ranks_that_are_at_different_places_are_told_so() -> None:
    places = ["is between two steps", "ends the training"]
    groups = connected(2)
    found = in_threads(2, lambda rank: groups[rank].gather(places[rank], None))
    assert isinstance(found[0], UsageError)
    assert "rank 0 is between two steps while rank 1 ends the training" in str(found[0])


def test_a_process_that_is_gone_is_an_error_at_once() -> None:
    groups = connected(2)
    groups[1].close()
    with pytest.raises(LostError):
        groups[0].sum(np.ones(1_000_000))
    with pytest.raises(LostError):
        groups[0].gather("is between two steps", None)


def test_who_does_not_know_the_token_is_sent_away(monkeypatch) -> None:
    monkeypatch.setenv("POLLUX_TOKEN", "right")
    listener = JoinListener(("127.0.0.1", 0))
    code = "import sys; from pollux._elastic.line import call\n"
    code += "call(('127.0.0.1', int(sys.argv[1])), ['a', 1, None]).receive()"
    command = [sys.executable, "-c", code, str(listener.port)]
    stranger = subprocess.run(
        command, env=os.environ | {"POLLUX_TOKEN": "wrong"}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert "LostError: Connection closed by peer" in stranger.stderr
    with socket.create_connection(("127.0.0.1", listener.port)) as garbage:
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n" * 9)
    call(("127.0.0.1", listener.port), ["a", 2, {"said": 1}])
    assert listener.take(("a", 2), LIMIT_S)[1] == {"said": 1}
    assert listener.look(("a", 1)) is None
    listener.close()


def test_who_was_told_the_key_of_the_job_is_let_in_whatever_its_token(monkeypatch) -> None:
    monkeypatch.setenv("POLLUX_TOKEN", "of one process")
    monkeypatch.setattr(group_key, "_told", None)
    group_key.record("key")
    group_key.record(None)
    listener = JoinListener(("127.0.0.1", 0))
    code = "import sys; from pollux._elastic.line import call, group_key\n"
    code += "group_key.record(sys.argv[2])\nprint(call(('127.0.0.1', int(sys.argv[1])), ['a', 1, None]).receive())"
    with monkeypatch.context() as other:
        other.setenv("POLLUX_TOKEN", "of another")
        command = [sys.executable, "-c", code, str(listener.port)]
        stranger = subprocess.run([*command, "another key"], capture_output=True, text=True, timeout=LIMIT_S)
        member = subprocess.Popen([*command, "key"], stdout=subprocess.PIPE, text=True)
    assert "LostError: Connection closed by peer" in stranger.stderr
    listener.take(("a", 1), LIMIT_S)[0].send("welcome")
    assert member.communicate(timeout=LIMIT_S)[0] == "welcome\n"
    listener.close()


def test_who_says_nothing_does_not_keep_the_others_waiting() -> None:
    listener = JoinListener(("127.0.0.1", 0))
    silent = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(8)]
    line = call(("127.0.0.1", listener.port), ["a", 1, None])
    listener.take(("a", 1), LIMIT_S)[0].send("welcome")
    assert line.receive() == "welcome"
    for one in silent:
        one.close()
    listener.close()


CROWDED = """
import os, resource, signal, socket, sys
from pollux._elastic.line import JoinListener, Line, group_key

signal.alarm(30)
listener = JoinListener(("127.0.0.1", 0))
late = socket.socket()
before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
late.connect(("127.0.0.1", listener.port))
sys.stdin.readline()
for one in taken:
    os.close(one)
nonce = bytearray(32)
line = Line(late)
line.read_into(memoryview(nonce))
line.send([["a", 1, None], group_key.proof(bytes(nonce), ["a", 1, None])])
listener.take(("a", 1), 30.0)
listener.close()
print("came")
"""


def test_a_process_with_too_many_open_files_says_so_and_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CROWDED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        told = "cannot accept connections of other processes: [Errno 24] Too many open files; trying again"
        try:
            assert process.stderr.readline() == f"pollux: {told}\n"
            out, talk = process.communicate("go on\n", timeout=LIMIT_S)
        finally:
            process.kill()
    assert (process.returncode, out, talk) == (0, "came\n", "")


def test_a_line_works_in_a_process_with_many_open_files() -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most <= 1024:
        pytest.skip(f"a process may have {most} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, 1025), most))
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as ours,
            server.accept()[0] as theirs,
        ):
            line = Line(socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1024)))
            assert not line.has_news() and not line.is_broken()
            theirs.sendall(b"x")
            assert line.has_news(LIMIT_S)
            line.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def test_a_state_comes_back_as_it_was() -> None:
    arrays = {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "steps": np.array(7, dtype=np.int64),
        "nothing": np.zeros((0, 4)),
        "flags": np.array([True, False]),
    }
    file = io.BytesIO()
    write_state(State({"epoch": 3, "best": 0.5}, arrays), file)
    file.seek(0)

    def read_into(view: memoryview) -> None:
        assert file.readinto(view) == len(view)

    found = read_state(read_into, "the file")
    assert found.facts == {"epoch": 3, "best": 0.5} and list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype and np.array_equal(found.arrays[name], array)


def test_a_state_of_another_training_is_refused() -> None:
    own = State({}, {"a": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match="^it is of another training: b is in the checkpoint only; remove"):
        compare(own, State({}, {**own.arrays, "b": np.zeros(1)}), "it")
    with pytest.raises(
        CheckpointError, match=r"^it is of another training: a is float32\[4\] there and float32\[3\] here"
    ):
        compare(own, State({}, {"a": np.zeros(4, np.float32)}), "it")


class Arrays:
    """Content of a training that only holds arrays."""

    def __init__(self, **arrays: float):
        self.arrays = {name: np.array(value) for name, value in arrays.items()}

    def capture(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: array.copy() for name, array in self.arrays.items()}

    def restore(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        self.arrays = arrays

    def share(self) -> None:
        pass

    def regroup(self, rank: int) -> None:
        pass


def test_what_was_never_finite_is_saved_and_what_no_longer_is_is_not(tmp_path, capfd) -> None:
    def train(epochs: int, **changes: float) -> Session:
        limits = Limits.checked(8, 8, (1, 8), 16)
        options = Options(limits, 16, True, 0, "adascale", 0.0, 0, tmp_path, 1000.0)
        session = Session(options, content := Arrays(weight=1.0, best=np.inf))
        for _ in session.epochs(epochs):
            for _ in session.steps():
                content.arrays |= {name: np.array(value) for name, value in changes.items()}
                session.has_stepped = True
        return session

    train(1)
    [first] = tmp_path.iterdir()
    assert read_file(first).arrays == {"weight": 1.0, "best": np.inf}
    # It goes on with a finite number, which may be infinite again.
    train(2, best=0.5)
    train(3, best=np.inf, weight=2.0)
    saved = sorted(tmp_path.iterdir())
    assert read_file(saved[-1]).arrays == {"weight": 2.0, "best": np.inf}
    assert "not saved" not in capfd.readouterr().err
    session = train(4, weight=np.nan)
    assert sorted(tmp_path.iterdir()) == saved
    talk = "pollux: not saved: weight was finite and is not any more; what was saved before stays\n"
    assert capfd.readouterr().err == talk
    # The next one is due after the usual time, not at once.
    assert not session.archive.is_due()
    session.archive._saved_at -= 1001.0
    assert session.archive.is_due()
    session.archive.save()
    assert not session.archive.is_due() and capfd.readouterr().err == talk


LOSING = """
import os, sys
import numpy as np
from pollux._elastic.brain import Limits
from pollux._elastic.options import Options
from pollux._elastic.session import Session

class Content:
    def __init__(self):
        self.total = np.zeros(1)
    def capture(self):
        return {"total": self.total.copy()}
    def restore(self, arrays):
        self.total = arrays["total"]
    def share(self):
        pass
    def regroup(self, rank):
        pass

content = Content()
options = Options(Limits.checked(8, 8, (1, 8), 64), 64, True, 0, "adascale", 0.0, 0, sys.argv[1], 1000.0)
session = Session(options, content)
for epoch in session.epochs(2):
    for step in session.steps():
        lost = os.environ["RANK"] == "1" and session.position.steps == 3
        if lost and sys.argv[2] == "within a step":
            os._exit(9)
        values = np.concatenate(session.indices(step)).sum(keepdims=True).astype(float)
        session.sum(values)
        content.total = content.total + values
        session.has_stepped = True
        if lost and sys.argv[2] == "between two steps":
            os._exit(9)
print(session.position.steps, content.total)
"""


@pytest.mark.parametrize("moment", ["within a step", "between two steps"])
def test_rank_0_saves_the_last_whole_step_when_another_process_is_lost(tmp_path, moment) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOSING)
    folder = tmp_path / "checkpoints"
    first, second = start(script, 2, str(folder), moment)
    assert second.wait(LIMIT_S) == 9
    _, talk = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 75 and "pollux: another process is gone (" in talk, talk
    [saved] = folder.iterdir()
    facts = read_file(saved).facts
    steps = 3 if moment == "within a step" else 4
    assert facts["position"] == {
        "epoch": 0,
        "cursor": 8 * steps,
        "samples": 8 * steps,
        "steps": steps,
        "is_ended": False,
    }
    out, talk = start(script, 1, str(folder), moment)[0].communicate(timeout=LIMIT_S)
    # The sum of all numbers of samples, once for each epoch.
    assert out == f"16 [{2 * sum(range(64))}.]\n", talk


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_processes_meet_over_ipv6(tmp_path) -> None:
    everywhere = JoinListener(("", 0))
    for number, host in enumerate(("127.0.0.1", "::1")):
        call((host, everywhere.port), ["a", number, None])
        everywhere.take(("a", number), LIMIT_S)
    everywhere.close()
    script = tmp_path / "script.py"
    script.write_text(LOSING)
    for process in start(script, 2, str(tmp_path / "checkpoints"), "never", host="::1"):
        out, talk = process.communicate(timeout=LIMIT_S)
        assert out == f"16 [{2 * sum(range(64))}.]\n", talk
