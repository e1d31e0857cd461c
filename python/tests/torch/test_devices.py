"""What GPUs need, as far as it can be seen where there is none: who waits for what, and in which order."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch.distributed as dist
from trainings import Numbered, loss_of, network

import pollux.torch as px
import torch
from pollux.torch import _clock, _early, _failures, _group, _streams
from pollux.torch._errors import LostError
from pollux.torch._gradients import GradientReader, StepPlan
from pollux.torch._preconditioner import Preconditioner
from pollux.torch._process import current


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int, **environment: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for name in ("LOCAL_RANK", "POLLUX_REPLICA_ID", "POLLUX_SHARD_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("count", "environment", "index"),
    [
        (4, {}, 0),
        (4, {"LOCAL_RANK": "3"}, 3),
        # Whoever shows a process one GPU has chosen it.
        (1, {"LOCAL_RANK": "3"}, 0),
        (2, {"LOCAL_RANK": "3", "POLLUX_REPLICA_ID": "7"}, 0),
        (2, {"LOCAL_RANK": "3", "POLLUX_REPLICA_ID": "7", "POLLUX_SHARD_RANK": "1"}, 1),
    ],
)
def test_a_process_takes_the_gpu_that_is_its_own(monkeypatch, count, environment, index) -> None:
    pretend_gpus(monkeypatch, count, **environment)
    assert px.device() == torch.device("cuda", index)


def test_a_process_without_a_gpu_of_its_own_does_not_take_anothers(monkeypatch) -> None:
    pretend_gpus(monkeypatch, 2, LOCAL_RANK="2")
    with pytest.raises(px.UsageError, match="LOCAL_RANK 2, but this process sees 2 GPUs; expected at most one"):
        px.device()


def test_a_slot_without_gpus_trains_on_the_processor(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert px.device() == torch.device("cpu")


def test_two_ranks_on_one_gpu_are_refused_before_they_meet() -> None:
    store = dist.HashStore()
    store.set("gpu/0", "GPU-a")
    with pytest.raises(px.UsageError, match=r"ranks 1 and 0 are on the same GPU \(GPU-a\); expected one process"):
        _group.refuse_shared_gpu(store, 1, 2, "GPU-a")
    _group.refuse_shared_gpu(store, 1, 2, "GPU-b")


def test_a_model_on_another_gpu_than_its_group_met_for_is_refused() -> None:
    met, other = torch.device("cuda", 0), torch.device("cuda", 1)
    with pytest.raises(px.UsageError, match="the model is on cuda:1, but the processes have met for cuda:0; put it on"):
        _group.refuse_other_gpu(met, other)
    for model in (met, torch.device("cpu")):
        _group.refuse_other_gpu(met, model)


def test_processes_that_meet_before_there_is_a_model_meet_for_their_gpu(monkeypatch) -> None:
    gpu, entered = torch.device("cuda", 3), []
    monkeypatch.setattr(_early, "device", lambda: gpu)
    monkeypatch.setattr(_early, "_met", None)
    monkeypatch.setattr(_early.Membership, "enter_early", lambda self: entered.append(self.device))
    _early.meet_early()
    assert entered == [gpu]


class FakeStream:
    """Writes down what it is told."""

    def __init__(self, name: str, log: list[str]):
        self.name, self._log = name, log

    def record_event(self) -> str:
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self._log.append(f"{self.name} waits for {event}")


class FakeGpuTensor:
    """A tensor that says it is on a GPU."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, log: list[str]):
        self._log = log

    def record_stream(self, stream: FakeStream) -> None:
        self._log.append(f"kept for {stream.name}")


def test_a_tensor_of_another_stream_is_waited_for_and_kept(monkeypatch) -> None:
    log: list[str] = []
    at_hand = FakeStream("backward", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: at_hand)
    tensor: Any = FakeGpuTensor(log)
    handed = _streams.Handed(tensor)
    at_hand = FakeStream("main", log)
    assert handed.here() is tensor
    assert log == ["main waits for event of backward", "kept for main"]


