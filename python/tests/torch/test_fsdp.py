"""Models that FSDP2 shards: copies of several processes each, whose number changes."""

from __future__ import annotations

import collections
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from frameworks import grow_and_shrink, run_script, shrink_and_kill, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from trainings import Numbered, loss_of, network, seen

import pollux.torch as px
import torch
from launching import environment
from pollux.torch.selftest._director import Director

Together = Callable[..., list[Any]]
KINDS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
SIZE = 120


def sharded(shards: int | None) -> torch.nn.Module:
    """The same model on every process, in so many shards."""
    mesh = px.shard_mesh(shards)
    model = network()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(
    shards: int, name: str, epochs: int, wrapping: dict[str, Any], options: dict[str, Any], steps_max: int = 1000
) -> dict[str, Any]:
    """Trains through; parameters are those of the whole model. Without shards it is replicated."""
    torch.set_num_threads(1)
    model = sharded(shards) if shards else network()
    optimizer = KINDS[name](model.parameters(), lr=0.05)
    model, optimizer = px.wrap(model, optimizer, **wrapping)
    # 18 samples over 4 processes are not as many for each, and an epoch leaves a rest.
    loader = px.DataLoader(Numbered(SIZE), batch_size=18, shuffle=True, **options)
    steps: list[tuple[int, list[int]]] = []
    is_new = True
    for epoch in px.epochs(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            assert torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0) < 100
            optimizer.step()
            if is_new:
                steps.append((epoch, []))
            steps[-1][1].extend(batch[2].tolist())
            is_new = px.is_step_end()
            if is_new and len(steps) == steps_max:
                break
        if len(steps) == steps_max:
            break
    parameters = [getattr(own, "full_tensor", lambda own=own: own)().detach() for own in model.parameters()]
    return {"steps": steps, "parameters": parameters, "status": px.status(), "place": (px.rank(), px.world_size())}


def batches_of(results: list[dict[str, Any]]) -> list[list[int]]:
    """Samples of each step, over all processes."""
    return [list(itertools.chain(*(own for _, own in step))) for step in zip(*(one["steps"] for one in results))]


def plainly(name: str, batches: list[list[int]]) -> list[torch.Tensor]:
    """The same steps in one process, without Pollux."""
    model, dataset = network(), Numbered(SIZE)
    optimizer = KINDS[name](model.parameters(), lr=0.05)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, (dataset.inputs[batch], dataset.targets[batch])).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for own, other in zip(found, expected):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("processes", "shards", "name", "per_gpu"),
    [(2, 2, "sgd", (1, 18)), (4, 2, "adamw", (1, 18)), (4, 2, "sgd", (1, 3)), (3, 1, "sgd", (1, 18))],
)
def test_a_sharded_training_equals_a_plain_one(
    together: Together, processes: int, shards: int, name: str, per_gpu: tuple[int, int]
) -> None:
    results = together(train, processes, shards, name, 2, {}, {"per_gpu": per_gpu})
    assert [result["place"] for result in results] == [(rank, processes) for rank in range(processes)]
    assert all(set(counts.values()) == {1} for counts in seen(results).values())
    expected = plainly(name, batches_of(results))
    for result in results:
        assert_same(result["parameters"], expected)


def test_a_checkpoint_is_taken_up_with_any_number_of_shards_and_without_any(together: Together, tmp_path: Path) -> None:
    steps: list[list[int]] = []
    counts: collections.Counter[int] = collections.Counter()
    # The first one is broken off. Of 3 outputs, 4 shards have one each and nothing.
    for epochs, processes, shards, steps_max in ((1, 2, 2, 3), (1, 1, 1, 1000), (2, 4, 4, 1000), (3, 1, 0, 1000)):
        wrapping = {"checkpoint_dir": str(tmp_path)}
        results = together(train, processes, shards, "adamw", epochs, wrapping, {"per_gpu": (1, 18)}, steps_max)
        steps += batches_of(results)
        for result in results:
            assert_same(result["parameters"], plainly("adamw", steps))
            counts.update(itertools.chain(*(samples for _, samples in result["steps"])))
    assert counts == dict.fromkeys(range(SIZE), 3)


