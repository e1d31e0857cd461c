import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pollux import PolluxError
from pollux._native import Agent, ScalingContext

BOUNDS: dict[str, Any] = {
    "batch_size": 128,
    "max_batch_size": 4096,
    "local_batch_min": 16,
    "local_batch_max": 512,
}


def agent(scaling: str | Callable[[ScalingContext], float] = "adascale", **changed: Any) -> Agent:
    return Agent(scaling=scaling, **{**BOUNDS, **changed})


def trained(noise_var: float = 20.0, **changed: Any) -> Agent:
    """One that has seen steady steps on 1 and 2 replicas, whose gradients have a squared norm of 1."""
    one = agent(**changed)
    for replicas, local_batch in [(1, 128), (2, 64), (2, 256)]:
        batch = replicas * local_batch
        one.run_fixed(1, replicas, local_batch, 0)
        micro_sqr = 1 + noise_var * 128 / local_batch
        for _ in range(20):
            one.observe_step(1, replicas, local_batch, 0, 0.02 + 0.001 * local_batch, 0.005 * (replicas - 1))
            if replicas > 1:
                assert one.observe_gradients(1, 2, batch, micro_sqr, 1 + noise_var * 128 / batch)
            one.advance(1)
    return one


def test_without_measurements_the_baseline_batch_is_kept() -> None:
    assert agent().resize(1, 1) == (128, 0)
    assert agent().resize(1, 4) == (32, 0)


def test_noisy_gradients_grow_batch_gain_and_learning_rate() -> None:
    one = trained()
    noise = one.noise()
    assert noise is not None
    assert noise == pytest.approx((1.0, 20.0))
    assert one.noise_scale() == pytest.approx(128 * 20)
    local_batch, accumulation_steps = one.resize(1, 4)
    scale = 4 * local_batch * (accumulation_steps + 1) / 128
    gain = 21 / (20 / scale + 1)
    assert scale > 1
    assert one.gain() == pytest.approx(gain)
    assert one.learning_rate_factor() == pytest.approx(gain)
    assert one.efficiency() == pytest.approx(gain / scale)


def test_progress_counts_steps_samples_and_what_they_are_worth() -> None:
    one = trained()
    before = one.progress()
    one.run_fixed(1, 2, 256, 0)
    one.advance(10)
    after = one.progress()
    assert (after["steps"] - before["steps"], after["samples"] - before["samples"]) == (10, 5120)
    assert after["baseline_steps"] - before["baseline_steps"] == pytest.approx(10 * one.gain())
    assert one.end_epoch() is not None
    assert one.progress()["epochs"] == 1


def test_an_agent_restored_from_its_state_goes_on_as_if_nothing_happened() -> None:
    one = trained()
    other = agent(state=one.state())
    assert (other.state(), other.progress(), other.noise()) == (one.state(), one.progress(), one.noise())
    assert other.resize(2, 8) == one.resize(2, 8)
    assert other.report() == one.report()


def test_gradients_that_say_nothing_are_not_used() -> None:
    one = agent()
    assert not one.observe_gradients(1, 1, 128, 2.0, 1.0)
    assert not one.observe_gradients(1, 2, 128, math.nan, 1.0)
    assert one.noise() is None and one.noise_scale() is None and one.gain() == 1.0


def test_a_rule_of_the_users_own_sees_the_context_and_its_exception_comes_through() -> None:
    seen: list[tuple[float, float | None, float | None, float]] = []

    def cube_root(context: ScalingContext) -> float:
        seen.append((context.scale, context.noise_sqr, context.noise_var, context.epochs))
        return float(context.scale ** (1 / 3))

    one = agent(cube_root, epoch_samples=1024)
    one.run_fixed(1, 2, 512, 0)
    one.advance(2)
    assert one.learning_rate_factor() == 2.0
    assert seen == [(8.0, None, None, 2.0)]

    broken = agent(lambda _context: [][0])
    with pytest.raises(IndexError):
        broken.learning_rate_factor()
    assert json.loads(broken.report())["learning_rate_factor"] == 1.0


def test_a_report_tells_samples_and_speed_as_the_trainer_counted_them() -> None:
    one = trained(epoch_samples=50000)
    report = json.loads(one.report(samples=777, samples_per_s=12.5))
    assert (report["progress"]["samples"], report["samples_per_s"]) == (777, 12.5)
    assert (report["epoch_samples"], report["limits"]["batch_size_baseline"]) == (50000, 128)
    assert report["types"][0]["replicas_profiled"] == 2
    assert json.loads(one.report())["progress"]["samples"] == one.progress()["samples"]


def test_a_state_of_another_version_is_learned_anew_and_said_so() -> None:
    one = trained()
    assert not agent(state=one.state()).relearns
    for change in ({"version": 99}, {"noise": "told otherwise"}, {"profiles": {}}):
        other = agent(state=json.dumps(json.loads(one.state()) | change))
        assert other.relearns and other.noise() is None
        assert other.progress() == one.progress()
    assert agent(state="{}").relearns


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: agent(max_batch_size=64), "batch_size_baseline 128 .* batch_size_max 64"),
        (lambda: agent(batch_size=-1), "batch_size is -1; expected whole numbers from 0 to 4294967295"),
        (lambda: agent("adam"), 'scaling is "adam"; expected adascale, .*, or a function'),
        (lambda: agent(3), 'scaling is "3"; expected adascale, .*, or a function'),  # type: ignore[arg-type]
        (lambda: agent(lambda _: -1.0).learning_rate_factor(), "learning-rate factor"),
        (lambda: agent(state="{"), "state: EOF .*; expected what state"),
        (lambda: agent(batch_size=64, state=trained().state()), "128.*64"),
        (lambda: agent().resize(2, 1), "1 replicas on 2 nodes"),
        (lambda: agent().observe_step(1, 1, 128, 0, -1.0, 0.0), "-1"),
        (lambda: agent().observe_rate(math.nan), "NaN"),
        (lambda: agent().observe_loss(math.inf), "inf"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_be_accepted(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(PolluxError) as raised:
        refused()
    assert re.search(message, str(raised.value)), raised.value
    assert len(str(raised.value).splitlines()) == 1


# In a process of its own: this one should end when it is told to.
SIGNALLED = """
import multiprocessing, os, signal, time
from pollux._native import Termination

termination = Termination.install()
codes = set()
for _ in range(50):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join()
    codes.add(child.exitcode)
print(codes, termination.requested())
os.kill(os.getpid(), signal.SIGTERM)
print(termination.requested())
"""


def test_sigterm_sets_a_flag_and_still_ends_forked_children() -> None:
    run = subprocess.run([sys.executable, "-c", SIGNALLED], check=True, capture_output=True, text=True)
    assert run.stdout == "{-15} False\nTrue\n"


def test_a_process_that_is_alone_grows_in_whole_steps_only_where_its_worker_says_so() -> None:
    local_batch, accumulation_steps = trained().resize(1, 1)
    assert accumulation_steps >= 1 or local_batch == 128
    local_batch, accumulation_steps = trained(lone_replica="whole").resize(1, 1)
    assert local_batch > 128
    assert accumulation_steps == 0
    with pytest.raises(ValueError, match='lone_replica is "other"; expected accumulates or whole'):
        agent(lone_replica="other")
