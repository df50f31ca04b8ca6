"""Where a training waits that makes no progress."""

from __future__ import annotations

import threading

import pytest

from tachograph.black_box._frames import describe_stacks
from tachograph.black_box._verdicts import judge_hang


def stacks_of(*lines, program_line="train.py:7 main", workers=()):
    thread = {"thread": "MainThread", "stack": "\n".join(lines), "program_line": program_line, "times_seen": 3}
    return {"num_looks": 3, "threads": [thread], "workers": list(workers)}


LOADER = ("train.py:7 main", "dataloader.py:741 __next__", "dataloader.py:1491 _get_data", "queue.py:180 get")
SLEEPING = {"state": "S (sleeping)", "waits_in": "futex_do_wait"}


@pytest.mark.parametrize(
    ("stacks", "kind", "text"),
    [
        (
            stacks_of(*LOADER, workers=[SLEEPING, SLEEPING]),
            "loader_hang",
            "None of its 2 child processes is running; they wait, in futex_do_wait",
        ),
        (
            stacks_of(*LOADER, workers=[SLEEPING, {"state": "R (running)"}]),
            "loader_hang",
            "1 of 2 child processes are busy",
        ),
        (stacks_of(*LOADER), "loader_hang", "all of them have ended"),
        (
            stacks_of("train.py:7 main", "c10d_logger.py:83 wrapper", "distributed_c10d.py:2863 all_reduce"),
            "collective_hang",
            "waits for other ranks in `all_reduce`, called at train.py:7 main",
        ),
        (stacks_of("train.py:7 main", "__init__.py:1 synchronize"), "gpu_hang", "waits for the GPU"),
        (stacks_of("train.py:7 main"), "hang", "does not leave train.py:7 main"),
    ],
)
def test_cause_of_a_hang_is_the_place_of_the_main_thread(stacks, kind, text):
    verdict = judge_hang(stacks)
    assert (verdict.kind, verdict.confidence) == (kind, "certain")
    assert text in verdict.text


def test_no_cause_while_the_main_thread_moves():
    stacks = stacks_of("train.py:7 main")
    stacks["threads"].append({**stacks["threads"][0], "stack": "train.py:8 main"})
    assert judge_hang(stacks) is None
    assert judge_hang(stacks_of("runpy.py:1 run", program_line="")) is None
    assert judge_hang({}) is None


def test_stacks_name_the_line_of_the_program():
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="waiter")
    thread.start()
    stacks = describe_stacks(pause_s=0)
    release.set()
    thread.join()
    main = next(group for group in stacks["threads"] if group["thread"] == "MainThread")
    assert "test_stacks_name_the_line_of_the_program" in main["stack"]
