"""Runs of several processes: ranks, workers, children of `fork`, and processes started with the environment."""

from __future__ import annotations

import json
import os
import sys
import textwrap

import pytest

from tachograph.usage._folder import app_folder
from tachograph.usage._spool import read_events
from tests.conftest import HANG_S
from tests.preloaded import preloaded

CONFIGURE = """
import os, sys
from tachograph.usage import JsonLines, TelemetryManager, UsageConfig, send_errors
config = UsageConfig(app="greyjacket", endpoint=JsonLines(sys.argv[1]), consent="opt-out")
manager = TelemetryManager.configure(config, choice="on")
import atexit
atexit.register(lambda: manager.shutdown(240))  # a busy machine may need longer than a process waits at its exit
"""


@pytest.fixture
def sent(tmp_path):
    path = tmp_path / "sent.jsonl"

    def read():
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    read.path = path
    return read


@pytest.mark.xdist_group("torch")
def test_only_rank_zero_of_two_records(tmp_path, sent):
    """With torchrun, before and after joining a process group, and in workers of a data loader."""
    path = tmp_path / "train.py"
    path.write_text(
        CONFIGURE
        + textwrap.dedent(
            """
            import torch
            import torch.distributed as dist
            from torch.utils.data import DataLoader, Dataset

            class Numbers(Dataset):
                def __len__(self):
                    return 4

                @send_errors
                def __getitem__(self, index):
                    manager.send_event("train-start", {"max_steps": 7})
                    if index == 3:
                        raise ValueError("in a worker")
                    return index

            if __name__ == "__main__":
                manager.send_event("train-start", {"world_size": 2})
                dist.init_process_group("gloo")
                try:
                    list(DataLoader(Numbers(), num_workers=1))
                except ValueError:
                    pass
                manager.send_event("train-end", {"step": 3})
                print(os.environ["RANK"], manager.enabled, flush=True)
                dist.barrier()  # leaving while the other is still connecting would fail
                dist.destroy_process_group()
            """
        )
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, str(path), str(sent.path)]
    done = preloaded("torch").run(command, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["0 True", "1 False"]
    assert [event["event"] for event in sent()] == ["train-start", "train-end"]
    assert len({event["run_id"] for event in sent()}) == 1


def test_child_process_shares_run_id(script, sent):
    script(
        CONFIGURE
        + textwrap.dedent(
            """
            import subprocess
            manager.send_event("train-start")
            if len(sys.argv) == 2:
                subprocess.run([sys.executable, __file__, sys.argv[1], "child"], check=True)
            """
        ),
        sent.path,
    ).ok()
    assert len(sent()) == 2
    assert len({event["run_id"] for event in sent()}) == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_does_not_record(script, sent, method):
    out = script(
        CONFIGURE
        + textwrap.dedent(
            """
            import multiprocessing
            def work():
                manager.send_event("train-start", {"max_steps": 9})
                print("worker", manager.enabled, flush=True)
            if __name__ == "__main__":
                manager.send_event("train-start", {"max_steps": 1})
                worker = multiprocessing.get_context(sys.argv[2]).Process(target=work)
                worker.start()
                worker.join()
                manager.send_event("train-end")
            """
        ),
        sent.path,
        method,
    ).ok()
    assert out.split() == ["worker", "False"]
    assert [(event["event"], event["properties"]) for event in sent()] == [
        ("train-start", {"max_steps": 1}),
        ("train-end", {}),
    ]


AT_IMPORT = """
import sys
from tachograph.usage import TelemetryManager, UsageConfig
config = UsageConfig(app="greyjacket", endpoint=sys.argv[1], api_key="phc_greyjacket", consent="opt-out")
manager = TelemetryManager.configure(config, choice="on")
manager.send_event("train-start", {"max_steps": 8})
manager.shutdown(240)  # in every process that records
print("imported", flush=True)
"""
"""Configures and sends whenever it is imported, as a script without a guard does."""


def assert_only_main_process_sent(receiver, out):
    """Check that one event arrived although several processes imported the module."""
    assert out.count("imported") >= 2  # two processes may print on one line
    assert [event["event"] for event in receiver.events()] == ["train-start"]
    assert [kept.state for kept in read_events(app_folder("greyjacket"))] == ["sent"]


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_data_loader_workers_send_nothing_at_import(script, receiver, method):
    pytest.importorskip("torch")
    out = script(
        AT_IMPORT
        + textwrap.dedent(
            """
            from torch.utils.data import DataLoader
            if __name__ == "__main__":
                loader = DataLoader(range(4), num_workers=1, multiprocessing_context=sys.argv[2])
                assert sum(len(batch) for batch in loader) == 4
            """
        ),
        receiver.address,
        method,
        preload="torch",
    ).ok()
    assert_only_main_process_sent(receiver, out)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_send_nothing_at_import(script, receiver, method):
    out = script(
        AT_IMPORT
        + textwrap.dedent(
            """
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor
            if __name__ == "__main__":
                context = multiprocessing.get_context(sys.argv[2])
                worker = context.Process(target=print, args=("worked",))
                worker.start()
                worker.join()
                assert worker.exitcode == 0
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    assert pool.submit(abs, -3).result() == 3
            """
        ),
        receiver.address,
        method,
    ).ok()
    assert "worked" in out.split()
    assert_only_main_process_sent(receiver, out)


def test_fork_server_sends_nothing_at_import(script, receiver, tmp_path):
    """The server imports the modules that it is to preload. It is no child in the eyes of `multiprocessing`."""
    (tmp_path / "preloaded.py").write_text(AT_IMPORT.replace("sys.argv[1]", repr(receiver.address)))
    out = script(
        """
        import multiprocessing
        if __name__ == "__main__":
            import preloaded
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["preloaded"])
            worker = context.Process(target=print)
            worker.start()
            worker.join()
            assert worker.exitcode == 0
        """,
        env={"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])},
    ).ok()
    assert_only_main_process_sent(receiver, out)


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_that_joins_a_group_records_as_rank(script, sent, method, tmp_path):
    script(
        CONFIGURE
        + textwrap.dedent(
            """
            import torch.distributed as dist
            import torch.multiprocessing as mp
            def work(rank):
                manager.send_event("train-start", {"max_steps": 9})
                dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
                manager.send_event("train-progress", {"step": 5})
                dist.barrier()  # leaving while the other is still connecting would fail
                dist.destroy_process_group()
                manager.shutdown(240)
            if __name__ == "__main__":
                manager.send_event("train-start", {"max_steps": 1})
                mp.start_processes(work, nprocs=2, start_method=sys.argv[2])
            """
        ),
        sent.path,
        method,
        tmp_path / "meeting",
        preload="torch",
    ).ok()
    events = [(event["event"], event["properties"]) for event in sent()]
    assert sorted(events) == [("train-progress", {"step": 5}), ("train-start", {"max_steps": 1})]
    assert len({event["run_id"] for event in sent()}) == 1


def test_fork_while_sending_neither_hangs_nor_duplicates(script, sent):
    script(
        CONFIGURE
        + textwrap.dedent(
            """
            import threading
            stop = threading.Event()
            def keep_sending():
                while not stop.is_set():
                    manager.send_event("train-start")
            thread = threading.Thread(target=keep_sending)
            thread.start()
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    manager.send_event("train-end")
                    manager.shutdown()
                    os._exit(0)
                os.waitpid(child, 0)
            stop.set()
            thread.join()
            """
        ),
        sent.path,
    ).ok()
    events = sent() + [kept.event for kept in read_events(app_folder("greyjacket")) if kept.state == "waiting"]
    assert {event["event"] for event in events} == {"train-start"}
    assert len({event["uuid"] for event in events}) == len(events)


def test_environment_of_other_ranks_is_unchanged(script, sent):
    out = script(CONFIGURE + "print('GREYJACKET_USAGE_RUN_ID' in os.environ)", sent.path, env={"RANK": "1"}).ok()
    assert out.split() == ["False"]
    assert not os.path.exists(app_folder("greyjacket"))
