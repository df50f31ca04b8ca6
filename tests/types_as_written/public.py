"""The public types, as a user would write them; checked by mypy, never run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import tachograph as tacho
from tachograph import Control, Run, RunHistory, RunState


def record() -> None:
    run = tacho.init("x", config={"lr": 0.1}, log_dir="./logs", log_every=10)
    assert_type(run, Run)
    run.log({"train_loss": 0.5}, step=1)
    run.log(train_loss=0.5, step=1)
    run.log_epoch(1, {"val_loss": 0.7})
    scale = run.control("lr_scale", 1.0, min=0.1, max=10.0)
    assert_type(scale, Control[float])
    assert_type(scale.value, float)
    assert_type(run.should_stop, bool)
    assert_type(run.finish(), bool)
    with tacho.init_from_config("train.yaml") as other:
        assert_type(other, Run)
    tacho.log({"a": 1}, step=2)


def read() -> None:
    history = tacho.read("logs/x")
    assert_type(history, RunHistory)
    assert_type(history.state, RunState)
    steps, values, _times, _attempts = history.series("train_loss")
    assert_type(steps, npt.NDArray[np.int64])
    assert_type(values, npt.NDArray[np.float64])
