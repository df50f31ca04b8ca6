"""False alarms, detection and cost of the rules about ranks, as tables.

``make bench-ranks``, or ``python -m benchmarks.ranks [PART …]`` with the parts `cost`, `collectives`, `read`,
`detection` and `alarms`.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.ranks.files import write_job
from benchmarks.ranks.jobs import LENGTH, NOISES, SimulatedJob, observe, slow_rank
from tachograph.diagnostics import RuleEngine, resolve_rules
from tachograph.journal import RunFolder, read_rank_map, write_rank_map
from tachograph.reader import read_rank_heat, read_ranks, read_stacks
from tachograph.records import RANK_MAP_COLUMNS

# By number of ranks: how many jobs of how many windows.
ALARM_JOBS = {4: (10, 100), 8: (10, 100), 64: (4, 250), 1_024: (1, 1_000), 10_000: (1, 1_000)}
EXCESSES = (0.07, 0.10, 0.15, 0.20, 0.30, 0.50)
NUM_WINDOWS = 96
NUM_JOBS = {8: 20, 64: 10}
EXPECTED = {  # of the rule's design, with 64 ranks: share in percent / median steps
    "normal 3 %": "100/152  100/48  100/48  100/48  100/48  100/48",
    "hardware 2 %": "13  67/200  100/48  100/48  100/48  100/48",
    "AR(1) 3 %": "33  100/336  100/80  100/48  100/48  100/48",
    "lognormal 0.3": "0  3  87/768  100/768  100/192  100/104",
}
LAYOUTS = {"8 ranks per file": (144, 8), "a file per rank": (40, 1)}
"""By name of a layout, windows of each rank and ranks per file. A day has 144 windows of ten minutes."""
RULES = ("straggler", "slow_communication", "unequal_work", "step_outliers")


def new_engine(job: SimulatedJob) -> RuleEngine:
    """Return an engine with the rules about ranks that has got the labels of all ranks."""
    thresholds_by_rule = resolve_rules(None)
    engine = RuleEngine({name: thresholds_by_rule[name] for name in RULES})
    for rank, record in enumerate(job.starts()):
        observe(engine, rank, record)
    return engine


def count_alarms() -> None:
    """Print how many alerts healthy jobs cause."""
    print(f"\nAlerts of healthy jobs, windows of {LENGTH} steps; lognormal work is unequal, so one alert says that\n")
    print("noise             ranks     jobs x windows  straggler  communication  unequal work  step outliers")
    for num_ranks, (num_jobs, num_windows) in ALARM_JOBS.items():
        for noise in NOISES:
            rules: Counter[str] = Counter()
            for seed in range(num_jobs):
                job = SimulatedJob(num_ranks, noise, seed, hosts=max(1, num_ranks // 8), is_measured=seed % 2 == 0)
                engine = new_engine(job)
                for _ in range(num_windows):
                    alerts = job.observe_window(engine)
                    rules.update(alert["rule"] for alert in alerts if alert["status"] == "opened")
            counts = "  ".join(f"{rules[rule]:>12}" for rule in RULES)
            print(f"{noise:<16}  {num_ranks:>6}  {num_jobs:>5} x {num_windows:>6}  {counts}", flush=True)


def detect() -> None:
    """Print which share of slow ranks is found, and after how many steps."""
    for num_ranks, num_jobs in NUM_JOBS.items():
        print(
            f"\nOne of {num_ranks} ranks is slow: share named in percent / median steps until then; other ranks named\n"
        )
        print(f"{'noise':<16}  " + "  ".join(f"+{100 * excess:.0f} %".rjust(9) for excess in EXCESSES) + "  others")
        for noise in NOISES:
            cells, num_wrong = [], 0
            for excess in EXCESSES:
                delays = []
                for seed in range(num_jobs):
                    job = SimulatedJob(num_ranks, noise, 1_000 + seed, fault=slow_rank(3, excess))
                    engine = new_engine(job)
                    ranks = set()
                    while job.step < NUM_WINDOWS * LENGTH and 3 not in ranks:
                        for rank, record in enumerate(job.window()):
                            alerts = observe(engine, rank, record)
                            ranks |= {alert["evidence"]["rank"] for alert in alerts if alert["rule"] == "straggler"}
                    if 3 in ranks:
                        delays.append(job.step)
                    num_wrong += len(ranks - {3})
                cells.append(
                    f"{100 * len(delays) / num_jobs:.0f}" + (f"/{statistics.median(delays):.0f}" if delays else "")
                )
            print(f"{noise:<16}  " + "  ".join(cell.rjust(9) for cell in cells) + f"  {num_wrong:>6}", flush=True)
            if num_ranks == 64 and noise in EXPECTED:
                print(f"{'  design':<16}  " + "  ".join(cell.rjust(9) for cell in EXPECTED[noise].split()))


def measure_cost() -> None:
    """Print the processor time of one window, and of the map of the whole run, every 20 seconds."""
    print("\nProcessor time of a window, memory of the process, and processor time to build and to read the map\n")
    print("  ranks   records   scores    memory   build     read      map")
    for num_ranks in (8, 64, 1_024, 10_000):
        job = SimulatedJob(num_ranks, "normal 3 %", 1, hosts=max(1, num_ranks // 8), fault=slow_rank(3, 0.3))
        engine = new_engine(job)
        engine.keep_rank_map(None)
        records_s, scores_s = [], []
        for _ in range(20):
            *records, last_record = job.window()
            first_s = time.process_time()
            for rank, record in enumerate(records):
                observe(engine, rank, record)
            last_s = time.process_time()
            observe(engine, num_ranks - 1, last_record)  # the window is complete and is scored
            records_s.append(last_s - first_s)
            scores_s.append(time.process_time() - last_s)
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        times = f"{1e3 * statistics.median(records_s):>5.1f} ms {1e3 * statistics.median(scores_s):>5.1f} ms"
        print(f"{num_ranks:>7}  {times}  {memory_mb:>5.0f} MB  {_measure_map(engine)}", flush=True)


def _measure_map(engine: RuleEngine) -> str:
    """Return what it costs to build, write and read the map if all of its columns are used."""
    rank_map = engine.build_rank_map()
    assert rank_map is not None
    cells = {  # random, so that they cannot be compressed
        quantity: zlib.compress(os.urandom(rank_map.num_rows * RANK_MAP_COLUMNS), 1) for quantity in rank_map.cells
    }
    last = rank_map.first_iteration + RANK_MAP_COLUMNS * rank_map.iterations_per_column - 1
    full_map = msgspec.structs.replace(rank_map, cells=cells, num_columns=RANK_MAP_COLUMNS, last_iteration=last)
    engine.keep_rank_map(full_map)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path))
        first_s = time.process_time()
        built_map = engine.build_rank_map()
        assert built_map is not None
        write_rank_map(folder, built_map)
        written_s = time.process_time()
        stored_map = read_rank_map(folder)
        assert stored_map is not None and stored_map.codes_of("own")
        read_s = time.process_time()
        num_bytes = folder.rank_map.stat().st_size
    return f"{1e3 * (written_s - first_s):>5.1f} ms  {1e3 * (read_s - written_s):>5.1f} ms  {num_bytes / 1e3:>4.0f} kB"


def measure_collectives() -> None:
    """Print what a call of `torch.distributed` costs more if it is counted and timed."""
    import torch
    import torch.distributed

    from tachograph.recorder.collectors.collectives import CollectiveCounter

    counter = CollectiveCounter(lambda kind, fields: None)
    tensor = torch.ones(8)

    def call(argument: torch.Tensor) -> None:
        pass

    wrapper = counter._wrapper("all_reduce", torch.distributed.ProcessGroup, torch.compiler)(call)
    rounds = []
    for _ in range(20):
        times = []
        for function in (call, wrapper):
            first_s = time.process_time()
            for _ in range(10_000):
                function(tensor)
            times.append(time.process_time() - first_s)
        rounds.append((times[1] - times[0]) / 10_000)
        counter.wait_in_iteration(0.0, time.perf_counter())
    counter.forget()
    print(f"\nA collective takes {1e6 * statistics.median(rounds):.2f} µs longer (at most 3 µs)")


def measure_reading() -> None:
    """Print how long it takes to read the files of large jobs, which the machine has in memory."""
    print("\nReading a job of 10,000 ranks that runs: processor time and elapsed time, the best of five\n")
    print("files                      ranks (1 s with stacks)  stacks       heat map (0.5 s, 250 kB)    show (2 s)")
    for name, (num_windows, ranks_per_host) in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as path:
            folder = RunFolder(Path(path) / "job")
            num_bytes = write_job(folder.path, 10_000, num_windows, ranks_per_host=ranks_per_host)
            heat = read_rank_heat(folder)
            heat_kb = 0.0 if heat is None else len(heat.cells) / 1e3
            readers: list[Callable[[RunFolder], object]] = [read_ranks, read_stacks, read_rank_heat]
            ranks, stacks, heat_times = (_best_times(read, folder) for read in readers)
            first_s = time.perf_counter()
            command = [sys.executable, "-m", "tachograph", "show", "job", "--log-dir", path]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            show_s = time.perf_counter() - first_s
            print(
                f"{name:<16} {num_bytes / 1e6:>4.0f} MB  {ranks:<23}  {stacks}  {heat_times} {heat_kb:>4.0f} kB"
                f"      {show_s:>8.2f} s",
                flush=True,
            )


def _best_times(read: Callable[[RunFolder], object], folder: RunFolder) -> str:
    processor_s, elapsed_s = [], []
    for _ in range(5):
        first = time.process_time(), time.perf_counter()
        read(folder)
        processor_s.append(time.process_time() - first[0])
        elapsed_s.append(time.perf_counter() - first[1])
    return f"{min(processor_s):.2f} {min(elapsed_s):.2f} s"


if __name__ == "__main__":
    parts = sys.argv[1:] or ["cost", "collectives", "read", "detection", "alarms"]
    if "cost" in parts:
        measure_cost()
    if "collectives" in parts:
        measure_collectives()
    if "read" in parts:
        measure_reading()
    if "detection" in parts:
        detect()
    if "alarms" in parts:
        count_alarms()
