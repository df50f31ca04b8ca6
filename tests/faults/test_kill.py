"""`kill -9` at any time: at most the last second is lost, readers keep working, and the run can be resumed."""

from __future__ import annotations

import itertools
import random
import signal
import time

import pandas as pd
import pytest

import tachograph
from tachograph.journal import RunState
from tachograph.reader import read
from tests.conftest import wait_for

TRAIN = """
    import sys, threading, time, tachograph
    first = int(sys.argv[2])
    def beat():  # as often as this process lets a thread run
        with open(f"{sys.argv[1]}-beats", "ab", buffering=0) as file:
            while True:
                file.write(b"%f\\n" % time.time())
                time.sleep(0.05)
    threading.Thread(target=beat, daemon=True).start()
    run = tachograph.init("x", log_dir=sys.argv[1], resume=True, git=False, system_interval_s=0.2)
    step = first
    while True:
        run.log({"train_loss": 1.0 / (step + 1), f"m{step // 400 % 7}": float(step), "clock": time.time()}, step=step)
        if step % 50 == 0 and step < first + 200:  # each makes the writer write
            run.log_checkpoint("model.pt", step=step)
        step += 1
        time.sleep(0.0005)
"""


def count(logs, event):
    path = logs / "x" / "metrics.jsonl"
    return path.read_bytes().count(b'{"event":"%s"' % event.encode()) if path.exists() else 0


def longest_wait_s(logs, killed_at):
    """How long a thread of the program that was killed last waited for its turn. Its file is then deleted."""
    path = logs.with_name(f"{logs.name}-beats")
    beats = [float(line) for line in path.read_bytes().split()[:-1]]  # the last line may be incomplete
    path.unlink()
    beats.append(killed_at)
    return max(later - earlier for earlier, later in itertools.pairwise(beats)) if len(beats) > 1 else 0.0


@pytest.mark.parametrize("num_kills", [5, pytest.param(25, marks=pytest.mark.long)])
def test_repeated_kills_lose_only_the_end(logs, script, num_kills):
    """Kill and resume the same run many times, at random moments."""
    instants = random.Random(4)
    next_step, kills, longest_waits_s = 0, [], []
    for number in range(num_kills):
        num_steps = count(logs, "step")
        training = script(TRAIN, logs, next_step)
        wait_for(lambda: count(logs, "start") > len(kills))
        if number % 5:  # otherwise the first steps may be lost, too
            wait_for(lambda before=num_steps: count(logs, "step") > before)
        time.sleep(instants.uniform(0.02, 0.5) + number % 5 / 2)
        training.process.send_signal(signal.SIGKILL)
        kills.append(time.time())
        training.process.wait()
        longest_waits_s.append(longest_wait_s(logs, kills[-1]))
        history = read(logs / "x")
        assert history.state is RunState.CRASHED
        last = history.attempts[-1].last_step
        next_step = next_step if last is None else last + 1
    history = read(logs / "x")
    assert len(history.attempts) == num_kills
    assert history.num_lost_records == 0
    # A kill may tear only the last line of an attempt.
    assert history.num_bad_lines <= num_kills
    series = history.series("train_loss")
    assert series.values.tolist() == [1.0 / (step + 1) for step in series.steps]
    clock = history.series("clock")
    for attempt, (killed_at, wait_s) in enumerate(zip(kills, longest_waits_s, strict=True)):
        logged_at = clock.values[clock.attempts == attempt]
        if len(logged_at):
            lost_s = killed_at - logged_at[-1]
            # The writer has to wait for the processor a few times per second, as long as the other thread.
            assert lost_s <= 1 + 3 * wait_s, f"attempt {attempt} lost {lost_s:.2f} s, a thread waited {wait_s:.2f} s"
        steps = series.steps[series.attempts == attempt]
        assert (steps[1:] - steps[:-1] == 1).all(), "a step in the middle is missing"
    with tachograph.init("x", log_dir=str(logs), resume=True) as run:
        run.log(train_loss=0.0, step=next_step)
    history = read(logs / "x")
    assert history.state is RunState.FINISHED
    rows = pd.read_csv(logs / "x" / "metrics.csv", low_memory=False)
    assert len(rows) == sum(history.counts.values())
    assert rows["train_loss"].notna().sum() == len(history.series("train_loss").values)


def test_reader_follows_through_a_kill(logs, script):
    training = script(TRAIN, logs, 0)
    wait_for(lambda: count(logs, "start"))
    history = read(logs / "x")
    wait_for(lambda: (history.refresh(), history.counts.get("step", 0) > 100)[1])
    training.process.send_signal(signal.SIGKILL)
    training.process.wait()
    history.refresh()
    assert history.state is RunState.CRASHED
    assert history.num_bad_lines == 0  # an incomplete last line is not read
    assert history.counts["step"] > 100
