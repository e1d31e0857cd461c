"""A generator learns to draw points on a ring from a discriminator that tells them from real ones: two models, two
optimisers, one training.

Runs alone, under torchrun and under `pollux submit`; README.md says how.
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import pollux.torch as px

NOISE = 8

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def judge(points: Tensor, is_real: bool) -> Tensor:
    verdict = discriminator(points)
    return nn.functional.binary_cross_entropy_with_logits(verdict, torch.full_like(verdict, float(is_real)))


torch.manual_seed(0)
device = px.device()
angles = 2 * math.pi * torch.rand(4096)
ring = torch.stack([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(4096, 2)

generator, discriminator = network(NOISE, 2).to(device), network(2, 1).to(device)
# The gradients of the first model decide how large a batch pays.
(generator, discriminator), (generator_optimizer, discriminator_optimizer) = px.wrap(
    [generator, discriminator],
    [torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999)) for model in (generator, discriminator)],
)
loader = px.DataLoader(TensorDataset(ring), batch_size=64, max_batch_size=512, per_gpu=(16, 512), shuffle=True)
distance = px.Mean("distance")

for epoch in px.epochs(arguments.epochs):
    for (real,) in loader:
        real = real.to(device)
        fake = generator(torch.randn(len(real), NOISE, device=device))

        discriminator_optimizer.zero_grad()
        # One backward pass: the losses are added.
        (judge(real, True) + judge(fake.detach(), False)).backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        judge(fake, True).backward()
        generator_optimizer.step()

        distance.update((fake.detach().norm(dim=1) - 1).abs().sum(), len(fake))
    mean = distance.compute()
    distance.reset()
    if px.rank() == 0:
        now = px.status()
        print(
            f"epoch {epoch + 1}/{arguments.epochs}: distance from the ring {mean:.3f}, batch {now.batch_size}, "
            f"GPUs {now.world_size}, learning rate x{now.learning_rate_factor:.2f}",
            flush=True,
        )
