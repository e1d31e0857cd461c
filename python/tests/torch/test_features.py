"""What training scripts do besides the plain loop."""

import math
import pickle

import pytest
from trainings import Numbered, loss_of, network, train

import pollux.torch as px
import torch
from pollux._elastic.assignment import Conditions
from pollux.torch._clock import StepClock


def loop(model, optimizer, epochs=1, size=256, after=None, **options):
    """A plain loop; `after` runs between backward and step."""
    loader = px.DataLoader(Numbered(size), **{"batch_size": 16, "max_batch_size": 16, "per_gpu": (2, 16), **options})
    for epoch in px.epochs(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            if after is not None:
                after(epoch)
            optimizer.step()
    return float(loss.detach())


def test_a_gradient_scaler_changes_nothing_but_the_scale(monkeypatch) -> None:
    # Every step is measured, so that both have measured the same ones.
    monkeypatch.setattr("pollux.torch._brain.MEASURE_SHARE", 100.0)

    def run(scaled: bool, per_gpu):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        wrapped, optimizer = px.wrap(model, optimizer, scaler=scaler)
        loader = px.DataLoader(Numbered(512), batch_size=16, max_batch_size=16, per_gpu=per_gpu)
        for _ in px.epochs(2):
            for batch in loader:
                optimizer.zero_grad()
                scaler.scale(loss_of(wrapped, batch)).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        return [parameter.detach().clone() for parameter in model.parameters()], px.status().noise_scale

    for per_gpu in [(16, 16), (4, 4)]:
        (plain, plain_noise), (scaled, scaled_noise) = run(False, per_gpu), run(True, per_gpu)
        for ours, theirs in zip(plain, scaled, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        assert math.isclose(plain_noise, scaled_noise, rel_tol=0.3), (plain_noise, scaled_noise)


def test_autocast_trains() -> None:
    class Casting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, inputs):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.inner(inputs).float()

    model = Casting()
    wrapped, optimizer = px.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    assert loop(wrapped, optimizer, epochs=8) < 0.8


def test_clipping_sees_only_whole_gradients() -> None:
    norms = []
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def clip(_epoch):
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))

    loop(wrapped, optimizer, after=clip, per_gpu=(4, 4))
    assert px.status().accumulation_steps == 3
    whole = [norm for idx, norm in enumerate(norms) if idx % 4 == 3]
    between = [norm for idx, norm in enumerate(norms) if idx % 4 != 3]
    assert between and set(between) == {0.0} and min(whole) > 0.0


def test_frozen_parameters_and_several_groups_keep_their_own_rates() -> None:
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    before = [parameter.detach().clone() for parameter in model.parameters()]
    groups = [{"params": [model[2].weight], "lr": 0.1}, {"params": [model[2].bias], "lr": 0.0}]
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(groups))
    loop(wrapped, optimizer)
    changed = [not torch.equal(ours, theirs) for ours, theirs in zip(before, model.parameters(), strict=True)]
    assert changed == [False, False, True, False]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_parameters_that_get_no_gradient_are_allowed_where_it_is_said() -> None:
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = network(), torch.nn.Linear(8, 3)

        def forward(self, inputs):
            return self.used(inputs)

    model = Branching()
    options = {"find_unused_parameters": True}
    wrapped, optimizer = px.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.01), **options)
    assert loop(wrapped, optimizer, epochs=3) < 1.1


def test_compiled_models_train_and_are_saved_under_their_own_names(tmp_path) -> None:
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    wrapped, optimizer = px.wrap(compiled, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=tmp_path)
    loop(wrapped, optimizer)
    [path] = tmp_path.glob("checkpoint-*.pt")
    assert set(torch.load(path, weights_only=False)["model"]) == set(model.state_dict())


