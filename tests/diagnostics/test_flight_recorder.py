"""Dumps of the flight recorder: real ones of gloo, and written ones in the shape of NCCL's."""

import json
import os
import pickle
import random

import pytest
from click.testing import CliRunner

from tachograph.cli._doctor import doctor
from tachograph.diagnostics.flight_recorder import find_hang, read_dumps
from tachograph.exceptions import ConfigError

# Four ranks for each case, forked by one process. A rank writes its dump once its recorder has the expected entries.
REAL_HANGS = """
import datetime, json, os, sys, threading, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

torch.set_num_threads(1)
folder = sys.argv[1]
STEPS = 5

def train(case, rank, tensor):
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for _ in range(STEPS):
        dist.all_reduce(tensor)
        if case == "groups":
            dist.all_reduce(tensor, group=groups[rank % 2])
    if case == "healthy":
        return
    if case in ("stops", "groups") and rank == 2:
        time.sleep(600)
    if case == "groups":
        dist.all_reduce(tensor, group=groups[rank % 2])
    if case == "other operation" and rank == 2:
        dist.broadcast(tensor, 0)
    if case == "skips":
        for i in range(3):
            if not (rank == 2 and i == 0):
                dist.all_reduce(tensor)
        dist.barrier()
    dist.all_reduce(tensor)

# How many collectives each rank has called, and how many of them end.
EXPECTED = {
    "healthy": [(STEPS, STEPS)] * 4,
    "stops": [(STEPS + (rank != 2), STEPS) for rank in range(4)],
    "other operation": [(STEPS + 1, STEPS)] * 4,
    "skips": [(STEPS + 3, STEPS + 2)] * 4,
    "groups": [(2 * STEPS + called, 2 * STEPS + ended) for called, ended in [(1, 0), (2, 1), (0, 0), (2, 1)]],
}

def run_rank(case, rank, out):
    store = dist.FileStore(os.path.join(out, "store"), 4)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4, timeout=datetime.timedelta(seconds=600))

    def dump():
        while True:
            entries = json.loads(_dump_fr_trace_json()).get("entries", ())
            if (len(entries), sum(entry["retired"] for entry in entries)) == EXPECTED[case][rank]:
                break
            time.sleep(0.02)
        data = _dump_fr_trace_json() if case != "stops" else _dump_fr_trace(includeStackTraces=False)
        with open(os.path.join(out, f"tmp{rank}x"), "wb") as file:
            file.write(data)
        os.rename(os.path.join(out, f"tmp{rank}x"), os.path.join(out, f"trace_{rank}"))
        while sum(name.startswith("trace_") for name in os.listdir(out)) < 4:
            time.sleep(0.02)
        os._exit(0)

    threading.Thread(target=dump, daemon=True).start()
    train(case, rank, torch.ones(8))
    time.sleep(600)

for case in sys.argv[2:]:
    out = os.path.join(folder, case)
    os.mkdir(out)
    pids = []
    for rank in range(4):
        pid = os.fork()
        if pid == 0:
            run_rank(case, rank, out)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0, case
"""

REAL_CASES = {
    "healthy": ("", []),
    "stops": ("rank 2 has not arrived at all_reduce #6 of default_pg; 3 ranks wait in it", [2]),
    "other operation": (
        "the ranks disagree at or before #6 of default_pg (ranks 0, 1, 3: all_reduce, rank 2: broadcast);"
        " rank 2 differs from most",
        [2],
    ),
    "skips": (
        "the ranks disagree at or before #8 of default_pg (ranks 0, 1, 3: all_reduce, rank 2: barrier);"
        " rank 2 differs from most",
        [2],
    ),
}


def test_real_hangs_name_the_rank(tmp_path, script):
    pytest.importorskip("torch")
    job = script(REAL_HANGS, tmp_path, *REAL_CASES, "groups", preload="torch")
    code, _, err = job.wait()
    assert code == 0, err
    for case, (text, suspects) in REAL_CASES.items():
        report = find_hang(read_dumps(tmp_path / case))
        causes = [group.text for group in report.stuck_groups if group.is_cause]
        assert causes == ([text] if text else []), case
        assert (report.suspects, report.num_dumps, report.missing_dumps) == (suspects, 4, []), case
    # Rank 0 waits for rank 2 in their group; ranks 1 and 3 wait for both in the group of all ranks.
    report = find_hang(read_dumps(tmp_path / "groups"))
    assert report.suspects == [2]
    assert {tuple(group.ranks) for group in report.stuck_groups} == {(0, 2), (0, 1, 2, 3)}


