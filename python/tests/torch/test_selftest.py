"""The self-test itself, as users run it."""

import subprocess
import sys

from pollux.torch.selftest import __main__ as selftest
from pollux.torch.selftest._checks import Check, Failed
from pollux.torch.selftest._places import Place, together


def test_the_self_test_passes_here() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pollux.torch.selftest", "--quick"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    rows = [line.split("  ") for line in run.stdout.splitlines() if "  pass  " in line or "  info  " in line]
    assert [row[0] for row in rows] == [
        "fixed batch equals DDP",
        "sharded equals plain",
        "noise scale, alone",
        "noise scale, together",
        f"resized 1 to {together().processes} to 1",
        "a process is killed",
        "out of memory",
        "time against DDP",
    ]
    assert "verdict: pollux.torch works here" in run.stdout
    assert all(len(line) <= 80 for line in run.stdout.splitlines())


def test_what_fails_is_named_with_what_was_said_and_speed_never_is(monkeypatch, capsys) -> None:
    def fail(folder):
        (folder / "talk").write_text("Traceback of a process\n")
        raise Failed("epoch 3: 2 samples lost, 0 used twice, which is told in more words than a line of eighty has")

    place = Place(2, on_gpus=False)
    monkeypatch.setattr(
        selftest, "checks", lambda quick: [Check("samples", place, fail), Check("speed", place, fail, is_verdict=False)]
    )
    monkeypatch.setattr(sys, "argv", ["selftest"])
    monkeypatch.setenv("COLUMNS", "80")
    assert selftest.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "samples                   2 x cpu   FAIL    epoch 3: 2 samples lost, 0 used" in lines
    assert "speed                     2 x cpu   info    epoch 3: 2 samples lost, 0 used" in lines
    assert "  | Traceback of a process" in lines
    assert lines[-1].startswith("verdict: failed: samples, in ")