def test_the_learning_rate_follows_the_batch_and_the_rule(monkeypatch) -> None:
    monkeypatch.setattr("pollux.torch._brain.MEASURE_EVERY_MAX", 1)
    monkeypatch.setattr("pollux.torch._brain.RETUNE_PERIOD_S", 0.0)
    rates = []
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda used, *_: rates.append((px.status(), used.param_groups[0]["lr"])))
    asked = []

    def rule(context) -> float:
        asked.append(context.scale)
        return context.scale**0.25

    wrapped, optimizer = px.wrap(model, optimizer, scaling=rule)
    loop(wrapped, optimizer, epochs=4, size=1024, batch_size=4, max_batch_size=64, per_gpu=(1, 32))
    assert max(asked) > 1.0, "the batch never grew"
    for status, rate in rates:
        assert math.isclose(rate, 0.01 * status.learning_rate_factor)
        assert math.isclose(status.learning_rate_factor, (status.batch_size / 4) ** 0.25)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_a_schedule_per_epoch_counts_epochs_and_one_per_batch_counts_progress(monkeypatch) -> None:
    # How large the batch is, and which steps are measured, is said here and does not depend on how long they take.
    monkeypatch.setattr("pollux.torch._brain.MEASURE_EVERY_MAX", 1)
    fixed = Conditions(adapts_batch=False, batch_size=64)
    monkeypatch.setattr("pollux.torch._membership.Membership.conditions", lambda _: fixed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    by_epoch = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    by_step = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-3)
    updates: list[int] = []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    wrapped, optimizer = px.wrap(model, optimizer, scheduler=[by_epoch, by_step])
    loader = px.DataLoader(Numbered(1024), batch_size=4, max_batch_size=64, per_gpu=(1, 32))
    for _ in px.epochs(4):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            by_step.step()
        by_epoch.step()
    assert by_epoch.last_epoch == 4
    assert len(updates) == 4 * 1024 // 64
    progress = px.status().baseline_steps
    assert progress > len(updates), "a step of 64 is worth more than one of 4"
    assert abs(by_step.last_epoch - progress) <= 0.05 * progress


def test_steps_end_with_the_progress_that_was_asked_for() -> None:
    model = network()
    updates: list[int] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    wrapped, optimizer = px.wrap(model, optimizer)
    loader = px.DataLoader(Numbered(100), batch_size=16, max_batch_size=16, per_gpu=(2, 16), shuffle=True)
    for batch in px.steps(40, loader):
        optimizer.zero_grad()
        loss_of(wrapped, batch).backward()
        optimizer.step()
    assert len(updates) == 40
    assert px.status().epoch == 5 and px.status().baseline_steps == 40


def test_curves_for_tensorboard_are_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("pollux.torch._brain.REPORT_PERIOD_S", 0.0)
    train(Numbered(256), wrapping={"tensorboard": tmp_path})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"pollux/efficiency", "pollux/samples_per_s", "pollux/learning_rate_factor"} <= set(events.Tags()["scalars"])


def test_evaluation_goes_past_ddp_and_state_dicts_are_the_models_own() -> None:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loop(wrapped, optimizer)
    with torch.no_grad():
        assert torch.equal(wrapped(torch.ones(2, 8)), model(torch.ones(2, 8)))
    assert list(wrapped.state_dict()) == list(model.state_dict())


def means(samples: int) -> list[float]:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    mean = px.Mean("index")
    loader = px.DataLoader(Numbered(samples), batch_size=16, max_batch_size=16, per_gpu=(2, 16))
    found = []
    for _ in px.epochs(2):
        mean.reset()
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            mean.update(batch[2].sum(), len(batch[2]))
        found.append(mean.compute())
    return found


@pytest.mark.parametrize("world_size", [1, 3])
def test_means_are_over_all_samples_of_all_processes(together, world_size) -> None:
    assert together(means, world_size, 101) == [[50.0, 50.0]] * world_size


class Sometimes(torch.nn.Module):
    """One of its parts is used in every other forward pass only."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = network(), torch.nn.Linear(8, 3)
        self.passes = 0

    def forward(self, inputs):
        self.passes += 1
        found = self.always(inputs)
        return found + self.sometimes(inputs) if self.passes % 2 else found


def everything(kind: str, per_gpu: tuple[int, int]) -> dict:
    """Trains a model that is compiled, or uses only a part of itself, with a scaler."""
    torch.manual_seed(0)
    model = Sometimes() if kind == "sometimes" else network()
    options = {"find_unused_parameters": True} if kind == "sometimes" else {}
    used = torch.compile(model, backend="aot_eager") if kind == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=16)
    wrapped, optimizer = px.wrap(used, optimizer, scaler=scaler, **options)
    loader = px.DataLoader(Numbered(500), batch_size=16, max_batch_size=16, per_gpu=per_gpu)
    updates: list[int] = []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    for _ in px.epochs(6):
        for batch in loader:
            optimizer.zero_grad()
            scaler.scale(loss_of(wrapped, batch)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
    with torch.no_grad():
        samples = Numbered(500)
        loss = float(torch.nn.functional.cross_entropy(model.eval()(samples.inputs), samples.targets))
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    return {"parameters": parameters, "scale": scaler.get_scale(), "updates": len(updates), "loss": loss}


@pytest.mark.parametrize("per_gpu", [(8, 8), (2, 2)], ids=["whole", "accumulated"])
@pytest.mark.parametrize("kind", ["plain", "compiled", "sometimes"])
def test_two_processes_with_a_scaler_stay_the_same_and_learn(together, kind, per_gpu) -> None:
    first, second = together(everything, 2, kind, per_gpu)
    for ours, theirs in zip(first["parameters"], second["parameters"], strict=True):
        assert torch.equal(ours, theirs)
    assert first["updates"] == second["updates"] == 6 * 32
    assert first["scale"] == second["scale"] == 256.0 * 2 ** (first["updates"] // 16)
    assert first["loss"] < 0.8


def in_evaluation_mode() -> dict:
    """Trains a model whose mode nobody has set back after an evaluation, with each rank's own samples."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = px.DataLoader(Numbered(64), batch_size=16, max_batch_size=16, per_gpu=(8, 8))
    wrapped.eval()
    for _ in px.epochs(2):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
    return {"parameters": [parameter.detach().clone() for parameter in model.parameters()]}


