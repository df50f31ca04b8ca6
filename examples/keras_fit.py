"""A Keras 3 model with torch behind it: one callback for `fit` and `evaluate`.

Run it with `python examples/keras_fit.py`, then look at it with `tacho show keras-example`.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported

import keras
import numpy as np

from tachograph.integrations.keras import TachographCallback


def main() -> None:
    """Train a small network to add numbers up."""
    keras.utils.set_random_seed(0)
    inputs = np.random.default_rng(0).normal(size=(512, 16)).astype("float32")
    targets = inputs.sum(axis=1, keepdims=True)
    model = keras.Sequential(
        [keras.layers.Input((16,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)]
    )
    rate = keras.optimizers.schedules.CosineDecay(0.01, decay_steps=100)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse", metrics=["mae"])

    # Keras does not tell its callbacks how large a batch is, so we do: then samples per second are known.
    telemetry = TachographCallback("keras-example", log_dir="./logs", batch_size=16)
    saving = keras.callbacks.ModelCheckpoint("./logs/checkpoints/keras-example-{epoch}.keras")
    model.fit(
        inputs,
        targets,
        batch_size=16,
        epochs=3,
        validation_split=0.1,
        verbose=0,
        callbacks=[telemetry, saving],
    )
    model.evaluate(inputs, targets, verbose=0, callbacks=[telemetry])


if __name__ == "__main__":
    main()
