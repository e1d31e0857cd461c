"""A small network learns to read scikit-learn's handwritten digits, with JAX.

Runs alone, as several processes and under `pollux submit`; README.md says how.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import pollux.jax as px

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()


def scores(params, images):
    hidden = jax.nn.relu(images @ params["first"] + params["bias"])
    return hidden @ params["second"]


def loss(params, batch):
    images, labels = batch
    return -jnp.mean(
        jnp.take_along_axis(
            jax.nn.log_softmax(scores(params, images)), labels[:, None], axis=1
        )
    )


value_and_grad = jax.jit(jax.value_and_grad(loss))


@jax.jit
def update(state, gradients, learning_rate):
    """SGD with momentum; any optimiser does, if its step is multiplied by the factor."""
    momentum = jax.tree.map(
        lambda old, gradient: 0.9 * old + gradient, state["momentum"], gradients
    )
    params = jax.tree.map(
        lambda old, move: old - learning_rate * move, state["params"], momentum
    )
    return {"params": params, "momentum": momentum}


@jax.jit
def accuracy(params, images, labels):
    return jnp.mean(scores(params, images).argmax(1) == labels)


digits = load_digits()
images, labels = (digits.data / 16).astype(np.float32), digits.target
order = np.random.default_rng(0).permutation(len(labels))
train, held_out = order[:1400], order[1400:]

first, second = jax.random.split(jax.random.key(0))
params = {
    "first": jax.random.normal(first, (64, 64)) / 8,
    "bias": jnp.zeros(64),
    "second": jax.random.normal(second, (64, 10)) / 8,
}
state = {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}
training = px.Training(
    state,
    (images[train], labels[train]),
    batch_size=16,
    max_batch_size=128,
    per_gpu=(4, 128),
)
for epoch in training.epochs(arguments.epochs):
    for step in training.steps():
        _, gradients = step.gradients(
            lambda batch: value_and_grad(training.state["params"], batch)
        )
        training.state = update(
            training.state, gradients, 0.05 * step.learning_rate_factor
        )
    found = float(
        accuracy(training.state["params"], images[held_out], labels[held_out])
    )
    training.extras["best"] = max(found, training.extras.get("best", 0.0))
    if training.rank == 0:
        now = training.status()
        print(
            f"epoch {epoch + 1}/{arguments.epochs}: accuracy {found:.3f}, best {training.extras['best']:.3f}, "
            f"batch {now.batch_size}, GPUs {now.world_size}, learning rate x{now.learning_rate_factor:.2f}",
            flush=True,
        )