def entry(group, number, operation="nccl:all_reduce", state="completed", size=(4096,), **fields):
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": operation,
        "time_created_ns": 1_700_000_000_000_000_000 + number * 10**9,
        "time_discovered_started_ns": None if state == "scheduled" else 1,
        "time_discovered_completed_ns": 1 if state == "completed" else None,
        "input_sizes": [list(size)],
        "output_sizes": [list(size)],
        "input_dtypes": ["BFloat16"],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **fields,
    }


class Job:
    """Sixteen ranks, four per node: groups of all, of a node (tensor parallel), and of equal places (data parallel)."""

    def __init__(self, num_steps=20):
        self.groups = {("0", "default_pg"): list(range(16))}
        for node in range(4):
            self.groups[str(1 + node), "tensor_parallel"] = list(range(4 * node, 4 * node + 4))
        for place in range(4):
            self.groups[str(5 + place), "data_parallel"] = list(range(place, 16, 4))
        self.entries = {rank: [] for rank in range(16)}
        self.numbers = {}
        for _ in range(num_steps):
            for rank in range(16):
                self.call(rank, "tensor_parallel")
                self.call(rank, "data_parallel")

    def group(self, rank, description):
        [name] = [key for key, ranks in self.groups.items() if key[1] == description and rank in ranks]
        return name

    def call(self, rank, description, **options):
        name = self.group(rank, description)
        number = self.numbers[name, rank] = self.numbers.get((name, rank), 0) + 1
        created_ns = 10**9 * sum(map(len, self.entries.values()))
        self.entries[rank].append(entry(name, number, time_created_ns=created_ns, **options))

    def write(self, folder, ranks=range(16), keep=None):
        for rank in ranks:
            dump = {
                "version": "2.10",
                "pg_config": {
                    name: {"name": name, "desc": description, "ranks": str(ranks)}
                    for (name, description), ranks in self.groups.items()
                    if rank in ranks
                },
                "pg_status": {},
                "nccl_version": "2.27.5",
                "entries": self.entries[rank][-keep:] if keep else self.entries[rank],
            }
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        return find_hang(read_dumps(folder))


def test_stopped_rank_is_named_through_other_groups(tmp_path):
    job = Job()
    for rank in range(16):
        if rank != 9:
            job.call(rank, "tensor_parallel", state="started" if rank in (8, 10, 11) else "completed")
    for rank in {*range(16)} - {8, 9, 10, 11}:
        job.call(rank, "data_parallel", state="started")
    report = job.write(tmp_path)
    assert report.suspects == [9]
    assert (
        report.stuck_groups[0].text == "rank 9 has not arrived at all_reduce #21 of tensor_parallel; 3 ranks wait in it"
    )
    assert len(report.stuck_groups) == 5
    # The ring of each rank contains only the last calls.
    for file in tmp_path.iterdir():
        file.unlink()
    assert job.write(tmp_path, keep=3).suspects == [9]


def test_rank_whose_device_is_busy_is_named(tmp_path):
    job = Job()
    states = ["completed"] * 4 + ["started", "scheduled", "started", "started"] + ["completed"] * 8
    for rank in range(16):
        job.call(rank, "tensor_parallel", state=states[rank])
    for rank in range(16):
        job.call(rank, "data_parallel", state="scheduled" if 4 <= rank < 8 else "started")
    report = job.write(tmp_path)
    assert report.suspects == [5]
    assert "rank 5 has called all_reduce #21 of tensor_parallel but not begun it" in report.stuck_groups[0].text


def test_missing_dump_is_a_suspect(tmp_path):
    job = Job()
    for rank in range(16):
        job.call(rank, "data_parallel", state="started" if rank % 4 == 3 else "completed")
    report = job.write(tmp_path, ranks=[rank for rank in range(16) if rank != 7])
    assert (report.missing_dumps, report.suspects) == ([7], [7])
    assert report.stuck_groups[0].text == (
        "rank 7 has no dump, and all_reduce #21 of data_parallel is not complete; 3 ranks wait in it"
    )


