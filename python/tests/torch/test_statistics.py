"""The noise scale against one that is computed from the gradient of every single sample."""

import pytest
from trainings import Numbered, loss_of, network

import pollux.torch as px
import torch
from pollux._elastic import deal
from pollux.torch import _brain
from pollux.torch._process import current

SIZE = 1024
TOLERANCE = 0.10


def exact_noise_scale(model: torch.nn.Module, dataset: Numbered, divisors: list[torch.Tensor] | None) -> float:
    """Trace of the covariance of per-sample gradients over the squared norm of their mean."""
    total, squares = None, 0.0
    for idx in range(len(dataset)):
        inputs, target, _ = dataset[idx]
        model.zero_grad()
        loss_of(model, (inputs[None], target[None])).backward()
        parts = [parameter.grad for parameter in model.parameters()]
        if divisors is not None:
            parts = [part / divisor for part, divisor in zip(parts, divisors)]
        gradient = torch.cat([part.flatten() for part in parts]).double()
        total = gradient if total is None else total + gradient
        squares += float(gradient.square().sum())
    mean_sqr = float((total / len(dataset)).square().sum())
    variance = (squares / len(dataset) - mean_sqr) * len(dataset) / (len(dataset) - 1)
    return variance / mean_sqr


def measure(name: str, epochs: int, accumulate: bool = False, bucket_mb: float = 25) -> tuple[float, float]:
    """Noise scale as Pollux estimates it, and as it is, of a model that stays as it is."""
    # As many steps are measured as can be, whatever that costs: fewer would only need more of them to be as sure.
    _brain.MEASURE_SHARE = 100.0
    deal.SPLIT_EVERY_LATER = deal.SPLIT_EVERY
    model = network()
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    optimizer = kinds[name](model.parameters(), lr=0.0)
    wrapped, optimizer = px.wrap(model, optimizer, bucket_cap_mb=bucket_mb)
    dataset = Numbered(SIZE)
    bounds = (4, 4) if accumulate else (4, 64)
    loader = px.DataLoader(dataset, batch_size=16, max_batch_size=16, per_gpu=bounds, shuffle=True)
    for _ in px.epochs(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
    divisors = None
    if name == "adamw":
        states = [optimizer.state[parameter] for parameter in model.parameters()]
        divisors = [(state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt() + 1e-8 for state in states]
    estimate = px.status().noise_scale
    return estimate or 0.0, exact_noise_scale(model, dataset, divisors) if px.rank() == 0 else 0.0


@pytest.mark.parametrize(("name", "world_size"), [("sgd", 1), ("sgd", 2), ("sgd", 4), ("adamw", 1), ("adamw", 2)])
def test_the_noise_scale_is_that_of_the_samples_for_any_number_of_processes(together, name, world_size) -> None:
    estimate, exact = together(measure, world_size, name, 16)[0]
    assert abs(estimate / exact - 1) < TOLERANCE, f"{estimate:.1f} instead of {exact:.1f}"


def test_accumulated_gradients_have_the_same_noise(together) -> None:
    estimate, exact = together(measure, 2, "sgd", 16, True)[0]
    assert abs(estimate / exact - 1) < TOLERANCE, f"{estimate:.1f} instead of {exact:.1f}"


class Offset(torch.nn.Module):
    """As far from each sample as its parameters are, so that the gradients of samples vary as the samples do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.place = torch.nn.Parameter(torch.zeros(width))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return (self.place - samples).square().sum(1).mean() / 2


def variance_of_large_steps(width: int) -> float:
    """Variance of a sample's gradient as Pollux estimates it, of a model that jumps to and fro."""
    model = Offset(width)
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=1.5))
    samples = torch.randn(SIZE, width, generator=torch.Generator().manual_seed(0))
    loader = px.DataLoader(torch.utils.data.TensorDataset(samples), batch_size=16, per_gpu=(4, 64), shuffle=True)
    for _ in px.epochs(8):
        for (batch,) in loader:
            optimizer.zero_grad()
            wrapped(batch).backward()
            optimizer.step()
    _, variance = current().brain._agent.noise()
    return 16 * variance


def test_a_model_that_moves_is_not_taken_for_noise(together) -> None:
    [variance] = together(variance_of_large_steps, 1, 32)
    assert abs(variance / 32 - 1) < TOLERANCE, f"{variance:.1f} instead of 32"


def test_gradients_in_several_buckets_are_measured_whole(together) -> None:
    estimate, exact = together(measure, 2, "sgd", 16, False, 0.001)[0]
    assert abs(estimate / exact - 1) < TOLERANCE, f"{estimate:.1f} instead of {exact:.1f}"