class FakeEvent:
    """An event of a GPU whose time a test decides."""

    made: list[FakeEvent] = []

    def __init__(self, enable_timing: bool):
        assert enable_timing
        self.at_ms: float | None = None
        FakeEvent.made.append(self)

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.at_ms is not None

    def elapsed_time(self, later: FakeEvent) -> float:
        assert self.at_ms is not None and later.at_ms is not None
        return later.at_ms - self.at_ms


def test_steps_on_a_gpu_are_timed_by_its_events_and_told_of_when_they_are_past(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    FakeEvent.made = []
    clock: _clock.StepClock[str] = _clock.StepClock()
    clock.use(torch.device("cuda", 0))
    for name in ("first", "second"):
        clock.begin()
        clock.computed()
        clock.synced()
        clock.end(name)
    # The program is two steps ahead of the GPU.
    assert list(clock.known()) == []
    for event, at_ms in zip(FakeEvent.made, (0.0, 60.0, 80.0, 100.0)):
        event.at_ms = at_ms
    [(name, times)] = clock.known()
    assert (name, round(times.compute_s, 6), round(times.sync_s, 6)) == ("first", 0.08, 0.02)
    for event, at_ms in zip(FakeEvent.made[4:], (110.0, 160.0, 200.0, 210.0)):
        event.at_ms = at_ms
    # From the end of the first: what it waits for its batch counts.
    [(name, times)] = clock.known()
    assert (name, round(times.total_s, 6), round(times.sync_s, 6)) == ("second", 0.11, 0.04)
    clock.begin()
    clock.end("of a group that is over")
    clock.restart()
    assert list(clock.known()) == []


class NoSync(torch.utils._python_dispatch.TorchDispatchMode):
    """Refuses whatever would read a tensor's number, for which a program waits on a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor's number was read"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("scaled", [False, True])
def test_no_measured_step_reads_a_number_until_the_check_in(scaled) -> None:
    model = network()
    # Like a fused or capturable one on a GPU, which keeps its steps there.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for _ in range(25):
        loss_of(model, (torch.randn(4, 8), torch.zeros(4, dtype=torch.long))).backward()
        optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    reader = GradientReader(
        _clock.StepClock(), Preconditioner(optimizer), lambda device: scaler.scale(torch.ones((), device=device))
    )
    reader.reset()
    parameters = list(model.parameters())
    scaler.scale(torch.ones(()))
    with NoSync():
        reader.begin(StepPlan(micro_batches=2, measure=True))
        for parameter in parameters:
            reader.read_part(parameter, parameter.grad)
        reader.begin_sync()
        reader.end_sync(parameters)
        reader.keep()
    assert reader.plan.measure
    norms = reader.take_norms()
    # Two equal halves, of which one was read.
    [mean_sqr] = norms.mean_sqr
    assert mean_sqr > 0
    assert norms.own_sqr == pytest.approx([mean_sqr / 2], rel=1e-5)


def test_steps_that_an_optimiser_keeps_elsewhere_are_counted_on_between_check_ins() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.01)
    preconditioner = Preconditioner(optimizer)
    for step in range(1, 25):
        weight.grad = torch.full((3,), 2.0)
        optimizer.step()
        assert preconditioner.is_settled() == (step >= 20)
        if step in (1, 7):
            preconditioner.read_steps()
    # Equal gradients: whatever the bias, Adam divides by their size.
    [denominators] = preconditioner.denominators([weight])
    torch.testing.assert_close(denominators, torch.full((3,), 2.0))


def test_half_precision_moments_and_gradients_have_finite_norms() -> None:
    weight = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float16))
    optimizer = torch.optim.AdamW([weight], lr=0.01)
    for _ in range(25):
        weight.grad = torch.full_like(weight, 1e-2)
        optimizer.step()
    reader = GradientReader(_clock.StepClock(), Preconditioner(optimizer), lambda _device: None)
    reader.reset()
    reader.begin(StepPlan(measure=True))
    # Its square is beyond what sixteen bits can say.
    weight.grad = torch.full_like(weight, 500.0)
    reader.read_part(weight, weight.grad)
    reader.begin_sync()
    reader.end_sync([weight])
    reader.keep()
    norms = reader.take_norms()
    assert 0 < norms.mean_sqr[0] < float("inf") and norms.own_sqr == norms.mean_sqr


class FakeMark:
    """A moment that a GPU has come to, or not."""

    def __init__(self, is_past: bool):
        self.is_past = lambda: is_past


@pytest.mark.parametrize(("arrival", "has_arrived"), [(None, True), (FakeMark(True), True), (FakeMark(False), False)])
def test_a_mean_that_never_came_is_found_out_within_a_limit(arrival, has_arrived) -> None:
    reader = GradientReader(_clock.StepClock(), None, lambda _device: None)
    reader._arrival = arrival
    assert reader.has_arrived(limit_s=0.05) == has_arrived


@pytest.mark.parametrize(("handling", "has_arrived"), [(None, True), ("3", True), ("2", False), ("1", False)])
def test_no_mean_has_arrived_for_sure_where_nccl_gives_up_by_itself(monkeypatch, handling, has_arrived) -> None:
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    if handling is not None:
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", handling)
    monkeypatch.setattr(_clock.GpuMark, "is_past", lambda _mark: True)
    reader = GradientReader(_clock.StepClock(), None, lambda _device: None)
    reader._arrival = _clock.GpuMark.__new__(_clock.GpuMark)
    assert reader.has_arrived() == has_arrived


@pytest.mark.parametrize("has_arrived", [True, False])
def test_communicators_are_given_up_before_parameters_are_read(monkeypatch, tmp_path, has_arrived) -> None:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=tmp_path)
    loader = px.DataLoader(Numbered(64), batch_size=16)
    order: list[str] = []
    for _ in px.epochs(1):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            session = current()
            monkeypatch.setattr(session.reader, "has_arrived", lambda: order.append("look") or has_arrived)
            monkeypatch.setattr(session.group, "abort", lambda: order.append("give up"))
            monkeypatch.setattr(session.archive, "save", lambda: order.append("save"))
            assert _failures._code(session, _failures.Failure.LOST, LostError("connection closed")) == 75
            # What a GPU did with sums that never came is no state to go on with.
            assert order == ["look", "give up", "save"][: 3 if has_arrived else 2]
            break
        break


def test_a_group_of_gpus_is_made_for_its_device_and_forms_while_the_training_stands(monkeypatch) -> None:
    told: list[Any] = []

    class Met:
        is_completed = staticmethod(lambda: True)

    def all_reduce(tensor: Any, async_op: bool = False) -> Any:
        told.append(("sum on", str(tensor.device)))
        return Met() if async_op else None

    def zeros(*shape: int, device: Any) -> torch.Tensor:
        told.append(("zeros on", str(device)))
        return torch.empty(*shape, device="meta")

    monkeypatch.setattr(_group, "gpu_of", lambda _device: f"GPU-{len(told)}")
    monkeypatch.setattr(_group.dist, "init_process_group", lambda *_, **options: told.append(options["device_id"]))
    monkeypatch.setattr(_group.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(_group.torch, "zeros", zeros)
    monkeypatch.setattr(_group, "_set_timeout", lambda _timeout: told.append("formed"))
    store = dist.HashStore()
    store.set("gpu/0", "GPU-of-another")
    members = [_group.Member(0, 0), _group.Member(1, 1)]
    gpu = torch.device("cuda", 1)
    _group.Group(1, members, store, gpu)
    assert told == [gpu, ("sum on", "cpu"), ("zeros on", "cuda:1"), ("sum on", "meta"), "formed"]


def changed() -> tuple[bool, bool, bool]:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = px.DataLoader(Numbered(64), batch_size=16)
    for _ in px.epochs(1):
        for idx, batch in enumerate(loader):
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            if idx == 1:
                session = current()
                before, gradient = weakref.ref(session.parts[0].ddp), weakref.ref(model[0].weight.grad)
                gc.disable()
                try:
                    session.transition.regroup()
                    kept = before() is not None, gradient() is not None
                finally:
                    gc.enable()
                return *kept, any(parameter.grad is not None for parameter in model.parameters())
    raise AssertionError("an epoch has two steps")


def test_a_change_keeps_neither_the_last_gradients_nor_their_buckets(together) -> None:
    assert together(changed, 2) == [(False, False, False)] * 2
