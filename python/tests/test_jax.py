"""`pollux.jax` with the real JAX on CPUs: alone, as two processes, and under a real scheduler."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed: `make python` installs it")
pytest.importorskip("torch", reason="PyTorch, which is in the scheduler of these tests, is not installed")


import jax
import jax.numpy as jnp
import numpy as np
from frameworks import (
    SAMPLES,
    assert_each_once,
    counts,
    grow_and_shrink,
    interrupt_twice,
    run,
    shrink_and_kill,
    told,
)

import pollux.jax as px
from launching import environment, start, together
from scheduler import scheduler

LIMIT_S = 240
TRAINING = """
import json, os, sys
import jax, jax.numpy as jnp, numpy as np
from pacing import pace
import pollux.jax as px

out, epochs, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
assert "torch" not in sys.modules and "tensorflow" not in sys.modules
rng = np.random.default_rng(0)
inputs = rng.normal(size=(96, 8)).astype(np.float32)
data = {"inputs": inputs, "targets": inputs.sum(1, keepdims=True), "number": np.arange(96)}
log = open(f"{out}/steps-{os.getpid()}", "w", buffering=1)

@jax.jit
def value_and_grad(params, batch, key):
    def loss(params):
        hidden = jnp.tanh(batch["inputs"] @ params["first"])
        hidden *= jax.random.bernoulli(key, 0.9, hidden.shape)
        return jnp.mean((hidden @ params["second"] - batch["targets"]) ** 2)
    return jax.value_and_grad(loss)(params)

@jax.jit
def update(state, gradients, factor):
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
    params = jax.tree.map(lambda p, m: p - 0.01 * factor * m, state["params"], momentum)
    return {**state, "params": params, "momentum": momentum}

params = {"first": jnp.full((8, 4), 0.1), "second": jnp.ones((4, 1))}
state = {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params), "key": jax.random.key(7)}
training = px.Training(state, data, **{
    "batch_size": 8, "max_batch_size": 32, "per_gpu": (2, 8), "checkpoint_every_s": 1, **options
})
for epoch in training.epochs(epochs):
    for step in training.steps():
        def gradients(batch, key):
            pace(out, epoch, len(batch["number"]))
            result = value_and_grad(training.state["params"], batch, key)
            print(json.dumps([epoch, training.world_size, batch["number"].tolist()]), file=log)
            return result
        loss, mean = step.gradients(gradients, key=training.state["key"])
        training.state = update(training.state, mean, step.learning_rate_factor)
        training.extras["total"] = training.extras.get("total", 0.0) + float(loss) * step.samples
    training.extras.setdefault("losses", []).append(training.extras.pop("total") / 96)
flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(training.state["params"])])
sys.stdout.write("done " + json.dumps({
    "rank": training.rank, "params": flat.tolist(), "losses": training.extras["losses"],
    "batch_size": training.status().batch_size, "noise_scale": training.status().noise_scale,
}) + "\\n")
"""
FIXED = {"max_batch_size": 8, "per_gpu": [8, 8]}


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("jax") / "train.py"
    path.write_text(TRAINING)
    return path


FACTS = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
import pollux.jax as px
from pollux._elastic import brain

# Every step is measured, whatever that costs: fewer would only need more of them to be as sure.
brain.MEASURE_SHARE = 100.0
rng = np.random.default_rng(0)
inputs = rng.normal(size=(1024, 8)).astype(np.float32)
labels = (inputs @ rng.normal(size=(8, 3)) + rng.normal(size=(1024, 3))).argmax(1)
params = {"first": jnp.asarray(rng.normal(size=(8, 16)) / 3, jnp.float32), "second": jnp.zeros((16, 3))}
params["second"] += jnp.asarray(rng.normal(size=(16, 3)) / 4, jnp.float32)

def loss(params, batch):
    scores = jax.nn.log_softmax(jnp.tanh(batch[0] @ params["first"]) @ params["second"])
    return -jnp.mean(jnp.take_along_axis(scores, batch[1][:, None], axis=1))

value_and_grad = jax.jit(jax.value_and_grad(loss))
zeros = jax.tree.map(jnp.zeros_like, params)

@jax.jit
def adam(state, gradients, rate):
    count = state["count"] + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], gradients)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["nu"], gradients)
    move = lambda p, m, v: p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
    return {"params": jax.tree.map(move, state["params"], mu, nu), "mu": mu, "nu": nu, "count": count}

def train(epochs, rate, is_adam, **options):
    state = {"params": params, "mu": zeros, "nu": zeros, "count": 0}
    denominators = lambda state: px.adam_denominators(state["nu"], state["count"])
    chosen = {"scaling": "adamscale", "preconditioner": denominators} if is_adam else {}
    training = px.Training(state, (inputs, labels), batch_size=16, max_batch_size=16, **chosen, **options)
    for _ in training.epochs(epochs):
        for step in training.steps():
            _, gradients = step.gradients(lambda batch: value_and_grad(training.state["params"], batch))
            training.state = adam(training.state, gradients, rate * step.learning_rate_factor)
    return training

def exact_noise_scale(denominators):
    each = jax.jit(jax.vmap(jax.grad(lambda params, x, y: loss(params, (x[None], y[None]))), (None, 0, 0)))
    gradients = jax.tree.map(lambda g, d: g / d, each(params, inputs, labels), denominators)
    rows = np.concatenate([np.asarray(leaf, np.float64).reshape(1024, -1) for leaf in jax.tree.leaves(gradients)], 1)
    return float(rows.var(0, ddof=1).sum() / (rows.mean(0) ** 2).sum())

facts = {}
# As plain JAX trains.
plain = {"params": params, "mu": zeros, "nu": zeros, "count": 0}
for start in range(0, 1024, 16):
    plain = adam(plain, value_and_grad(plain["params"], (inputs[start:start + 16], labels[start:start + 16]))[1], 0.01)
ours = train(1, 0.01, True, shuffle=False, per_gpu=(1, 16))
gaps = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), plain["params"], ours.state["params"])
facts["gap"] = max(jax.tree.leaves(gaps))
for name, is_adam, per_gpu in (("sgd", False, (4, 64)), ("adam", True, (4, 64)), ("accumulated", False, (4, 4))):
    trained = train(16, 0.0, is_adam, per_gpu=per_gpu)
    denominators = jax.tree.map(jnp.ones_like, params)
    if is_adam:
        denominators = px.adam_denominators(trained.state["nu"], trained.state["count"])
    facts[name] = [trained.status().noise_scale, exact_noise_scale(denominators)]

# A larger batch takes as long, and gradients are noise.
brain.RETUNE_PERIOD_S, brain.COMPILING_SHARE = 0.0, 1e9
samples = rng.normal(size=(512, 4)).astype(np.float32)
training = px.Training(jnp.zeros(4), samples, batch_size=8, max_batch_size=64, per_gpu=(2, 64))
nearer = jax.jit(jax.value_and_grad(lambda place, batch: jnp.mean((place - batch) ** 2)))

def slowly(batch):
    time.sleep(0.004)
    return nearer(training.state, batch)

for _ in training.epochs(8):
    for step in training.steps():
        _, gradients = step.gradients(slowly)
        training.state = training.state - 0.01 * step.learning_rate_factor * gradients
now = training.status()
facts["grown"] = [now.batch_size, now.learning_rate_factor, now.samples, now.baseline_steps]
print(json.dumps(facts))
"""


@pytest.mark.parametrize("world_size", [1, 2])
def test_training_is_that_of_plain_jax_and_noise_is_that_of_the_samples(world_size, tmp_path) -> None:
    facts = together(FACTS, tmp_path, world_size)[0]
    assert facts.pop("gap") < 1e-6
    batch_size, factor, samples, progress = facts.pop("grown")
    assert samples == 8 * 512 and samples / 64 < progress < samples / 7 and 1.0 <= factor <= batch_size / 8 <= 8.0
    # Alone, a larger batch is run in two parts, which takes longer.
    assert batch_size > 8 or world_size == 1
    for name, (estimate, exact) in facts.items():
        assert abs(estimate / exact - 1) < 0.10, f"{name}: {estimate:.1f} instead of {exact:.1f}"


def test_an_adaptive_training_alone_uses_every_sample_once(script, tmp_path) -> None:
    [result] = told(run(script, tmp_path, 40))
    assert_each_once(tmp_path, 40)
    assert result["losses"][-1] < result["losses"][0] and len(result["losses"]) == 40
    assert result["noise_scale"] is not None


def test_a_killed_training_goes_on_and_ends_with_the_same_bits(script, tmp_path) -> None:
    options = json.dumps(FIXED | {"checkpoint_every_s": 0.05})
    [whole] = told(run(script, tmp_path / "whole", 5, options))
    [again] = told([interrupt_twice(tmp_path / "interrupted", script, 5, options)])
    assert all(again[name] == whole[name] for name in ("params", "losses", "batch_size"))


