"""`pollux.keras` with the real Keras on TensorFlow and CPUs: alone, as two processes, and under a real scheduler.

TensorFlow and PyTorch do not live well in one process, so every training is a process of its own.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch, which is in the scheduler of these tests, is not installed")

from frameworks import assert_each_once, grow_and_shrink, interrupt_twice, run, shrink_and_kill, told

from keras_environment import keras_python
from launching import environment, together

LIMIT_S = 240
TRAINING = """
import json, os, sys
import keras
import numpy as np
from pacing import pace
import pollux.keras as px

assert "torch" not in sys.modules
out, epochs, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
inputs = rng.normal(size=(96, 8)).astype(np.float32)
log = open(f"{out}/steps-{os.getpid()}", "w", buffering=1)

class Recording(keras.Model):
    def __init__(self):
        super().__init__()
        self.inside = keras.Sequential([
            keras.layers.Dense(4, activation="tanh"), keras.layers.Dropout(0.1), keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ])

    def call(self, x, training=False):
        return self.inside(x["inputs"], training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if training:
            numbers = x["number"].numpy().tolist()
            pace(out, px.status().epoch, len(numbers))
            print(json.dumps([px.status().epoch, px.world_size(), numbers]), file=log)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

model = Recording()
model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss="mse", metrics=["mae"], run_eagerly=True)
history = px.fit(model, {"inputs": inputs, "number": np.arange(96)}, inputs.sum(1, keepdims=True), **{
    "batch_size": 8, "max_batch_size": 32, "per_gpu": (2, 8), "checkpoint_every_s": 1, "epochs": epochs, "verbose": 0,
    "callbacks": [keras.callbacks.ReduceLROnPlateau("loss", patience=100)], **options
})
sys.stdout.write("done " + json.dumps({
    "rank": px.rank(), "params": np.concatenate([np.ravel(one) for one in model.get_weights()]).tolist(),
    "losses": history.history["loss"], "epochs": history.epoch, "noise_scale": px.status().noise_scale,
}) + "\\n")
"""
FIXED = {"max_batch_size": 8, "per_gpu": [8, 8], "checkpoint_every_s": 0.05}


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("keras") / "train.py"
    path.write_text(TRAINING)
    return path


FACTS = """
import json, sys
import keras
import numpy as np
import tensorflow as tf
import pollux.keras as px
from pollux._elastic import brain

# Every step is measured, whatever that costs: fewer would only need more of them to be as sure.
brain.MEASURE_SHARE = 100.0
rng = np.random.default_rng(0)
inputs = rng.normal(size=(1024, 8)).astype(np.float32)
labels = (inputs @ rng.normal(size=(8, 3)) + rng.normal(size=(1024, 3))).argmax(1)

def make(optimizer):
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=["accuracy"])
    return model

def exact_noise_scale(model, optimizer):
    variables = model.trainable_variables
    @tf.function
    def gradient(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x))
        return tf.concat([tf.reshape(part, [-1]) for part in tape.gradient(loss, [v.value for v in variables])], 0)
    rows = np.stack([gradient(inputs[i:i + 1], labels[i:i + 1]).numpy() for i in range(1024)]).astype(np.float64)
    if isinstance(optimizer, keras.optimizers.Adam):
        second = np.concatenate([np.ravel(v) for v in optimizer.variables if v.name.endswith("velocity")])
        rows /= np.sqrt(second / (1 - 0.999 ** int(optimizer.iterations))) + 1e-7
    return float(rows.var(0, ddof=1).sum() / (rows.mean(0) ** 2).sum())