def test_unequal_sizes_are_a_mismatch(tmp_path):
    job = Job()
    for rank in range(16):
        job.call(rank, "data_parallel", state="started", size=(2048,) if rank == 4 else (4096,))
    report = job.write(tmp_path)
    assert report.suspects == [4]
    assert report.stuck_groups[0].text == (
        "the ranks disagree at or before #21 of data_parallel (ranks 0, 8, 12: all_reduce of 4096 BFloat16,"
        " rank 4: all_reduce of 2048 BFloat16); rank 4 differs from most"
    )


def test_unequal_parts_of_all_to_all_are_no_mismatch(tmp_path):
    job = Job(num_steps=2)
    for rank in range(16):
        job.call(rank, "data_parallel", operation="nccl:all_to_all", size=(rank + 1,))
        job.call(rank, "tensor_parallel", operation="nccl:_allgather_base", size=(rank + 1,))
    assert job.write(tmp_path).stuck_groups == []


def test_communication_that_stands_still_accuses_nobody(tmp_path):
    job = Job()
    for rank in range(16):
        job.call(rank, "data_parallel", state="started" if rank % 4 == 2 else "completed")
    report = job.write(tmp_path)
    assert (report.suspects, len(report.stuck_groups)) == ([], 1)
    assert "the communication stands still" in report.stuck_groups[0].text


def test_circular_wait_is_reported(tmp_path):
    job = Job()
    # Rank 0 calls its node's group first, rank 1 its data-parallel group, and both wait for each other through others.
    job.groups["20", "first"] = job.groups["21", "second"] = [0, 1]
    job.call(0, "first", state="started")
    job.call(1, "second", state="started")
    report = job.write(tmp_path)
    assert report.is_circular
    assert {tuple(group.suspects) for group in report.stuck_groups} == {(0,), (1,)}


def test_receive_without_a_send_names_the_sender(tmp_path):
    job = Job()
    # In the group of ranks 2, 6, 10, 14, these are 1 and 2: rank 10 waits for rank 6.
    name = job.group(10, "data_parallel")
    receive = entry(name, 20, "nccl:recv 2<-1", state="started", is_p2p=True, p2p_seq_id=4)
    job.entries[10].append(receive)
    report = job.write(tmp_path)
    assert report.suspects == [6]
    assert (
        report.stuck_groups[0].text
        == "rank 6 has not arrived at receive from rank 6 #4 of data_parallel; 1 rank waits in it"
    )
    job.entries[6].append(entry(name, 20, "nccl:send 1->2", state="started", is_p2p=True, p2p_seq_id=7))
    report = job.write(tmp_path)
    assert report.suspects == []
    assert report.stuck_groups[0].text == (
        "all ranks have called send to rank 10 #7 of data_parallel, and it does not end: the communication stands still"
    )


def batch(name, number, *operations, state="completed"):
    """Return the entries of a batch of sends and receives; NCCL updates only the last one."""
    calls = [
        entry(name, 0, f"nccl:{operation}", state="scheduled", is_p2p=True, p2p_seq_id=number)
        for operation in operations
    ]
    return [*calls, entry(name, 0, "nccl:coalesced", state=state, is_p2p=True, p2p_seq_id=number, size=())]


@pytest.mark.parametrize("reports_starts", [True, False])
def test_pipeline_that_waits_for_its_first_stage_is_understood(tmp_path, reports_starts):
    waiting = "started" if reports_starts else "scheduled"
    job = Job(num_steps=2)
    for place in range(4):  # the data-parallel groups are pipelines of four stages here
        name = job.group(place, "data_parallel")
        for stage in range(4):
            entries = job.entries[place + 4 * stage]
            for number in (1, 2):
                neighbours = ([f"recv {stage}<-{stage - 1}"] if stage else []) + (
                    [f"send {stage}->{stage + 1}"] if stage < 3 else []
                )
                entries += batch(name, number, *neighbours)
    assert job.write(tmp_path).stuck_groups == []
    # Rank 2 never sends again. Its tensor-parallel peers and the later stages wait; their programs run ahead.
    for place in (0, 1, 3):
        job.call(place, "tensor_parallel", state=waiting)
    for place in range(4):
        name = job.group(place, "data_parallel")
        for stage in (1, 2, 3):
            rank = place + 4 * stage
            job.entries[rank] += batch(name, 3, f"recv {stage}<-{stage - 1}", state=waiting)
            job.call(rank, "tensor_parallel", state="scheduled")
    report = job.write(tmp_path)
    assert report.suspects == [2]
    assert report.stuck_groups[0].suspects == [2]