def measure(shards: int, name: str) -> dict[str, Any]:
    """Squared norms that are learned of a model that stays as it is, with the samples of their steps."""
    from pollux.torch import _brain

    learned: list[tuple[list[float], float]] = []
    learn = _brain.Brain.learn

    def record(self: Any, rows: Any, mean_sqr: Any, *rest: Any) -> None:
        learned.append(([row.own_sqr[0] for row in rows], mean_sqr[0]) if mean_sqr else ([], 0.0))
        # Every step is followed by a check-in.
        self._eager = 2
        learn(self, rows, mean_sqr, *rest)

    _brain.Brain.learn = record  # type: ignore[method-assign]
    model = sharded(shards)
    wrapped, optimizer = px.wrap(model, KINDS[name](model.parameters(), lr=0.0))
    loader = px.DataLoader(Numbered(SIZE), batch_size=16, per_gpu=(2, 16), shuffle=True)
    steps: list[list[list[int]]] = []
    is_new = True
    for _ in px.epochs(5):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            steps += [[]] * is_new
            steps[-1] = [*steps[-1], batch[2].tolist()]
            is_new = px.is_step_end()
    return {"steps": steps, "learned": learned}


@pytest.mark.parametrize(("processes", "name"), [(2, "sgd"), (4, "sgd"), (4, "adamw")])
def test_the_noise_is_measured_between_copies_or_halves_of_a_step(
    together: Together, processes: int, name: str
) -> None:
    results = together(measure, processes, 2, name)
    learned, dataset, model = results[0]["learned"], Numbered(SIZE), network()
    moments = [torch.zeros_like(parameter) for parameter in model.parameters()]
    compared = 0

    def gradient(samples: list[int]) -> list[torch.Tensor]:
        model.zero_grad()
        loss_of(model, (dataset.inputs[samples], dataset.targets[samples])).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    def norm_sqr(gradients: list[torch.Tensor], done: int) -> float:
        shards = [gradient.chunk(2) for gradient in gradients]
        if name == "adamw":
            roots = [(moment / (1 - 0.999**done)).sqrt().chunk(2) for moment in moments]
            divisors = [
                [root.clamp(min=0.1 * float(root.square().mean().sqrt())) + 1e-8 for root in own] for own in roots
            ]
            shards = [[part / by for part, by in zip(*pair)] for pair in zip(shards, divisors)]
        return sum(float(part.square().sum()) for own in shards for part in own)

    for done, step in enumerate(zip(*(result["steps"] for result in results))):
        samples = list(itertools.chain(*itertools.chain(*step)))
        own_sqr, mean_sqr = learned[done]
        if own_sqr and len(samples) == 16:
            if processes == 2:  # One copy, which compares the halves of a step.
                parts = [[*first, *second] for first, second in zip(*step)]
            else:
                parts = [list(itertools.chain(*itertools.chain(*step[at : at + 2]))) for at in (0, 2)]
            expected = sum(norm_sqr(gradient(part), done) for part in parts) / 2
            assert sum(own_sqr) / len(own_sqr) == pytest.approx(expected, rel=1e-4)
            assert mean_sqr == pytest.approx(norm_sqr(gradient(samples), done), rel=1e-4)
            compared += 1
        mean = gradient(samples)
        moments = [0.999 * moment + 0.001 * own.square() for moment, own in zip(moments, mean)]
    assert compared >= (8 if name == "sgd" else 5), compared


SCRIPT = """
import os, sys, torch
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
import pollux.torch as px
from pacing import pace
from trainings import Numbered, loss_of, network

folder, epochs = sys.argv[1], int(sys.argv[2])
mesh = px.shard_mesh()
model = network()
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
model, optimizer = px.wrap(model, optimizer, checkpoint_every_s=0.5)
loader = px.DataLoader(Numbered(96), batch_size=16, per_gpu=(2, 16), shuffle=True)
log = open(f"{folder}/steps-{os.getpid()}", "w", buffering=1)
for epoch in px.epochs(epochs):
    for batch in loader:
        pace(folder, epoch, len(batch[0]))
        if os.path.exists(f"{folder}/die-{px.rank()}"):
            os.remove(f"{folder}/die-{px.rank()}")
            os.kill(os.getpid(), 9)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        print([epoch, px.world_size() // mesh.size(), batch[2].tolist()], file=log)
whole = [parameter.full_tensor().tolist() for parameter in model.parameters()]
if px.rank() == 0:
    torch.save(whole, f"{folder}/trained.pt")
    print("done")
"""
REPLICA = ("-m", "pollux.replica", "--processes", "2")


def run_shards(script: str, *arguments: str) -> None:
    """A script as the two processes of a replica, forked from one that has imported everything."""
    os.environ.update(POLLUX_SHARD_COUNT="2", POLLUX_SHARD_STORE=f"{arguments[0]}/store-{os.getpid()}")
    os.environ["POLLUX_CHECKPOINT_DIR"] = f"{arguments[0]}/checkpoints"
    rank = 0 if os.fork() else 1
    os.environ["POLLUX_SHARD_RANK"] = str(rank)
    try:
        run_script(script, *arguments)
    except RuntimeError:
        # As a script does that nobody runs within another.
        sys.excepthook(*sys.exc_info())
    finally:
        if rank == 1:
            os._exit(0)
        os.wait()