def test_a_training_grows_loses_rank_0_in_place_and_uses_every_sample_once(script, tmp_path) -> None:
    grow_and_shrink(tmp_path / "out", script, epochs=24, stays=1, python=sys.executable)


def test_who_loses_another_process_saves_and_any_number_goes_on(script, tmp_path) -> None:
    options = json.dumps(FIXED | {"checkpoint_dir": str(tmp_path / "checkpoints"), "checkpoint_every_s": 1000})
    first, second = start(script, 2, str(tmp_path), "4", options)
    deadline = time.monotonic() + LIMIT_S
    while 1 not in counts(tmp_path):
        assert first.poll() is None and second.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    second.kill()
    second.communicate()
    _, talk = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 75 and "pollux: another process is gone (" in talk, talk
    [result] = told(run(script, tmp_path, 4, options))
    found = counts(tmp_path)
    assert {epoch: sorted(used) for epoch, used in found.items()} == dict.fromkeys(range(4), list(range(SAMPLES)))
    # Only the step at hand is trained again.
    assert sum(used.total() for used in found.values()) <= 4 * SAMPLES + 16 and len(result["losses"]) == 4


def test_a_scheduler_takes_a_gpu_from_a_training_and_it_survives_a_kill(script, tmp_path) -> None:
    shrink_and_kill(tmp_path, script, epochs=24)


def test_a_scheduler_that_leaves_batches_to_users_gets_the_batch_of_the_job(script, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with scheduler(tmp_path, "--slots", "2", "--policy", "fifo") as server:
        program = ["--batch-size", "24", "--replicas", "2", "--replicas-max", "2", "--", sys.executable]
        place = ["--env", f"PYTHONPATH={Path(__file__).parent}"]
        job = server.pollux("submit", "-o", "id", *place, *program, str(script), str(out), "400").strip()
        described = server.wait_for(job, lambda told: told["goodput"] is not None and told["epochs"] > 1, LIMIT_S)
        server.pollux("cancel", job)
        server.wait_for(job, lambda told: told["phase"] == "cancelled", LIMIT_S)
        log = server.pollux("logs", job)
    assert (described["batch_size"], described["replicas"], described["replicas_profiled"]) == (24, 2, 2)
    assert "Traceback" not in log, log


def problem() -> tuple[dict, tuple]:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(256, 4)).astype(np.float32)
    return {"weights": jnp.zeros(4)}, (inputs, inputs.sum(1) + 8 * rng.normal(size=256).astype(np.float32))


@jax.jit
def value_and_grad(state, batch):
    return jax.value_and_grad(lambda state: jnp.mean((batch[0] @ state["weights"] - batch[1]) ** 2))(state)


@jax.jit
def update(state, gradients, factor):
    return jax.tree.map(lambda old, gradient: old - 0.02 * factor * gradient, state, gradients)


def train(training: px.Training, epochs: int) -> None:
    for _ in training.epochs(epochs):
        for step in training.steps():
            _, mean = step.gradients(lambda batch: value_and_grad(training.state, batch))
            training.state = update(training.state, mean, step.learning_rate_factor)


def test_a_batch_that_was_asked_for_is_kept(monkeypatch) -> None:
    fixed = px.Training(*problem(), batch_size=8, max_batch_size=64, per_gpu=(2, 64))
    conditions = fixed._session.membership.conditions()
    chosen = type(conditions)(adapts_batch=False, batch_size=24)
    monkeypatch.setattr(fixed._session.membership, "conditions", lambda: chosen)
    train(fixed, 3)
    assert fixed.status().batch_size == 24


def test_leaves_of_every_kind_come_back(tmp_path) -> None:
    def make(fill: float) -> dict:
        return {
            "half": jnp.full(3, fill, jnp.bfloat16),
            "key": jax.random.key(int(fill)),
            "count": int(fill),
            "rate": fill,
            "table": np.full((2, 2), fill),
            "pair": (jnp.int32(fill), jnp.full((), fill)),
        }

    for fill, found in ((2.0, 0), (5.0, 1)):
        training = px.Training(make(fill), np.zeros((8, 1)), batch_size=4, checkpoint_dir=tmp_path)
        for epoch in training.epochs(found + 1):
            assert epoch == found
            for step in training.steps():
                step.skip()
        kept = training.state
        assert jax.random.key_data(kept["key"]).tolist() == [0, 2] and kept["table"].tolist() == [[2.0, 2.0]] * 2
        assert kept["half"].dtype == jnp.bfloat16 and kept["half"].tolist() == [2.0] * 3
        assert [type(kept[name]) for name in ("count", "rate")] == [int, float]
        assert jax.tree.structure(kept) == jax.tree.structure(make(2.0)) and kept["pair"] == (2, 2.0)