def test_call_that_was_aborted_is_not_done(tmp_path):
    job = Job()
    for rank in range(16):
        if rank != 5:
            job.call(rank, "tensor_parallel", state="started" if rank in (4, 6, 7) else "completed")
    for rank in (4, 6, 7):
        job.entries[rank][-1]["retired"] = True
    assert job.write(tmp_path).suspects == [5]


def test_shapes_of_equal_size_and_other_file_names(tmp_path):
    job = Job(num_steps=2)
    for rank in range(16):
        job.call(rank, "data_parallel", size=(64, 64) if rank == 4 else (4096,), state="started")
    job.entries[7].pop()
    assert job.write(tmp_path).suspects == [7]
    for file in list(tmp_path.iterdir()):
        rank = file.name.rpartition("_")[2]
        file.rename(tmp_path / f"rank{rank}_nccl_dump.txt")
    assert find_hang(read_dumps(tmp_path)).suspects == [7]


def test_hostile_and_damaged_files_are_reported(tmp_path):
    job = Job(num_steps=2)
    whole = job.write(tmp_path)
    assert (whole.stuck_groups, whole.unreadable) == ([], [])
    data = (tmp_path / "nccl_trace_rank_0").read_bytes()
    marker = tmp_path / "executed"

    class Executes:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    nested = b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"K\x01s."
    hostile = {
        0: data[: len(data) // 2],
        1: b"",
        2: pickle.dumps(Executes()),
        3: b"\x80\x02}r\xff\xff\xff\xff.",  # a memo of four thousand million places
        4: nested,
        5: b'{"entries": [' * 100_000,
        6: b'{"entries": 5}',
        7: json.dumps({"entries": [{"process_group": 5, "input_sizes": [[[[1]]]]}, 7]}).encode(),
        8: pickle.dumps({"entries": [], "pg_config": {"0": {"ranks": "[0, 999999999999999999999]"}}}),
        9: random.Random(0).randbytes(4096),
    }  # fmt: skip
    for rank, content in hostile.items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(content)
    (tmp_path / "nccl_trace_rank_10").write_bytes(b"\x80")
    os.truncate(tmp_path / "nccl_trace_rank_10", 300 << 20)
    (tmp_path / "other_11").write_bytes(data)
    report = find_hang(read_dumps(tmp_path))
    assert not marker.exists()
    reasons = {file.path: file.reason for file in report.unreadable}
    assert "refused to unpickle" in reasons["nccl_trace_rank_2"]
    assert reasons["nccl_trace_rank_1"] == "the file is empty"
    assert reasons["nccl_trace_rank_10"] == "the file is larger than 256 MiB"
    assert "rank 11 has another dump" in reasons["other_11"]
    assert {f"nccl_trace_rank_{rank}" for rank in (0, 3, 4, 5, 6, 9)} <= reasons.keys()


def test_doctor_prints_the_rank_and_its_cause(tmp_path):
    job = Job()
    for rank in {*range(16)} - {9}:
        job.call(rank, "tensor_parallel", state="started" if rank in (8, 10, 11) else "completed")
    for rank in {*range(16)} - {8, 9, 10, 11}:
        job.call(rank, "data_parallel", state="started")
    job.write(tmp_path, ranks={*range(16)} - {3})
    (tmp_path / "trace_20").touch()
    result = CliRunner().invoke(doctor, ["--flight-recorder", str(tmp_path), "--fail-on", "warning"])
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert text.startswith("The job waits for rank 9. Rank 9 has not arrived at all_reduce #21 of tensor_parallel;")
    assert "No dump of rank 3:" in text
    assert "Ignored trace_20: the file is empty" in text
    printed = json.loads(CliRunner().invoke(doctor, ["--flight-recorder", str(tmp_path), "--json"]).output)
    assert (printed["suspects"], printed["missing_dumps"], printed["num_dumps"]) == ([9], [3], 15)


def test_folder_without_dumps_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        read_dumps(tmp_path / "nothing")
    (tmp_path / "readme.txt").write_text("no dump")
    with pytest.raises(ConfigError, match="the name of a dump ends in the rank"):
        read_dumps(tmp_path)
    (tmp_path / "trace_0").touch()
    with pytest.raises(ConfigError, match="trace_0: the file is empty"):
        read_dumps(tmp_path)