def assert_as_alone(folder: Path, epochs: int) -> None:
    """What was trained is what the same steps give in one process, which are the same whoever trains."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    wrapped, optimizer = px.wrap(model, optimizer)
    loader = px.DataLoader(Numbered(96), batch_size=16, per_gpu=(2, 16), shuffle=True)
    for _ in px.epochs(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
    for found, expected in zip(torch.load(folder / "trained.pt"), model.parameters()):
        torch.testing.assert_close(torch.tensor(found), expected.detach(), rtol=0, atol=1e-5)


def test_copies_come_and_go_while_a_sharded_model_trains(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    # The one that leaves was the first: the other has learned all that it knew.
    grow_and_shrink(tmp_path / "out", script, 24, stays=1, main=run_shards)
    assert_as_alone(tmp_path / "out", 24)


def test_those_who_lose_a_copy_go_on_from_a_whole_step(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT)
    out.mkdir()
    # One copy goes on where two were.
    for copies, codes in ((2, [75, 75]), (1, [0])):
        director = Director(run_shards, str(script), str(out), "4")
        try:
            director.announce(*range(copies))
            if copies == 2:
                director.wait_until(lambda: steps(out))
                (out / "die-3").touch()
            assert [director.code(replica) for replica in range(copies)] == codes
        finally:
            director.close()
        (out / "hurry").touch()
    assert_as_alone(out, 4)


def test_a_killed_process_ends_its_copy_and_the_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    shrink_and_kill(tmp_path, script, 24, launcher=REPLICA, gpus=2)
    assert_as_alone(tmp_path / "out", 24)


def made(model: torch.nn.Module, **options: Any) -> str:
    """What is said when a model is wrapped."""
    try:
        px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    except px.UsageError as error:
        return str(error)
    return "accepted"


def refuse_without_mesh() -> list[str]:
    """Models that were sharded over a group of the user's own."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = network()
    fully_shard(model)
    return [made(model), made(FullyShardedDataParallel(network(), device_id=torch.device("cpu")))]


