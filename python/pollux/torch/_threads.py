"""Threads of PyTorch that may still want Python when the process ends.

A thread of gloo that is through with a collective frees its tensors, and waits for Python's lock to do so. If the
interpreter ends at that moment, Python before 3.14 ends the thread within C++, and with it the process: "terminate
called without an active exception".
"""

from __future__ import annotations

import time
from pathlib import Path

_GLANCE_S = 0.005
_PATIENCE_S = 2.0
_TASKS = Path("/proc/self/task")


def settle() -> None:
    """Waits until those threads have nothing left to do. Nobody may start a collective any more."""
    deadline = time.monotonic() + _PATIENCE_S
    before = None
    while (now := _activity()) and time.monotonic() < deadline:
        # Who has slept for as long as the lock was free does not wait for it.
        if now == before and all(state == "S" for _, state, _ in now):
            return
        before = now
        time.sleep(_GLANCE_S)


def _activity() -> list[tuple[str, str, str]]:
    """Number, state and switches of each thread of gloo; nothing where the system does not tell."""
    try:
        return [_state(task) for task in _TASKS.iterdir() if (task / "comm").read_text().startswith("pt_gloo")]
    except OSError:
        return []


def _state(task: Path) -> tuple[str, str, str]:
    fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    switches = fields["voluntary_ctxt_switches"].strip() + "+" + fields["nonvoluntary_ctxt_switches"].strip()
    return task.name, fields["State"].split()[0], switches
