"""A small convolutional network learns to read scikit-learn's handwritten digits, with Lightning's Trainer.

Runs alone, under torchrun and under `pollux submit`; README.md says how.
"""

import argparse

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pollux.torch as px
from pollux.lightning import ElasticStrategy

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()


class Reader(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.layers(batch[0]).argmax(1) == batch[1]).float().mean())

    def on_train_epoch_end(self) -> None:
        now = px.status()
        if self.trainer.is_global_zero:
            print(
                f"epoch {self.current_epoch + 1}/{arguments.epochs}: "
                f"accuracy {self.trainer.callback_metrics['accuracy']:.3f}, batch {now.batch_size}, "
                f"GPUs {now.world_size}, learning rate x{now.learning_rate_factor:.2f}",
                flush=True,
            )

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)]


lightning.seed_everything(0, verbose=False)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, held_out = order[:1400], order[1400:]

loader = px.DataLoader(
    TensorDataset(images[train], labels[train]), batch_size=16, max_batch_size=128, per_gpu=(4, 128), shuffle=True
)
trainer = lightning.Trainer(
    strategy=ElasticStrategy(),
    max_epochs=arguments.epochs,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Reader(), loader, DataLoader(TensorDataset(images[held_out], labels[held_out]), batch_size=512))