def refuse_with_mesh() -> list[str]:
    """Models that are not sharded as they have to be."""
    mesh = px.shard_mesh(2)
    partly, layers, two_ways = network(), network(), network()
    fully_shard(partly, mesh=mesh, ignored_params={partly[0].bias})
    for layer in (layers[0], layers[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(two_ways, mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard")))
    whole = sharded(2)
    both = [whole, sharded(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in both]
    said = [made(network()), made(partly), made(layers), made(two_ways)]
    said += [made(whole, scaler=torch.amp.GradScaler("cpu")), made(whole, find_unused_parameters=True)]
    for call in (lambda: px.wrap(both, optimizers), lambda: px.shard_mesh(1), lambda: px.shard_mesh(0)):
        with pytest.raises(px.UsageError) as refused:
            call()
        said.append(str(refused.value))
    return said


class Partly(torch.nn.Module):
    """A model with a layer that no batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


def refuse_in_the_loop() -> list[str]:
    """A layer without gradients, a forward pass of which Pollux does not hear, and bounds that cannot be kept."""
    said = []
    for model, kept, per_gpu in ((Partly(), False, (2, 16)), (network(), True, (2, 16)), (network(), False, (10, 16))):
        fully_shard(model, mesh=px.shard_mesh(2))
        wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = px.DataLoader(Numbered(64), batch_size=16, per_gpu=per_gpu)
        shards = {"weight": next(model.parameters())}
        with pytest.raises(px.CheckpointError, match=r"checkpoint_state\(average=...\) holds a shard of a tensor"):
            px.checkpoint_state(average=shards)
        with pytest.raises(px.UsageError) as refused:
            for _ in px.epochs(1):
                for batch in loader:
                    optimizer.zero_grad()
                    loss_of(model if kept else wrapped, batch).backward()
                    optimizer.step()
        said.append(str(refused.value))
    return said


def test_what_goes_wrong_in_the_loop_is_refused(together: Together) -> None:
    assert together(refuse_in_the_loop, 2)[0] == [
        "parameters without a gradient: other.weight, other.bias; use them in every batch, freeze them with "
        "requires_grad_(False)",
        "optimizer.step() without gradients of the wrapped model: other processes would not hear of them; call the "
        "model that px.wrap returned, and backward() once per batch",
        "per_gpu begins at 10, which is 20 for the 2 GPUs of one copy of the model; expected up to 16, the largest "
        "batch",
    ]


MESH = "expected fully_shard(..., mesh=px.shard_mesh()); Pollux adds gradients up over replicas"
UNSHARDED = (
    "px.wrap after px.shard_mesh() of a model that is not sharded: processes that share it would train it apart; call "
    "fully_shard(model, mesh=px.shard_mesh()) on the model itself, after its layers"
)


def test_models_that_are_sharded_otherwise_are_refused(together: Together) -> None:
    assert together(refuse_without_mesh, 1) == [
        [
            f"px.wrap of a model that is sharded over a mesh of its own; {MESH}",
            f"px.wrap of a model with FullyShardedDataParallel, which is FSDP1; {MESH}",
        ]
    ]
    assert together(refuse_with_mesh, 2)[0] == [
        UNSHARDED,
        "parameter '0.bias' is not sharded: every process would train it by itself; leave it to fully_shard(model, "
        "mesh=px.shard_mesh()), or freeze it with requires_grad_(False)",
        UNSHARDED,
        f"parameter '0.weight' is on a mesh of 1 x 2 processes, as HSDP and tensor parallelism have it; {MESH}",
        "px.wrap(scaler=...) with px.shard_mesh(): every shard would see other overflows; leave it out, and give "
        "fully_shard a MixedPrecisionPolicy with torch.bfloat16",
        "px.wrap(find_unused_parameters=...) with px.shard_mesh(), where there is no DDP; leave it out",
        "px.wrap of 2 models with px.shard_mesh(); expected one",
        "px.shard_mesh(1) after one of 2; a process has one place in one mesh",
        "px.shard_mesh(0); expected whole numbers from 1",
    ]


@pytest.mark.parametrize(
    ("variables", "size", "message"),
    [
        ({}, 2, "px.shard_mesh(2) in one process; start 2 of them, with torchrun"),
        (
            {"WORLD_SIZE": "5", "RANK": "0"},
            2,
            "px.shard_mesh(2) among 5 processes; expected sizes that divide them without rest",
        ),
        (
            {"POLLUX_JOB_ID": "1"},
            2,
            "px.shard_mesh() of 2 processes in a replica that the scheduler has started as one; submit it with --gpus "
            "2 -- python -m pollux.replica train.py",
        ),
        (
            {"POLLUX_JOB_ID": "1", "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "0"},
            None,
            "px.shard_mesh() of 4 processes in a replica that the scheduler has started as one; submit it with --gpus "
            "4 -- python -m pollux.replica train.py",
        ),
        (
            {"POLLUX_JOB_ID": "1", "POLLUX_SHARD_COUNT": "4"},
            2,
            "px.shard_mesh(2) in a replica of 4 processes; give python -m pollux.replica --processes 2, and as "
            "many GPUs to the replica",
        ),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(variables: dict[str, str], size: int | None, message: str) -> None:
    os.environ.update(variables)
    with pytest.raises(px.UsageError) as refused:
        px.shard_mesh(size)
    assert str(refused.value) == message


def test_processes_of_a_replica_that_share_no_model_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLUX_SHARD_COUNT", "2")
    assert made(network()) == (
        "python -m pollux.replica with 2 processes that share no model; give fully_shard the mesh of px.shard_mesh() "
        "(PyTorch), or submit the script without it: pollux submit -- python train.py"
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("if rank == 1: sys.exit(3)", 3),
        ("if rank == 1: os.kill(os.getpid(), 9)", -9),
        ("if rank == 0: os.kill(os.getppid(), 15)\ntime.sleep(60)", -15),
    ],
)
def test_the_processes_of_a_replica_end_as_one(tmp_path: Path, body: str, code: int) -> None:
    script = tmp_path / "train.py"
    waiting = "" if "sleep" in body or body == "pass" else "\nelse: time.sleep(60)"
    script.write_text(f"import os, sys, time\nrank = int(os.environ['POLLUX_SHARD_RANK'])\n{body}{waiting}\n")
    command = [sys.executable, "-c", "import pollux.replica as it; it.GRACE_S = 0.2; it.main()", *REPLICA[2:]]
    done = subprocess.run([*command, str(script)], env={**environment(), "POLLUX_JOB_ID": "1"}, timeout=120)
    assert done.returncode == code


def test_processes_of_no_replica_are_left_to_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, *REPLICA, str(tmp_path / "train.py")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == (
        "python -m pollux.replica: error: this is no replica of a job; without a scheduler, torchrun "
        "--nproc-per-node N starts N processes"
    )
