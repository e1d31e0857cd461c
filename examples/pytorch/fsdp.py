"""A residual network, sharded by FSDP2, learns to read scikit-learn's handwritten digits.

Runs alone, under torchrun and under `pollux submit`; docs/python/fsdp.md says how.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import pollux.torch as px

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--shards", type=int, help="processes of a replica")
arguments = parser.parse_args()

torch.manual_seed(0)
device = px.device()
mesh = px.shard_mesh(arguments.shards)

digits = load_digits()
pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, held_out = order[:1400], order[1400:]


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.layers(inputs)


model = nn.Sequential(*(Block(64) for _ in range(2)), nn.Linear(64, 10)).to(device)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

model, optimizer = px.wrap(model, optimizer)
loader = px.DataLoader(
    TensorDataset(pixels[train], labels[train]), batch_size=16, max_batch_size=128, per_gpu=(4, 64), shuffle=True
)
accuracy = px.Mean("accuracy")

for epoch in px.epochs(arguments.epochs):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    # Every process looks at its own part, and all that share the model are in it together.
    with torch.no_grad():
        part = held_out[px.rank() :: px.world_size()]
        found = model(pixels[part].to(device)).argmax(1).cpu()
        accuracy.update((found == labels[part]).sum(), len(part))
    value, now = accuracy.compute(), px.status()
    accuracy.reset()
    if px.rank() == 0:
        print(
            f"epoch {epoch + 1}/{arguments.epochs}: accuracy {value:.3f}, batch {now.batch_size}, "
            f"GPUs {now.world_size} in replicas of {mesh.size()}, learning rate x{now.learning_rate_factor:.2f}",
            flush=True,
        )