facts = {"gaps": {}, "noise": {}}
# As plain Keras trains.
schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 16, 0.9)
kinds = {"adam": lambda: keras.optimizers.Adam(0.01), "schedule": lambda: keras.optimizers.SGD(schedule, 0.9)}
for name, kind in kinds.items():
    plain, ours = make(kind()), make(kind())
    expected = plain.fit(inputs, labels, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    found = px.fit(ours, inputs, labels, batch_size=16, per_gpu=(1, 16), epochs=2, shuffle=False, verbose=0).history
    gaps = [np.abs(one - other).max() for one, other in zip(plain.get_weights(), ours.get_weights())]
    gaps += [abs(one - other) for key in expected for one, other in zip(expected[key], found[key])]
    facts["gaps"][name] = float(max(gaps))
variants = {"adam": (4, 64), **({"sgd": (4, 64)} if px.world_size() == 1 else {"accumulated": (4, 4)})}
for name, per_gpu in variants.items():
    optimizer = keras.optimizers.Adam(0.0) if name == "adam" else keras.optimizers.SGD(0.0)
    model = make(optimizer)
    px.fit(model, inputs, labels, batch_size=16, per_gpu=per_gpu, epochs=16, verbose=0)
    if px.rank() == 0:
        facts["noise"][name] = [px.status().noise_scale, exact_noise_scale(model, optimizer)]

# Callbacks are those of rank 0, and what they decide counts for all.
class Ending(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.params["epochs"] == 9 and px.status().epoch == 1 and batch == 2:
            self.model.stop_training = True

keras.utils.set_random_seed(px.rank())
words = keras.Sequential([
    keras.layers.Input((4,)), keras.layers.Embedding(20, 6), keras.layers.Flatten(), keras.layers.BatchNormalization(),
    keras.layers.Dropout(0.2), keras.layers.Dense(3),
])
words.compile(keras.optimizers.SGD(0.1, 0.9), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
numbers = rng.integers(0, 20, (256, 4))
halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
patience = keras.callbacks.EarlyStopping("val_loss", min_delta=100.0, patience=1)
data = (numbers, labels[:256])
common = {"batch_size": 16, "max_batch_size": 32, "per_gpu": (2, 16), "verbose": 0, "validation_data": data}
first = px.fit(words, *data, epochs=8, callbacks=[halving, patience], **common)
second = px.fit(words, *data, epochs=9, callbacks=[Ending()], **common)
facts["epochs"] = [len(first.epoch), len(second.epoch)]
facts["rate"] = float(words.optimizer.learning_rate)
facts["weights"] = [np.ravel(one).tolist() for one in words.get_weights()]
print(json.dumps(facts))
"""


@pytest.mark.parametrize("world_size", [1, 2])
def test_training_is_that_of_plain_keras_and_noise_is_that_of_the_samples(world_size, tmp_path) -> None:
    facts = together(FACTS, tmp_path, world_size, python=keras_python())
    for own in facts:
        assert max(own["gaps"].values()) < 1e-6, own["gaps"]
        # Two epochs are enough to see no progress, and the second training is told to end in its second one.
        assert own["rate"] == pytest.approx(0.1 / 2**2) and own["weights"] == facts[0]["weights"]
        assert own["epochs"] == [2, 2]
    for name, (estimate, exact) in facts[0]["noise"].items():
        assert abs(estimate / exact - 1) < 0.10, f"{name}: {estimate:.1f} instead of {exact:.1f}"


def test_a_killed_training_goes_on_and_ends_with_the_same_bits(script, tmp_path) -> None:
    options = json.dumps(FIXED)
    [whole] = told(run(script, tmp_path / "whole", 5, options, python=keras_python()))
    assert_each_once(tmp_path / "whole", 5)
    assert whole["losses"][-1] < whole["losses"][0] and whole["epochs"] == list(range(5))
    [again] = told([interrupt_twice(tmp_path / "interrupted", script, 5, options, python=keras_python())])
    assert all(again[name] == whole[name] for name in ("params", "losses", "epochs"))


def test_a_training_grows_loses_rank_0_in_place_and_uses_every_sample_once(script, tmp_path) -> None:
    grow_and_shrink(tmp_path / "out", script, epochs=24, stays=1, python=keras_python())


def test_a_scheduler_takes_a_gpu_from_a_training_and_it_survives_a_kill(script, tmp_path) -> None:
    shrink_and_kill(tmp_path, script, epochs=24, python=keras_python())


MISTAKES = """
import json
import keras
import numpy as np
import pollux.keras as px

x, y = np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32)
told = []

def model(optimizer="sgd", loss="mse", kind=keras.Sequential, **options):
    made = kind([keras.layers.Input((2,)), keras.layers.Dense(1)])
    made.compile(optimizer, loss, **options)
    return made

def attempt(made, *data, **options):
    try:
        px.fit(made, *(data or (x, y)), verbose=0, **options)
        told.append("nothing")
    except px.UsageError as error:
        told.append(str(error))

class Own(keras.Sequential):
    def train_step(self, data):
        return {}

try:
    px.status()
except px.UsageError as error:
    told.append(str(error))
attempt("model")
attempt(keras.Sequential([keras.layers.Dense(1)]))
attempt(model(kind=Own))
attempt(model(steps_per_execution=4))
attempt(model(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())))
attempt(model(keras.optimizers.SGD(gradient_accumulation_steps=2)))
attempt(model(loss=keras.losses.MeanSquaredError(reduction="sum")))
attempt(model("rmsprop"))
attempt(model(), x, y[:5])
attempt(model(), [[1.0, 2.0]], y)
attempt(model(), batch_size=0)
attempt(model(), scaling="adam")
attempt(model(), checkpoint_every_s=0)
keras.backend.backend = lambda: "jax"
attempt(model())
print(json.dumps(told))
"""


def test_mistakes_are_told(tmp_path) -> None:
    assert together(MISTAKES, tmp_path, 1, python=keras_python())[0] == [
        "px.status() before px.fit(); ask in a callback, or after it",
        "px.fit of a str; expected a keras.Model",
        "a model without an optimiser; call model.compile(optimizer=..., loss=...) first",
        "Own.train_step() of its own, which applies gradients by itself; write compute_loss() instead, px.fit calls it",
        "steps_per_execution=4 with Pollux, which looks at every step; leave it out",
        'a LossScaleOptimizer with Pollux; expected the policy "mixed_bfloat16", which needs none',
        "gradient_accumulation_steps=2 with Pollux: give px.fit the whole batch, and per_gpu what fits; leave it out",
        "a loss with reduction='sum'; expected mean and sum_over_batch_size, since batches differ in size",
        'no rule is known to suit RMSprop; give scaling, such as "sqrt" for optimisers that normalise gradients',
        "data has arrays of [5, 8] rows; expected as many in all of them, and one or more",
        "data is a float; expected arrays with a row for each sample, and trees of them",
        "batch_size 0; expected whole numbers from 1",
        "scaling 'adam'; expected adascale, adamscale, linear, sqrt, legw and functions",
        "checkpoint_every_s 0; expected seconds above 0",
        "Keras runs on jax; expected tensorflow (KERAS_BACKEND=tensorflow); train its stateless_call() with pollux.jax",
    ]


def test_the_example_learns_to_read_digits() -> None:
    example = Path(__file__).parents[2] / "examples" / "keras" / "digits.py"
    command = [keras_python(), example, "--epochs", "3"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert float(done.stdout.splitlines()[-1].split("best ")[1]) > 0.9