def test_ranks_stay_the_same_in_evaluation_mode(together) -> None:
    first, second = together(in_evaluation_mode, 2)
    for ours, theirs in zip(first["parameters"], second["parameters"], strict=True):
        assert torch.equal(ours, theirs)


def test_models_in_double_precision_are_measured(monkeypatch) -> None:
    monkeypatch.setattr("pollux.torch._brain.MEASURE_SHARE", 100.0)
    model = network().double()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = px.DataLoader(Numbered(200), batch_size=16, max_batch_size=16, per_gpu=(4, 16))
    for _ in px.epochs(4):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(wrapped(inputs.double()), targets).backward()
            optimizer.step()
    assert px.status().noise_scale is not None


def test_no_batch_is_too_small_for_a_batch_norm() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))
    sizes = []
    for samples in (33, 34, 35):
        wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
        loader = px.DataLoader(Numbered(samples), batch_size=16, max_batch_size=16, per_gpu=(4, 16))
        for _ in px.epochs(1):
            for batch in loader:
                optimizer.zero_grad()
                loss_of(wrapped, batch).backward()
                optimizer.step()
                sizes.append(len(batch[0]))
    assert sum(sizes) == 33 + 34 + 35 and min(sizes) >= 2


def test_a_schedule_of_a_known_length_ends_with_the_training() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=101)
    # A function that promises more than a step makes the last one go beyond the end.
    wrapped, optimizer = px.wrap(model, optimizer, scheduler=schedule, scaling=lambda context: 1.7)
    loader = px.DataLoader(Numbered(400), batch_size=16, max_batch_size=64, per_gpu=(32, 64))
    assert len(loader) == 25
    for batch in px.steps(100, loader):
        optimizer.zero_grad()
        loss_of(wrapped, batch).backward()
        optimizer.step()
        schedule.step()
    assert schedule.last_epoch == 100


def sometimes(dataset: Numbered) -> list[torch.Tensor]:
    """One step in several micro-batches, the last of which does not use all of the model."""
    torch.manual_seed(0)
    model = Sometimes()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), find_unused_parameters=True)
    loader = px.DataLoader(dataset, batch_size=16, max_batch_size=16, per_gpu=(2, 2))
    for _ in px.epochs(1):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_part_that_the_last_micro_batch_does_not_use_learns_from_those_before(together, world_size) -> None:
    dataset = Numbered(16)
    torch.manual_seed(0)
    models = [Sometimes() for _ in range(world_size)]
    share = 16 // world_size
    for rank, model in enumerate(models):
        model.load_state_dict(models[0].state_dict())
        for start in range(rank * share, (rank + 1) * share, 2):
            chosen = slice(start, start + 2)
            (loss_of(model, (dataset.inputs[chosen], dataset.targets[chosen])) / 8).backward()
    expected = []
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        expected.append(parameters[0].detach() - 0.1 * sum(parameter.grad for parameter in parameters))
    for result in together(sometimes, world_size, dataset):
        for ours, theirs in zip(result, expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_the_state_of_a_schedule_that_was_given_to_wrap_can_be_saved_by_others() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    before = scheduler.state_dict()
    px.wrap(model, optimizer, scheduler=scheduler)
    assert pickle.loads(pickle.dumps(scheduler.state_dict())) == before


def test_what_a_loop_does_besides_training_is_no_part_of_its_step(monkeypatch) -> None:
    now = iter([100.0, 107.0])
    monkeypatch.setattr("pollux.torch._clock.time.perf_counter", lambda: next(now))
    clock = StepClock()
    clock.begin()
    clock.leave_out(4.0)
    clock.end("step")
    [(_, times)] = clock.known()
    assert times.total_s == 3.0