def loop(body, **options) -> None:
    training = px.Training(*problem(), batch_size=8, **options)
    for _ in training.epochs(1):
        for step in training.steps():
            body(training, step)


def _twice(training, step) -> None:
    for _ in range(2):
        step.gradients(lambda batch: value_and_grad(training.state, batch))


def _without_gradients(training, _step) -> None:
    training.state = training.state


MISTAKES = {
    "a step whose samples count as trained, but training.state was not set": lambda training, step: None,
    "training.state is set in a step before step.gradients\\(\\) was called": _without_gradients,
    r"step.gradients\(\) for the second time in a step; add the losses": _twice,
    "gave a dict; expected a pair of a value and gradients": lambda training, step: step.gradients(lambda batch: {}),
    "a gradient of type int32; expected arrays of floating-point": lambda training, step: step.gradients(
        lambda batch: (0.0, jnp.arange(3))
    ),
    "a loop over epochs within another": lambda training, step: next(iter(training.epochs(2))),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_in_a_loop_is_told(message) -> None:
    with pytest.raises(px.UsageError, match=message):
        loop(MISTAKES[message])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "^batch_size 0; expected whole numbers from 1$"),
        ({"max_batch_size": 4}, "^max_batch_size 4 is below batch_size 8$"),
        ({"per_gpu": (9, 2)}, r"^per_gpu \(9, 2\); expected \(smallest, largest\), from 1 to max_batch_size 8$"),
        (
            {"max_batch_size": 512, "per_gpu": (200, 512)},
            r"^per_gpu \(200, 512\) begins above 128, which is half of the 256",
        ),
        ({"scaling": "adam"}, "^scaling 'adam'; expected adascale, adamscale, linear, sqrt, legw and functions$"),
        ({"scaling": "adamscale"}, "^scaling 'adamscale' and preconditioner; expected both, or neither"),
        ({"checkpoint_every_s": 0}, "^checkpoint_every_s 0; expected seconds above 0$"),
    ],
)
def test_what_cannot_be_is_refused(options, message) -> None:
    with pytest.raises(px.UsageError, match=message):
        px.Training(*problem(), **{"batch_size": 8, **options})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.zeros((3, 1)), np.zeros(4)), r"^data has arrays of \[3, 4\] rows; expected as many in all of them$"),
        (object(), "^data is a object; expected arrays with a row for each sample"),
        (np.zeros((0, 2)), "^data has no samples; expected at least one$"),
    ],
)
def test_data_that_cannot_be_dealt_is_refused(data, message) -> None:
    with pytest.raises(px.UsageError, match=message):
        px.Training({}, data, batch_size=1)


def test_a_training_that_no_longer_learns_ends(tmp_path) -> None:
    def diverge(training, step) -> None:
        loss, gradients = step.gradients(lambda batch: value_and_grad(training.state, batch))
        training.state = jax.tree.map(lambda leaf: leaf * jnp.nan, training.state)

    with pytest.raises(px.DivergedError, match="the gradients of the last steps are not finite"):
        loop(diverge, checkpoint_dir=tmp_path, checkpoint_every_s=0.001)


def test_objects_that_find_samples_by_number_are_data() -> None:
    class Squares:
        def __len__(self) -> int:
            return 32

        def __getitem__(self, numbers):
            return numbers**2

    seen: list[int] = []

    def body(training, step) -> None:
        def gradients(batch):
            seen.extend(batch.tolist())
            return jnp.zeros(()), {"weights": jnp.zeros(4)}

        _, mean = step.gradients(gradients)
        training.state = mean

    training = px.Training({"weights": jnp.zeros(4)}, Squares(), batch_size=8)
    for _ in training.epochs(1):
        for step in training.steps():
            body(training, step)
    assert sorted(seen) == [number**2 for number in range(32)]


def test_the_example_learns_to_read_digits() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: `make python` installs it")
    example = Path(__file__).parents[2] / "examples" / "jax" / "digits.py"
    command = [sys.executable, example, "--epochs", "3"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"epoch {number}/3" for number in (1, 2, 3)]
    assert float(lines[-1].split("best ")[1].split(",")[0]) > 0.9
