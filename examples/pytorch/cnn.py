"""A small convolutional network learns to read scikit-learn's handwritten digits.

Runs alone, under torchrun and under `pollux submit`; README.md says how.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import pollux.torch as px

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()

torch.manual_seed(0)
device = px.device()

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, held_out = order[:1400], order[1400:]

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [arguments.epochs // 2, arguments.epochs * 3 // 4])

model, optimizer = px.wrap(model, optimizer, scheduler=scheduler)
loader = px.DataLoader(
    TensorDataset(images[train], labels[train]), batch_size=16, max_batch_size=128, per_gpu=(4, 128), shuffle=True
)

accuracy = px.Mean("accuracy")
history: list[float] = []
px.checkpoint_state(history=history)

for epoch in px.epochs(arguments.epochs):
    model.train()
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()

    # Every process looks at its own part of the held-out digits; the mean is over all of them.
    model.eval()
    with torch.no_grad():
        part = held_out[px.rank() :: px.world_size()]
        found = model(images[part].to(device)).argmax(1).cpu()
        accuracy.update((found == labels[part]).sum(), len(part))
    history.append(accuracy.compute())
    accuracy.reset()

    if px.rank() == 0:
        now = px.status()
        print(
            f"epoch {epoch + 1}/{arguments.epochs}: accuracy {history[-1]:.3f} (best {max(history):.3f}), "
            f"batch {now.batch_size}, GPUs {now.world_size}, learning rate x{now.learning_rate_factor:.2f}",
            flush=True,
        )
