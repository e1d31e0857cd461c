"""A small GPT-2 learns to write Python's manual, one character after the other, with Hugging Face's Trainer.

Runs alone, under torchrun and under `pollux submit`; README.md says how.
"""

import argparse
import pydoc_data.topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import pollux.torch as px
from pollux.huggingface import Trainer, TrainingArguments

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--output", default="models")
arguments = parser.parse_args()

text = "".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
rows = torch.tensor(list(text[:131072])).view(-1, 32)
dataset = [{"input_ids": row, "labels": row} for row in rows]

torch.manual_seed(0)
config = GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
training = TrainingArguments(
    arguments.output,
    max_steps=arguments.steps,
    learning_rate=3e-3,
    lr_scheduler_type="cosine",
    warmup_steps=10,
    batch_size=16,
    max_batch_size=128,
    per_device_train_batch_size=64,
    logging_steps=50,
    eval_strategy="steps",
    eval_steps=100,
    save_strategy="no",
    dataloader_pin_memory=torch.cuda.is_available(),
    ddp_find_unused_parameters=False,
    disable_tqdm=True,
    report_to=[],
)
trainer = Trainer(GPT2LMHeadModel(config), training, train_dataset=dataset[:-64], eval_dataset=dataset[-64:])
trainer.train()

if px.rank() == 0:
    now = px.status()
    print(
        f"{trainer.state.global_step} steps, {now.samples} samples: loss {trainer.evaluate()['eval_loss']:.3f}, "
        f"batch {now.batch_size}, GPUs {now.world_size}, learning rate x{now.learning_rate_factor:.2f}",
        flush=True,
    )
