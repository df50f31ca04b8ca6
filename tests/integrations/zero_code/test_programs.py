"""Complete training programs under `tacho run`: several processes, restarts, kills."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.integrations.zero_code.conftest import program_stderr, without_leaks

pytestmark = pytest.mark.xdist_group("injected-programs")

BIN = Path(sys.executable).parent

TRAIN = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
if __name__ == "__main__":  # not in workers: the first optimizer imports torch._dynamo, which takes as long as torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4, shuffle=True)


def epoch():
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)
"""

DISTRIBUTED = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 4))
for (batch,) in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss: {loss.item()}", flush=True)
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "weights.pt")
dist.barrier()
dist.destroy_process_group()
if "fail" in sys.argv and os.environ["RANK"] == "1":
    raise ValueError("rank 1 failed")
"""


def losses(out: bytes) -> list[float]:
    return [float(line) for line in out.split() if line[:1].isdigit()]


def test_worker_processes_are_left_alone(tacho, python):
    """Spawned workers and a process pool that saves in the background work as before and record nothing."""
    tacho.write(
        "train.py",
        """
        import concurrent.futures, multiprocessing

        def main():
            epoch()
            for (batch,) in DataLoader(loader.dataset, batch_size=12, num_workers=1, multiprocessing_context="spawn"):
                with torch.no_grad():
                    model(batch)
            spawn = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
                pool.submit(torch.save, model.state_dict(), "weights.pt").result()
            print(hash(tuple(model.weight.flatten().tolist())), "done")
            sys.exit(3)
        """,
    )
    path = tacho.folder / "train.py"
    path.write_text(TRAIN + path.read_text() + "\nif __name__ == '__main__':\n    main()\n")
    done = tacho.run(python, "train.py")
    assert done.returncode == 3
    assert program_stderr(done.stderr) == b""
    assert (tacho.folder / "weights.pt").exists()
    assert tacho.runs() == ["train"]
    steps = [step for step in tacho.records("train", "step") if "train_loss" in step]
    assert [step["train_loss"] for step in steps] == losses(done.stdout)[:6]
    end = tacho.records("train", "end")[-1]
    assert (end["status"], end["exit_code"]) == ("failed", 3)
    (log,) = tacho.records("train", "log")
    assert log["text"].endswith("done")


def test_resume_after_kill_appends_to_same_run(tacho, python):
    """A killed program that is started again with --resume continues the same run."""
    die = """
epoch()
if 'die' in sys.argv:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s and open('logs/mine/metrics.jsonl').read().count('"train_loss":') < 6:
        time.sleep(0.1)
    os.kill(os.getpid(), 9)
"""
    tacho.write("train.py", TRAIN + die)
    done = tacho.run(python, "train.py", "die", options=("--name", "mine"))
    assert done.returncode == -signal.SIGKILL
    end = tacho.records("mine", "end")[-1]
    assert (end["status"], end["signal"]) == ("failed", "SIGKILL")
    assert end["reason"] == "killed by signal 9 (SIGKILL)"
    for command in (["ls"], ["show", "mine"], ["doctor", "mine"], ["ls", "--json"]):
        shown = tacho.command(*command)
        assert "killed by signal 9" in shown and "No problems found." not in shown, command
    assert len([step for step in tacho.records("mine", "step") if "train_loss" in step]) == 6
    again = tacho.run(python, "train.py", options=("--name", "mine", "--resume"))
    assert again.returncode == 0
    assert tacho.runs() == ["mine"]
    assert [start["resumed"] for start in tacho.records("mine", "start")] == [False, True]
    assert tacho.records("mine", "end")[-1]["exit_code"] == 0
    steps = [step["global_step"] for step in tacho.records("mine", "step") if "train_loss" in step]
    assert steps == list(range(12))


def test_error_in_training_is_recorded(tacho, python):
    tacho.write("train.py", TRAIN + "epoch()\nmodel(torch.randn(3, 7))\n")
    without = tacho.bare(python, "train.py")
    done = tacho.run(python, "train.py")
    assert (done.returncode, done.stdout) == (1, without.stdout)
    assert program_stderr(done.stderr) == without_leaks(without.stderr)
    (error,) = tacho.records("train", "error")
    assert error["error_type"] == "RuntimeError"
    assert error["fatal"] is True
    end = tacho.records("train", "end")[-1]
    assert (end["status"], end["exit_code"]) == ("failed", 1)
    assert "RuntimeError" in end["reason"]


@pytest.mark.parametrize(
    "launcher",
    [
        ["torchrun", "--nproc-per-node", "2"],
        [
            "accelerate",
            "launch",
            "--multi_gpu",
            "--num_processes",
            "2",
            "--num_machines",
            "1",
            "--dynamo_backend",
            "no",
        ],
    ],
    ids=["torchrun", "accelerate"],
)
def test_two_ranks_record_into_one_run(tacho, launcher):
    tacho.write("ddp.py", DISTRIBUTED)
    is_torchrun = launcher[0] == "torchrun"
    done = tacho.run(str(BIN / launcher[0]), *launcher[1:], "ddp.py", *(["fail"] if is_torchrun else []))
    assert (done.returncode == 0) is not is_torchrun, done.stderr.decode()
    assert tacho.runs() == ["ddp"]
    own = [line.partition(": ")[2] for line in done.stdout.decode().splitlines() if line.startswith("loss")]
    steps = [step for step in tacho.records("ddp", "step") if "train_loss" in step]
    assert [step["train_loss"] for step in steps] == [float(text) for text in own]
    assert len(own) == 4
    assert tacho.records("ddp", "start")[0]["world_size"] == 2
    other = tacho.folder / "logs" / "ddp" / "ranks" / "00001.jsonl"
    records = [json.loads(line) for line in other.read_text().splitlines()]
    assert [record["rank"] for record in records if record["event"] == "start"] == [1]
    assert [record["last"] for record in records if record["event"] == "rank"] == [3]
    assert not [record for record in records if "train_loss" in record], "only rank 0 records metrics"
    dumps = ["00001.dumps"] if is_torchrun else []  # rank 1 failed
    assert sorted(path.name for path in other.parent.iterdir()) == [*dumps, "00001.jsonl"]
    saves = [record for record in tacho.records("ddp", "span_stop") if record["name"] == "checkpoint_save_sync"]
    assert len(saves) == 1
    end = tacho.records("ddp", "end")[-1]
    assert (end["status"], end["exit_code"]) == (("failed", 1) if is_torchrun else ("finished", 0))
    if is_torchrun:
        errors = [record for record in records if record["event"] == "error"]
        assert [error["error_type"] for error in errors] == ["ValueError"]
