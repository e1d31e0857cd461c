"""Hugging Face's Trainer and Accelerate, the real packages: alone, by torchrun, and under a real scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: `make python` installs it")

from frameworks import SAMPLES, TORCHRUN, assert_each_once, counts, grow_and_shrink, run, shrink_and_kill, told

TRAINER = """
import json, os, sys
import torch, transformers
from pacing import pace
from pollux.huggingface import Trainer, TrainingArguments
import pollux.torch as px

out, epochs, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
config = transformers.GPT2Config(
    vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
)
model = transformers.GPT2LMHeadModel(config)
rows = torch.randint(16, (96, 1), generator=torch.Generator().manual_seed(1)).repeat(1, 6)
dataset = [{"input_ids": row, "labels": row, "number": torch.tensor(idx)} for idx, row in enumerate(rows)]
log = open(f"{out}/steps-{os.getpid()}", "w", buffering=1)

class Recording(Trainer):
    def training_step(self, model, inputs, *args):
        numbers = inputs.pop("number").tolist()
        pace(out, px.status().epoch, len(numbers))
        loss = super().training_step(model, inputs, *args)
        print(json.dumps([px.status().epoch, px.world_size(), numbers]), file=log)
        return loss

arguments = TrainingArguments(**{
    "output_dir": f"{out}/models", "num_train_epochs": epochs, "batch_size": 8, "max_batch_size": 32,
    "per_device_train_batch_size": 8, "per_device_train_batch_size_min": 2, "learning_rate": 0.01, "logging_steps": 5,
    "eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1, "use_cpu": True, "report_to": [],
    "disable_tqdm": True, "remove_unused_columns": False, "dataloader_pin_memory": False, "checkpoint_every_s": 1,
    **options,
})
held_out = [{"input_ids": row, "labels": row} for row in rows[:8]]
trainer = Recording(model, arguments, train_dataset=dataset, eval_dataset=held_out)
result = trainer.train()
state = trainer.state
sys.stdout.write("done " + json.dumps({
    "rank": px.rank(), "steps": state.global_step, "max_steps": state.max_steps, "epoch": state.epoch,
    "loss": result.training_loss, "logs": state.log_history, "saved": sorted(os.listdir(f"{out}/models")),
}) + "\\n")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trainer") / "train.py"
    path.write_text(TRAINER)
    return path


def test_a_trainer_alone_uses_every_sample_once_logs_evaluates_and_saves(script, tmp_path) -> None:
    [result] = told(run(script, tmp_path, 3))
    assert_each_once(tmp_path, 3)
    assert result["max_steps"] == 36 and result["epoch"] == 3.0 and 0 < result["steps"] <= 36
    losses = [entry["loss"] for entry in result["logs"] if "loss" in entry]
    evaluations = [entry["eval_loss"] for entry in result["logs"] if "eval_loss" in entry]
    assert losses[-1] < losses[0] and len(evaluations) == 3 and evaluations[-1] < evaluations[0]
    assert all(entry["batch_size"] >= 8 and entry["gpus"] == 1 for entry in result["logs"] if "loss" in entry)
    assert min(losses) < result["loss"] < max(losses)
    assert result["saved"] == [f"checkpoint-{result['steps']}"]


def test_a_trainer_goes_on_where_it_was_and_ends_with_the_progress_asked_for(script, tmp_path) -> None:
    options = {"checkpoint_dir": str(tmp_path / "checkpoints"), "max_steps": 17, "max_batch_size": 8}
    [first] = told(run(script, tmp_path / "first", 1, json.dumps(options)))
    assert first["steps"] == 17 and sum(counts(tmp_path / "first")[0].values()) == SAMPLES
    [further] = told(run(script, tmp_path / "further", 1, json.dumps(options | {"max_steps": 24})))
    assert further["steps"] == 24
    both = counts(tmp_path / "first")[1] + counts(tmp_path / "further")[1]
    assert both == dict.fromkeys(range(SAMPLES), 1)


def test_two_processes_of_torchrun_share_an_epoch_and_agree(script, tmp_path) -> None:
    results = told(run(script, tmp_path, 2, launcher=TORCHRUN))
    assert_each_once(tmp_path, 2)
    assert [result.pop("rank") for result in results] == [0, 1]
    for result in results:
        # Each process times its own evaluations.
        result["logs"] = [
            {k: v for k, v in entry.items() if "second" not in k and "runtime" not in k} for entry in result["logs"]
        ]
    assert results[0] == results[1]


def test_a_trainer_grows_and_shrinks_in_place_and_uses_every_sample_once(script, tmp_path) -> None:
    grow_and_shrink(tmp_path / "out", script, epochs=40)


def test_a_scheduler_takes_a_gpu_from_a_trainer_and_it_survives_a_kill(script, tmp_path) -> None:
    shrink_and_kill(tmp_path, script, epochs=40)


