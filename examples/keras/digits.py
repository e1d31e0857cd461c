"""A small convolutional network learns to read scikit-learn's handwritten digits, with Keras.

Runs alone, as several processes and under `pollux submit`; README.md says how.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import pollux.keras as px

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()

keras.utils.set_random_seed(0)
digits = load_digits()
images, labels = (digits.images / 16).astype(np.float32)[..., None], digits.target
order = np.random.default_rng(0).permutation(len(labels))
train, held_out = order[:1400], order[1400:]

model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(10),
    ]
)
model.compile(
    keras.optimizers.Adam(0.003),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = px.fit(
    model,
    images[train],
    labels[train],
    batch_size=16,
    max_batch_size=128,
    per_gpu=(4, 128),
    epochs=arguments.epochs,
    validation_data=(images[held_out], labels[held_out]),
    validation_batch_size=512,
    callbacks=[keras.callbacks.ReduceLROnPlateau("val_loss", patience=4)],
)
if px.rank() == 0:
    print(f"best {max(history.history['val_accuracy']):.3f}", flush=True)
