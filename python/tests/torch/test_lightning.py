"""Lightning's Trainer and Fabric, the real package: alone, by torchrun, and under a real scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="lightning is not installed: `make python` installs it")

from frameworks import TORCHRUN, assert_each_once, grow_and_shrink, run, shrink_and_kill, told

TRAINER = """
import json, os, sys, warnings
import lightning, torch
from pacing import pace
from pollux.lightning import ElasticStrategy
import pollux.torch as px

warnings.filterwarnings("ignore")
out, epochs, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
log = open(f"{out}/steps-{os.getpid()}", "w", buffering=1)
inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(96))

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.seen = []

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        pace(out, self.trainer.current_epoch, len(batch[2]))
        print(json.dumps([self.trainer.current_epoch, px.world_size(), batch[2].tolist()]), file=log)
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.seen.append((self.trainer.current_epoch, float(self.trainer.callback_metrics["val_loss"])))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=int(total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

lightning.seed_everything(0, verbose=False)
model = Model()
strategy = ElasticStrategy(**{"checkpoint_every_s": 1, **options.pop("strategy", {})})
trainer = lightning.Trainer(**{
    "strategy": strategy, "max_epochs": epochs, "accelerator": "cpu", "default_root_dir": f"{out}/lightning",
    "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "gradient_clip_val": 1.0, **options,
})
loader = px.DataLoader(dataset, batch_size=8, max_batch_size=32, per_gpu=(2, 8), shuffle=True)
trainer.fit(model, loader, torch.utils.data.DataLoader(dataset, batch_size=32))
sys.stdout.write("done " + json.dumps({
    "rank": px.rank(), "epoch": trainer.current_epoch, "steps": trainer.global_step, "validated": model.seen,
    "train_loss": float(trainer.callback_metrics["train_loss"]), "weights": model.layers[0].weight.flatten().tolist(),
    "saved": [bool(trainer.checkpoint_callback and os.path.exists(trainer.checkpoint_callback.best_model_path))],
}) + "\\n")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trainer") / "train.py"
    path.write_text(TRAINER)
    return path


def test_a_trainer_alone_uses_every_sample_once_validates_and_saves(script, tmp_path) -> None:
    [result] = told(run(script, tmp_path, 3))
    assert_each_once(tmp_path, 3)
    assert result["epoch"] == 3 and [epoch for epoch, _ in result["validated"]] == [0, 1, 2]
    losses = [loss for _, loss in result["validated"]]
    assert losses[-1] < losses[0] and result["saved"] == [True]


def test_two_processes_of_torchrun_share_an_epoch_and_agree(script, tmp_path) -> None:
    results = told(run(script, tmp_path, 2, launcher=TORCHRUN))
    assert_each_once(tmp_path, 2)
    assert [result.pop("rank") for result in results] == [0, 1]
    saved = [result.pop("saved") for result in results]
    assert saved[0] == [True] and results[0] == results[1]


def test_a_trainer_grows_and_shrinks_in_place_and_uses_every_sample_once(script, tmp_path) -> None:
    grow_and_shrink(tmp_path / "out", script, epochs=40)


def test_a_scheduler_takes_a_gpu_from_a_trainer_and_it_survives_a_kill(script, tmp_path) -> None:
    shrink_and_kill(tmp_path, script, epochs=40)


FABRIC = """
import json, os, sys
import lightning, torch
from pacing import pace
from pollux.lightning import ElasticFabricStrategy
import pollux.torch as px

out, epochs = sys.argv[1], int(sys.argv[2])
strategy = ElasticFabricStrategy(checkpoint_dir=f"{out}/checkpoints", checkpoint_every_s=1)
fabric = lightning.Fabric(accelerator="cpu", strategy=strategy)
fabric.launch()
log = open(f"{out}/steps-{os.getpid()}", "w", buffering=1)
inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(96))
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=24)
model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
loader = px.DataLoader(dataset, batch_size=8, max_batch_size=32, per_gpu=(2, 8), shuffle=True)
evaluation = fabric.setup_dataloaders(torch.utils.data.DataLoader(dataset, batch_size=32))
for epoch in px.epochs(epochs):
    for batch in loader:
        x, y, numbers = fabric.to_device(batch)
        pace(out, epoch, len(numbers))
        optimizer.zero_grad()
        fabric.backward(torch.nn.functional.mse_loss(model(x), y))
        fabric.clip_gradients(model, optimizer, max_norm=10.0)
        optimizer.step()
        scheduler.step()
        print(json.dumps([epoch, px.world_size(), numbers.tolist()]), file=log)
    with torch.no_grad():
        error = fabric.all_reduce(sum((model(x) - y).square().sum() for x, y, _ in evaluation))
assert fabric.is_global_zero == (px.rank() == 0)
result = {"rank": fabric.global_rank, "error": float(error), "keys": list(model.state_dict())}
sys.stdout.write("done " + json.dumps(result) + "\\n")
"""


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fabric") / "train.py"
    path.write_text(FABRIC)
    return path


def test_a_loop_of_fabric_alone_uses_every_sample_once(loop, tmp_path) -> None:
    [result] = told(run(loop, tmp_path / "out", 2))
    assert_each_once(tmp_path / "out", 2)
    assert result["error"] < 96 * 8 / 2


def test_a_loop_of_fabric_grows_and_shrinks_in_place(loop, tmp_path) -> None:
    grow_and_shrink(tmp_path / "out", loop, epochs=40)


def test_a_scheduler_takes_a_gpu_from_a_loop_of_fabric_and_it_survives_a_kill(loop, tmp_path) -> None:
    shrink_and_kill(tmp_path, loop, epochs=40)


def test_a_loop_of_fabric_shares_an_epoch_between_two_processes(loop, tmp_path) -> None:
    results = told(run(loop, tmp_path / "out", 2, launcher=TORCHRUN))
    assert_each_once(tmp_path / "out", 2)
    assert [result.pop("rank") for result in results] == [0, 1] and results[0] == results[1]
    assert results[0]["error"] < 96 * 8 / 2 and results[0]["keys"] == ["weight", "bias"]


def test_what_cannot_work_is_refused_in_one_line(tmp_path) -> None:
    import lightning
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset, RandomIterableDataset

    import pollux.torch as px
    import torch
    from pollux.lightning import ElasticFabricStrategy, ElasticStrategy

    class Several(BoringModel):
        automatic_optimization = False

        def configure_optimizers(self):
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

    def refused(message, loader=None, model=None, fit=None, **options):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}
        trainer = lightning.Trainer(
            accelerator="cpu", strategy=ElasticStrategy(), default_root_dir=tmp_path, **{**quiet, **options}
        )
        with pytest.raises(px.UsageError) as error:
            default = px.DataLoader(RandomDataset(32, 8), 4)
            trainer.fit(model or BoringModel(), default if loader is None else loader, **(fit or {}))
        assert str(error.value) == message

    whole = "every sample of an epoch is used; leave it out"
    refused(
        "accumulate_grad_batches=4 with Pollux: give px.DataLoader the whole batch, and per_gpu what fits; "
        "leave it out",
        accumulate_grad_batches=4,
    )
    refused("max_steps=10 with Pollux: steps change their size; give max_epochs", max_steps=10)
    refused(f"limit_train_batches=0.5 with Pollux: {whole}", limit_train_batches=0.5)
    refused("max_epochs=-1 with Pollux; expected whole numbers from 1", max_epochs=-1)
    refused(
        "val_check_interval=0.25 with Pollux: nobody knows how many batches an epoch has; expected 1.0 and whole "
        "numbers of batches",
        val_check_interval=0.25,
    )
    refused(
        "ckpt_path='last.ckpt' with Pollux: a training goes on by itself from checkpoint_dir; leave it out",
        fit={"ckpt_path": "last.ckpt"},
    )
    refused(
        "an iterable dataset with Pollux and Lightning, which has to know the last batch of an epoch; expected "
        "datasets with len() and indices",
        loader=px.DataLoader(RandomIterableDataset(32, 8), 4),
    )
    refused(
        "a DataLoader for training with Pollux; expected a px.DataLoader",
        loader=torch.utils.data.DataLoader(RandomDataset(32, 8)),
    )
    refused("2 optimisers with Pollux; expected one", model=Several())
    fabric = lightning.Fabric(accelerator="cpu", strategy=ElasticFabricStrategy())
    with pytest.raises(px.UsageError) as error:
        fabric.setup(torch.nn.Linear(2, 1))
    assert str(error.value).startswith("fabric.setup of a model without its optimiser and Pollux")