ACCELERATE = """
import json, os, sys
import torch
from pacing import pace
from pollux.huggingface import Accelerator
import pollux.torch as px

out, epochs = sys.argv[1], int(sys.argv[2])
accelerator = Accelerator(cpu=True, checkpoint_dir=f"{out}/checkpoints", checkpoint_every_s=1)
log = open(f"{out}/steps-{os.getpid()}", "w", buffering=1)
inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(96))
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=24)
loader = px.DataLoader(dataset, batch_size=8, max_batch_size=32, per_gpu=(2, 8), shuffle=True)
evaluation = torch.utils.data.DataLoader(dataset, batch_size=32)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
evaluation = accelerator.prepare(evaluation)
steps = 0
for epoch in px.epochs(epochs):
    for x, y, numbers in loader:
        pace(out, epoch, len(numbers))
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
        print(json.dumps([epoch, px.world_size(), numbers.tolist()]), file=log)
    with torch.no_grad():
        errors = [accelerator.gather_for_metrics((model(x) - y).square().sum()) for x, y, _ in evaluation]
assert accelerator.is_main_process == (px.rank() == 0)
refused = []
for call in (accelerator.gather, accelerator.reduce, accelerator.save_state, accelerator.load_state):
    try:
        call(torch.zeros(1))
    except px.UsageError as error:
        refused.append(str(error).split(":")[0])
sys.stdout.write("done " + json.dumps({
    "rank": px.rank(), "steps": steps, "error": float(sum(errors)), "refused": refused,
    "keys": list(accelerator.unwrap_model(model).state_dict()),
}) + "\\n")
"""


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("accelerate") / "train.py"
    path.write_text(ACCELERATE)
    return path


def test_a_loop_of_accelerate_alone_uses_every_sample_once(loop, tmp_path) -> None:
    [result] = told(run(loop, tmp_path / "out", 2))
    assert_each_once(tmp_path / "out", 2)
    assert 0 < result["steps"] <= 24 and result["error"] < 96 * 8 / 2


def test_a_loop_of_accelerate_grows_and_shrinks_in_place(loop, tmp_path) -> None:
    grow_and_shrink(tmp_path / "out", loop, epochs=40)


def test_a_scheduler_takes_a_gpu_from_a_loop_of_accelerate_and_it_survives_a_kill(loop, tmp_path) -> None:
    shrink_and_kill(tmp_path, loop, epochs=40)


def test_a_loop_of_accelerate_shares_an_epoch_between_two_processes(loop, tmp_path) -> None:
    results = told(run(loop, tmp_path / "out", 2, launcher=TORCHRUN))
    assert_each_once(tmp_path / "out", 2)
    assert [result.pop("rank") for result in results] == [0, 1] and results[0] == results[1]
    assert 0 < results[0]["steps"] <= 24 and results[0]["error"] < 96 * 8 / 2
    names = ("gather", "reduce", "save_state", "load_state")
    assert results[0]["refused"] == [f"accelerator.{name} with Pollux" for name in names]
    assert results[0]["keys"] == ["weight", "bias"]


def test_what_cannot_work_is_refused_in_one_line(tmp_path, monkeypatch) -> None:
    import accelerate
    import transformers

    import pollux.huggingface as px_hf
    import pollux.torch as px
    import torch

    def refused(message, call, *args, **options):
        with pytest.raises(px.UsageError) as error:
            call(*args, **options)
        assert str(error.value) == message

    folder = str(tmp_path)
    replicated = "parameters are replicated, as in DDP; leave it out"
    for options, advice in (
        ({"deepspeed": "ds.json"}, replicated),
        ({"fsdp": True}, replicated),
        ({"auto_find_batch_size": True}, "samples per GPU are lowered when memory is short; leave it out"),
        ({"enable_jit_checkpoint": True}, "a training that is asked to end saves by itself; leave it out"),
        ({"dataloader_drop_last": True}, "every sample is used; leave it out"),
        ({"include_num_input_tokens_seen": "all"}, "each process would count its own tokens only; leave it out"),
    ):
        [(name, value)] = options.items()
        refused(f"{name}={value!r} with Pollux: {advice}", px_hf.TrainingArguments, folder, **options)
    refused(
        "gradient_accumulation_steps=4 with Pollux: give batch_size=8 * 4 * GPUs, and steps are accumulated where "
        "per_device_train_batch_size asks for it",
        px_hf.TrainingArguments,
        folder,
        gradient_accumulation_steps=4,
    )
    for name, advice in (
        ("dispatch_batches", "every process reads its own samples; leave it out"),
        ("split_batches", "batches are dealt by Pollux; leave it out"),
    ):
        config = {name: True}
        refused(f"{name}=True with Pollux: {advice}", px_hf.TrainingArguments, folder, accelerator_config=config)
    model = torch.nn.Linear(2, 1)
    plain = transformers.TrainingArguments(folder, use_cpu=True, report_to=[])
    refused(
        "a Trainer of Pollux with a transformers.training_args.TrainingArguments; expected a "
        "pollux.huggingface.TrainingArguments",
        px_hf.Trainer,
        model,
        plain,
    )
    trainer = px_hf.Trainer(model, px_hf.TrainingArguments(folder, use_cpu=True, report_to=[]))
    refused(
        "resume_from_checkpoint=True with Pollux: a training goes on by itself where the checkpoint in "
        "checkpoint_dir is; leave it out",
        trainer.train,
        resume_from_checkpoint=True,
    )
    refused(
        "gradient_accumulation_steps=2 with Pollux: give px.DataLoader the whole batch, and per_gpu what fits; "
        "leave it out",
        px_hf.Accelerator,
        cpu=True,
        gradient_accumulation_steps=2,
    )
    config = accelerate.DataLoaderConfiguration(dispatch_batches=True)
    refused(
        "dispatch_batches=True with Pollux: every process reads its own samples; leave it out",
        px_hf.Accelerator,
        cpu=True,
        dataloader_config=config,
    )
    refused(
        "accelerator.prepare of 2 models and 1 optimisers with Pollux; expected one of each in one call, with its "
        "schedulers and loaders, or loaders alone",
        px_hf.Accelerator(cpu=True).prepare,
        model,
        torch.nn.Linear(2, 1),
        torch.optim.SGD(model.parameters(), lr=0.1),
    )
