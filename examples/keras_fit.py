"""Record a Keras 3 model with the torch backend: one callback for `fit` and `evaluate`.

Run it with `python examples/keras_fit.py`, then show the run with `tacho show keras-example`.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported

import keras
import numpy as np

from tachograph.integrations.keras import TachographCallback


def main() -> None:
    """Train a small network to add numbers."""
    keras.utils.set_random_seed(0)
    inputs = np.random.default_rng(0).normal(size=(512, 16)).astype("float32")
    targets = inputs.sum(axis=1, keepdims=True)
    model = keras.Sequential(
        [keras.layers.Input((16,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)]
    )
    rate = keras.optimizers.schedules.CosineDecay(0.01, decay_steps=100)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse", metrics=["mae"])

    # Keras does not pass the batch size to callbacks. It is needed to record samples per second.
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
