"""A small transformer learns to write like the manual of Python, character by character.

The text is the one behind `help("if")`. Runs alone, under torchrun and under `pollux submit`; README.md says how.
"""

import argparse
import math
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import pollux.torch as px

CONTEXT = 64
BATCH_SIZE = 16
WARMUP_STEPS = 20

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=250, help="steps of the batch above, or as much progress")
arguments = parser.parse_args()


class Windows(Dataset[Tensor]):
    """Pieces of a text, each with the character that follows it."""

    def __init__(self, text: bytes):
        self.codes = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.codes) - 1) // CONTEXT

    def __getitem__(self, idx: int) -> Tensor:
        return self.codes[idx * CONTEXT : (idx + 1) * CONTEXT + 1].long()


class Writer(nn.Module):
    """Two layers of causal attention over bytes."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.characters = nn.Embedding(256, width)
        self.places = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, codes: Tensor) -> Tensor:
        """Scores of the next character, at every place."""
        return self.head(self.layers(self.characters(codes) + self.places, mask=self.mask, is_causal=True))


def rate(step: int) -> float:
    """Warm-up, then half a cosine."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 0.5 * (1 + math.cos(math.pi * min(1.0, step / arguments.steps)))


def loss_of(windows: Tensor) -> Tensor:
    windows = windows.to(device)
    with torch.autocast(device.type, enabled=has_gpu):
        scores = model(windows[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


def evaluate(epochs: int) -> None:
    """Every process looks at its own part of the held-out text; the mean is over all of them."""
    model.eval()
    with torch.no_grad():
        part = held_out[px.rank() :: px.world_size()]
        held_out_loss.update(loss_of(part) * len(part), len(part))
    model.train()
    history.append(held_out_loss.compute())
    held_out_loss.reset()
    if px.rank() == 0:
        now = px.status()
        print(
            f"{now.baseline_steps:.0f} steps, {epochs} epochs: loss {history[-1]:.3f}, batch {now.batch_size}, "
            f"GPUs {now.world_size}, learning rate x{now.learning_rate_factor:.2f}",
            flush=True,
        )


torch.manual_seed(0)
device, has_gpu = px.device(), torch.cuda.is_available()
text = "".join(topics[name] for name in sorted(topics)).encode()
written, unseen = Windows(text[:64_000]), Windows(text[-8_000:])
held_out = torch.stack([unseen[idx] for idx in range(len(unseen))])

model = Writer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
scaler = torch.amp.GradScaler(device.type, enabled=has_gpu)
model, optimizer = px.wrap(model, optimizer, scheduler=scheduler, scaler=scaler)
loader = px.DataLoader(written, BATCH_SIZE, max_batch_size=128, per_gpu=(4, 64), shuffle=True)
held_out_loss = px.Mean("held-out loss")
history: list[float] = []
px.checkpoint_state(history=history)

for windows in px.steps(arguments.steps, loader):
    # The history is shared, so that a process which joins evaluates when the others do.
    if px.status().epoch > len(history):
        evaluate(px.status().epoch)
    loss = loss_of(windows)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    # Called for every batch, the schedule follows the progress: a step of a larger batch counts for more.
    scheduler.step()
evaluate(px.status().epoch + 1)
