"""`tachograph.ab` in a PyTorch loop whose second arm sleeps."""

from __future__ import annotations

import time

import torch

import tachograph
from tachograph.comparison import report_arms

SLEEP_S = 0.03


def test_arm_that_sleeps_takes_longer(logs):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tachograph.init("greyjacket", log_dir=logs) as run:
        for step in range(4 * 4 * 7):
            if tachograph.ab("sleep", block=4):
                time.sleep(SLEEP_S)
            inputs = torch.randn(4, 8)
            loss = (model(inputs) - inputs).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log({"train_loss": loss}, step=step)
    report, (off, sleeping) = report_arms(run.folder)
    metrics = {metric.name: metric for metric in report.metrics}
    assert metrics["step_time"].runs_a == 7
    assert metrics["step_time"].b >= SLEEP_S
    assert metrics["step_time"].confidence == 0.99
    assert (off.name, sleeping.name) == ("off", "sleep")
    assert len(off.clock.steps) == len(sleeping.clock.steps)
