import json
import sys
from pathlib import Path

import pytest

from pollux import PolluxError
from pollux._native import Worker
from scheduler import scheduler

# A training that does nothing but talk, and ends as it is told to.
TRAINING = """
import json, sys, time
from pollux._native import Agent, Worker

worker = Worker.from_env()
while (assignment := worker.assignment()) is None:
    time.sleep(0.01)
generation = assignment["generation"]
agent = Agent(batch_size=64, max_batch_size=512, local_batch_min=1, local_batch_max=64, scaling="sqrt")
agent.run_fixed(1, 1, 32, 1)
worker.ready(generation)
worker.report(generation, agent.report(samples=640, samples_per_s=25.0))
print(json.dumps([worker.job, worker.replica, worker.generation, assignment]), flush=True)
while (orders := worker.orders()) == "train":
    time.sleep(0.01)
print(json.dumps([orders, worker.finish(10.0)]), flush=True)
sys.exit(143)
"""


def test_a_training_in_python_is_heard_and_stops_when_it_is_told_to(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with scheduler(tmp_path, "--slots", "1") as server:
        job = server.pollux("submit", "-o", "id", "--", sys.executable, str(script)).strip()
        running = server.wait_for(job, lambda job: job["phase"] == "running" and job["samples_per_s"] is not None)
        assert (running["samples_per_s"], running["batch_size"], running["local_batch"]) == (25.0, 64, 32)

        server.pollux("pause", job)
        # It is paused as soon as it is told to be; the last words of its process follow.
        server.wait_for(job, lambda told: told["phase"] == "paused" and len(lines(server.pollux("logs", job))) == 2)
        started, ended = (json.loads(line) for line in lines(server.pollux("logs", job)))
        assert started[:2] == [job, running["group"][0]["replica"]]
        assert (started[2], started[3]["generation"], started[3]["state"]) == (1, 1, "run")
        assert started[3]["replicas"] == running["group"]
        assert ended == ["stop", True]
        server.pollux("cancel", job)


def lines(log: str) -> list[str]:
    """What a replica wrote, without its number."""
    return [line[line.index("[") :] for line in log.splitlines()]


def test_without_a_scheduler_there_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLLUX_URL", "POLLUX_JOB_ID", "POLLUX_REPLICA_ID", "POLLUX_TOKEN", "POLLUX_GENERATION"):
        monkeypatch.delenv(name, raising=False)
    assert Worker.from_env() is None
    # Those are for the command line, too.
    monkeypatch.setenv("POLLUX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("POLLUX_TOKEN", "secret")
    assert Worker.from_env() is None


def test_half_of_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLUX_JOB_ID", "12")
    with pytest.raises(PolluxError, match="POLLUX_URL is not set, but POLLUX_JOB_ID is; expected both or neither"):
        Worker.from_env()
