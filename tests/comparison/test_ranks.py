"""The memory of runs with several ranks, recorded by real processes."""

from __future__ import annotations

from dataclasses import replace

from tachograph.comparison import (
    Baseline,
    RunEvidence,
    compare_groups,
    judge_history,
    load_baseline,
    load_folder,
    save_baseline,
)
from tachograph.journal import RunFolder
from tests.conftest import HANG_S, wait_for

# torch without a GPU has no allocator statistics; those of rank 1 are an argument.
SOURCE = """
    import os, sys, types
    name, logs, num_gib, num_mb = sys.argv[1:]
    is_first = os.environ["RANK"] == "0"
    size = int((2.0 if is_first else float(num_gib)) * 2**30)
    stats = {f"{kind}_bytes": {"all": {"current": size, "peak": size}} for kind in ("allocated", "reserved")}
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1, memory_stats_as_nested_dict=lambda index: stats
    )
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    held = b"x" * (0 if is_first else int(num_mb) << 20)
    import tachograph as tacho
    run = tacho.init(name, log_dir=logs, console=False, flush_interval_s=0.05, system_interval_s=0.05, git=False)
    for step in range(60):
        run.log({"train_loss": 1.0}, step=step)
    sys.stdin.readline()
    run.finish()
"""


def record_job(logs, script, name, num_gib, num_mb, port):
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    processes = [
        script(SOURCE, name, logs, num_gib, num_mb, env={**job, "RANK": str(rank)}).process for rank in range(2)
    ]
    journal = logs / name / "ranks" / "00001.jsonl"
    wait_for(lambda: journal.exists() and b'"cpu_mem_rss_mb"' in journal.read_bytes(), what="a sample of rank 1")
    for process in processes:
        process.communicate("\n", timeout=HANG_S)
    assert journal.read_bytes().count(b'"event":"system"') <= 20  # only what changed
    return load_folder(RunFolder(logs / name))


def test_memory_is_that_of_the_highest_rank(logs, script, tmp_path):
    before = record_job(logs, script, "before", 3.0, 100, 29521)
    after = record_job(logs, script, "after", 3.3, 250, 29522)
    assert before.memory["device_allocated"] == after.memory["device_allocated"] == 2 << 30
    assert before.rank_memory["device_allocated"] == (1, 3 << 30, 2)
    assert after.rank_memory["host"].rank == 1
    assert after.rank_memory["host"].bytes > after.memory["host"] + (150 << 20)
    report = compare_groups([before], [after])
    for name in ("device_memory", "device_memory_reserved", "host_memory"):
        metric = report.metric(name)
        assert (name, metric.verdict) == (name, "more")
        assert "rank 1 of 2 in 'after'" in metric.notes[0]
    # A run whose other ranks recorded nothing, as in older journals, is compared by rank 0.
    older = replace(before, rank_memory={})
    found = compare_groups([older], [after]).metric("device_memory")
    assert (found.verdict, found.notes) == ("equal", ["of rank 0: 'before' has no readings of other ranks"])
    baseline = Baseline()
    baseline.add(before)
    save_baseline(tmp_path / "baseline.json", baseline)
    restored = load_baseline(tmp_path / "baseline.json").evidence()
    assert compare_groups(restored, [after]).metric("device_memory").verdict == "more"
    # Runs with the same loss and times would count as copies of one run.
    nights = [replace(before if number < 8 else after, loss=RunEvidence("").loss) for number in range(12)]
    series = [
        replace(
            run,
            name=f"{number}",
            run_id=f"{number}",
            session_tag=None,
            started=float(number),
            loss=RunEvidence("").loss,
        )
        for number, run in enumerate(nights)
    ]
    assert [change.run for change in judge_history(series, ["device_memory"]).changes] == ["8"]
    assert judge_history([replace(older, started=0.0), *series], ["device_memory"]).changes == []
