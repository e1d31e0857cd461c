"""A classifier of wines: an average of its steps is evaluated after every epoch, the best one is kept, and the training
ends when none was better for a while.

Runs alone, under torchrun and under `pollux submit`; README.md says how.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import pollux.torch as px

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--patience", type=int, default=10, help="epochs without a better one")
parser.add_argument("--output", type=Path, default=Path("best.pt"))
arguments = parser.parse_args()

torch.manual_seed(0)
device = px.device()
wine = load_wine()
inputs = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0), dtype=torch.float32)
targets = torch.tensor(wine.target)
order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
train, held_out = order[:128], order[128:]

model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)).to(device)
model, optimizer = px.wrap(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
loader = px.DataLoader(
    TensorDataset(inputs[train], targets[train]), 8, max_batch_size=32, per_gpu=(2, 32), shuffle=True
)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
# All processes know the losses, so all of them end at the same epoch.
losses: list[float] = []
px.checkpoint_state(average=average, losses=losses)
held_out_loss = px.Mean("held-out loss")

for epoch in px.epochs(arguments.epochs):
    model.train()
    for batch_inputs, batch_targets in loader:
        loss = nn.functional.cross_entropy(model(batch_inputs.to(device)), batch_targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # Between the micro-batches of a step nothing has changed.
        if px.is_step_end():
            average.update_parameters(model)

    average.eval()
    with torch.no_grad():
        part = held_out[px.rank() :: px.world_size()]
        found = average(inputs[part].to(device))
        held_out_loss.update(nn.functional.cross_entropy(found, targets[part].to(device), reduction="sum"), len(part))
    losses.append(held_out_loss.compute())
    held_out_loss.reset()
    best = min(range(len(losses)), key=losses.__getitem__)
    if px.rank() == 0:
        print(f"epoch {epoch + 1}/{arguments.epochs}: loss {losses[-1]:.4f} (best {losses[best]:.4f})", flush=True)
        if best == len(losses) - 1:
            torch.save(average.module.state_dict(), arguments.output)
    if len(losses) - best > arguments.patience:
        break
