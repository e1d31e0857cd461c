"""A network learns to imitate another one from samples that are made while it trains: a stream, and no epochs.

Runs alone, under torchrun and under `pollux submit`; README.md says how.
"""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import pollux.torch as px

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000, help="steps of 64 samples, or as much progress")
arguments = parser.parse_args()


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1))


class Lessons(IterableDataset[tuple[Tensor, Tensor]]):
    """What the teacher answers, with some noise. Every pass over the stream brings other questions."""

    def __init__(self, teacher: nn.Module):
        self.teacher = teacher
        self.passes = 0

    def set_epoch(self, epoch: int) -> None:
        self.passes = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.passes)
        for _ in range(100):
            questions = torch.randn(256, 16, generator=generator)
            with torch.no_grad():
                answers = self.teacher(questions) + 0.1 * torch.randn(256, 1, generator=generator)
            yield from zip(questions, answers)


torch.manual_seed(0)
device = px.device()
teacher, student = network(8), network(64).to(device)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
student, optimizer = px.wrap(student, optimizer)
loader = px.DataLoader(Lessons(teacher), batch_size=64, max_batch_size=2048, per_gpu=(16, 1024))

error = px.Mean("error")
reports: list[float] = []
px.checkpoint_state(reports=reports)

for questions, answers in px.steps(arguments.steps, loader):
    questions, answers = questions.to(device), answers.to(device)
    loss = nn.functional.mse_loss(student(questions), answers)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    error.update(loss.detach() * len(questions), len(questions))

    # Ten lines in all. What has been reported is shared, so that a process which joins reports when the others do.
    now = px.status()
    if now.baseline_steps >= (len(reports) + 1) * arguments.steps / 10:
        reports.append(error.compute())
        error.reset()
        if px.rank() == 0:
            print(
                f"{now.baseline_steps:.0f}/{arguments.steps} steps, {now.samples} samples: error {reports[-1]:.4f}, "
                f"batch {now.batch_size}, GPUs {now.world_size}, learning rate x{now.learning_rate_factor:.2f}",
                flush=True,
            )
