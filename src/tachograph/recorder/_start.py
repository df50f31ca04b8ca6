"""Starting a run: from settings and facts to a `Run` with its writer. Also finds the current run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from tachograph._base import ranks
from tachograph._base.clock import SystemClock, WallAnchor
from tachograph._base.guard import guard, reraise_from_signal_handler, warn
from tachograph._base.mesh import mesh_coordinates
from tachograph._base.settings import Mode, Settings, resolve_mode
from tachograph._base.threads import TelemetryThread
from tachograph.black_box import BlackBox, DumpWriter, GpuErrors, MemoryReporter
from tachograph.diagnostics import RuleSettings, SignalNames
from tachograph.exceptions import ConfigError, NoRunError
from tachograph.journal import Claim, RunFolder, claim_run_folder, page_of_run, read_records, this_process
from tachograph.reader import overview
from tachograph.recorder._facts import config_facts, git_facts, samples_per_step, system_facts
from tachograph.recorder._files import ReportError, RunFiles
from tachograph.recorder._live_diagnostics import LiveDiagnostics
from tachograph.recorder._process import _runs, latest_run, process_state, watch
from tachograph.recorder._rank_files import RankFiles
from tachograph.recorder._record_builder import RecordBuilder
from tachograph.recorder._run import DisabledRun, RankRun, Run
from tachograph.recorder._writer import Writer
from tachograph.recorder.collectors.baseline_speed import BaselineReader
from tachograph.recorder.collectors.code.collector import CodeCollector
from tachograph.recorder.collectors.collectives import CollectiveCounter
from tachograph.recorder.collectors.energy import energy_fields, read_rank_energy
from tachograph.recorder.collectors.system import MemorySampler, SystemSampler
from tachograph.records import SCHEMA_VERSION, MaskingBudget, RecordCut, ValueProblem, mask_mapping, to_plain

__all__ = ["start_run", "current_run", "log", "worker_run"]

_LAST_FLUSH_S = 0.5
"""How long the end of a run waits for alerts that its last steps may open."""

_hinted_folders: set[str] = set()
"""Log folders for which the command of the dashboard was printed."""


def start_run(
    name: str,
    settings: Settings,
    *,
    config: Any = None,
    resume: bool = False,
    tags: Iterable[str] = (),
    facts: Mapping[str, Any] | None = None,
    any_rank: bool = False,
    rules: Mapping[str, RuleSettings] | None = None,
    signals: SignalNames | None = None,
) -> Run:
    """Claim the folder, write the `start` record and return the run, which becomes the current one."""
    problems: list[ValueProblem] = []
    snapshot = _snapshot(config, problems)
    run_facts = {**config_facts(snapshot), **(facts or {})}
    rank = 0 if any_rank else ranks.rank()
    run: Run
    thread_problem = _try_thread() if settings.enabled else ""
    if thread_problem:
        warn("nothing is recorded, because no thread can be started: %s", thread_problem)
    if not settings.enabled or thread_problem:
        run = DisabledRun(name, settings=settings, backend=None, facts=run_facts)
        watch(run, hooks=False)
        return run
    if rank > 0:
        run = _start_rank(name, rank, settings, run_facts, rules or {})
        watch(run, hooks=settings.hooks)
        return run
    claim = claim_run_folder(settings.log_dir, name, resume=resume)
    try:
        user_fields = {"tags": [str(tag) for tag in tags], "config": snapshot}
        start = {**run_facts, **user_fields}
        run = _start_recording(claim, settings, start, problems, rules, signals)
    except BaseException:
        claim.release()
        raise
    watch(run, hooks=settings.hooks)
    return run


def _try_thread() -> str:
    """Return why no thread can be started: a limit of the system, or an isolated interpreter; empty if one can."""
    thread = TelemetryThread(lambda: None, name="tachograph-test")
    try:
        thread.start()
    except RuntimeError as error:
        reraise_from_signal_handler(error)  # which leaves a lock of the thread released twice
        return str(error)
    thread.join()
    return ""


def _start_recording(
    claim: Claim,
    settings: Settings,
    start: dict[str, Any],
    problems: list[ValueProblem],
    rules: Mapping[str, RuleSettings] | None,
    signals: SignalNames | None,
) -> Run:
    clock = SystemClock()
    folder = claim.folder
    first = _first_start(claim) if claim.is_resume else {}
    run_id = str(first.get("run_id") or os.urandom(8).hex())
    anchor = WallAnchor(clock)
    earlier = overview(folder) if claim.is_resume else None
    anchor.jumps_s = earlier.clock_jumps_s if earlier else 0.0
    builder = RecordBuilder(
        anchor,
        log_every=settings.log_every,
        samples_per_step=samples_per_step(start),
        last_step=earlier.step if earlier else None,
    )

    def make_files(report_error: ReportError, yield_to_writer: Callable[[], None]) -> RunFiles:
        return RunFiles(
            claim, run_id, clock, csv=settings.csv, report_error=report_error, yield_to_writer=yield_to_writer
        )

    writer = Writer(make_files, settings, builder, anchor, clock, rules)
    files = writer.files
    assert isinstance(files, RunFiles)  # noqa: S101 - made above
    identity = {"run_name": folder.name, "run_id": run_id, "schema": SCHEMA_VERSION, "resumed": claim.is_resume}
    # Derived from values that a resumed run keeps, so that all attempts of a run share one session by default.
    identity["session_tag"] = settings.session_tag or first.get("session_tag") or f"{folder.name}-{run_id[:8]}"
    if settings.perf_tag:
        identity["perf_tag"] = settings.perf_tag
    # Labels that the user may also give as facts; a resumed run keeps the labels of its first attempt.
    labels = {name: getattr(settings, name) or first.get(name) for name in ("project", "group", "job_type")}
    environment = {"log_every": settings.log_every, **_rank_facts(), **_guarded_facts(settings)}
    our_fields = {**identity, **environment, "process": this_process()}
    labels = {name: value for name, value in labels.items() if value}
    # Our fields come first and win over fields of the user with the same name.
    facts = {**our_fields, **labels, **start, **our_fields}
    run = Run(
        folder.name,
        settings=settings,
        backend=writer,
        run_id=run_id,
        folder=folder,
        resumed=claim.is_resume,
        facts=facts,
    )
    _add_black_box(run, writer, lambda: run.folder)
    writer.diagnostics = LiveDiagnostics(rules, run.print_line, signals, run.black_box) if rules else None
    writer.add_record("start", facts)
    run._write_destination()
    for problem in problems:
        writer.add_record(
            "telemetry_error", {"kind": "value_not_stored", "field": problem.where, "reason": problem.reason}
        )
        if isinstance(problem, RecordCut):
            warn("the config was too large and was cut at %r: %s", *problem)
    writer.poll_controls = lambda: run.control_panel.poll(writer.files.control_file)
    writer.log_every = lambda: run.log_every
    files.on_move = run._move
    files.on_restore = run._write_destination
    files.print_line = run.print_line
    writer.divert_training = run._use_slow_path
    writer.on_large_step = run._expect_large_steps
    writer.collect = run.collect
    writer.media_pending = run.media_pending
    if settings.control_interval_s:
        files.ensure_control_file(settings.log_every)  # now: it discards requests, and after `init` they count
    writer.start()
    _print_first_lines(run, claim)
    writer.flush(settings.flush_interval_s)
    run._choose_path()
    _add_collectors(run, rules or {})
    _count_collectives(run, writer)
    _start_sampler(run, files)
    return run


def _add_black_box(run: Run, writer: Writer, folder: Callable[[], RunFolder | None], rank: int = 0) -> None:
    settings = run.settings
    if settings.black_box == "off":
        return
    run.dump_writer = DumpWriter(
        folder,
        run._add_if_running,  # an alert may be opened by the last steps
        max_dumps=settings.black_box_max_dumps,
        max_bytes=settings.black_box_max_mb << 20,
        rank=rank,
    )
    box = run.black_box = BlackBox(run.dump_writer, writer.wall_s, lambda: run.last_step)
    box.open_alerts = lambda: [] if writer.diagnostics is None else writer.diagnostics.open_alerts
    run.control_panel.capture = box.request_from_outside
    box.flush = lambda: run.flush(_LAST_FLUSH_S)
    box.divert_training = run._use_slow_path
    writer.black_box = box
    box.attach()
    run.collectors.append(box)


def _start_sampler(run: Run, files: RunFiles) -> None:
    settings = run.settings
    if not settings.system_interval_s:
        return

    def record_energy(counters: dict[str, float]) -> None:
        others = read_rank_energy(files.folder, ranks.job_id()) if ranks.world_size() > 1 else []
        run._add_if_running("energy", energy_fields([counters, *others], settings))

    errors = None if run.dump_writer is None else GpuErrors(run.dump_writer, lambda: run.last_step)
    run._sampler = SystemSampler(
        str(files.folder.path), settings.system_interval_s, run._add_system_sample, record_energy, errors
    )
    run._sampler.start()


def _add_collectors(run: Run, rules: Mapping[str, RuleSettings]) -> None:
    settings = run.settings
    if settings.code:
        run.collectors.append(CodeCollector(run, str(run.facts.get("cwd") or os.curdir)))
    _add_memory_reporter(run)
    run._watch_samples(run.facts.get("config"))
    if "slower_than_baseline" in rules or "step_time_change" in rules:
        run.collectors.append(BaselineReader(run, settings.log_dir))


def _add_memory_reporter(run: Run) -> None:
    if run.dump_writer is not None:
        run.collectors.append(
            MemoryReporter(
                run.dump_writer,
                lambda: run.last_step,
                lambda: getattr(getattr(run, "black_box", None), "ring", None),
                records_history=run.settings.black_box == "memory",
            )
        )


def _print_first_lines(run: Run, claim: Claim) -> None:
    settings = run.settings
    for line in claim.notes:
        run.print_line(line)
    run.print_line(f"run_name={run.name}")
    path = os.path.join(settings.log_dir, run.name, "metrics.jsonl")  # as the user spelled it
    run.print_line(f"Logging to {path} (and metrics.csv)" if settings.csv else f"Logging to {path}")
    _print_dashboard_hint(run, settings.log_dir)


def _count_collectives(run: Run, writer: Writer) -> None:
    """Wrap the functions of `torch.distributed`, now or when it is imported."""
    if run.settings.ranks == "collectives":
        counter = CollectiveCounter(run.add_record)
        run.collectors.append(counter)
        writer.describe_collective = counter.describe
        writer.last_collective = lambda: counter.last_call
        writer.collective_wait = counter.wait_in_iteration


def _print_dashboard_hint(run: Run, log_dir: str) -> None:
    """Print the address of the run in a dashboard that is running, or how to watch the folder, once in a process."""
    page = None
    if run.settings.console and run.path is not None:
        with guard("looking for a dashboard"):
            page = page_of_run(run.path)
    if page is not None:
        run.print_line(f"Watch it at: {page}")
    elif log_dir not in _hinted_folders:
        _hinted_folders.add(log_dir)
        run.print_line(f"Watch it with: tacho ui --log-dir {shlex.quote(log_dir)}")


def _start_rank(
    name: str, rank: int, settings: Settings, run_facts: Mapping[str, Any], rules: Mapping[str, RuleSettings]
) -> Run:
    """Start the journal of a rank other than 0."""
    settings = msgspec.structs.replace(settings, csv=False, control_interval_s=0)
    clock = SystemClock()
    anchor = WallAnchor(clock)
    builder = RecordBuilder(anchor, log_every=settings.log_every)
    is_sent = resolve_mode(settings) is Mode.CLOUD
    writer = Writer(
        lambda report_error, yield_to_writer: RankFiles(settings.log_dir, name, rank, clock, is_sent=is_sent),
        settings,
        builder,
        anchor,
        clock,
        rules,
    )
    facts = {"rank": rank, **_rank_facts()}
    run = RankRun(name, settings=settings, backend=writer, facts={**run_facts, **facts})
    _add_black_box(run, writer, lambda: writer.files.folder if writer.files.can_append else None, rank)
    _add_memory_reporter(run)
    writer.collect = run.collect
    writer.add_record("start", {"schema": SCHEMA_VERSION, **facts, "process": this_process()})
    writer.start()
    run._choose_path()
    _count_collectives(run, writer)
    if settings.system_interval_s:

        def state_energy(counters: dict[str, float]) -> None:
            writer.energy_kwh = counters  # the next heartbeat has it, which rank 0 reads

        run._sampler = MemorySampler(settings.system_interval_s, run._add_system_sample, state_energy)
        run._sampler.start()
    return run


def current_run() -> Run:
    """Return the last started run that has not ended.

    Raises:
        NoRunError: if there is none.
    """
    if not _runs:
        raise NoRunError("no active run: call tachograph.init(...) first, or log to the Run that it returns")
    return _runs[-1]


def log(metrics: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, step: Any = None, **more_metrics: Any) -> None:
    """Record metrics of a training step in the current run; see `Run.log`.

    Raises:
        NoRunError: if this process has never started a run. After a run has ended, nothing is raised.
    """
    if process_state.is_disabled:
        return
    run = latest_run() or worker_run() or current_run()
    run.log(metrics, step, **more_metrics)


def worker_run() -> Run | None:
    """In a worker process without a run, return one that records nothing: telemetry must not kill a worker."""
    import multiprocessing

    if multiprocessing.parent_process() is None:
        return None
    run = DisabledRun("worker", settings=Settings(enabled=False), backend=None)
    watch(run, hooks=False)
    warn("this worker process has no run, so its records are dropped; call tachograph.init() in it to record them")
    return run


def _snapshot(config: Any, problems: list[ValueProblem]) -> dict[str, Any]:
    if config is None:
        return {}
    with MaskingBudget():
        snapshot = to_plain(config, "config", problems)
    if not isinstance(snapshot, dict):
        raise ConfigError(f"config={type(config).__name__}: expected a dict, a dataclass or a namespace")
    return mask_mapping(snapshot)


def _rank_facts() -> dict[str, Any]:
    """Return the number of ranks and, in a job of several, the position of this one, as far as it is known."""
    world_size = ranks.world_size()
    if world_size <= 1:
        return {"world_size": world_size}
    facts = {"local_rank": ranks.local_rank(), "world_size": world_size, "mesh": mesh_coordinates() or None}
    return {name: value for name, value in facts.items() if value is not None}


def _guarded_facts(settings: Settings) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    with guard("collecting system facts"):
        facts.update(system_facts())
    if settings.git:
        with guard("running git"):
            facts["git"] = git_facts()
    return {name: value for name, value in facts.items() if value is not None}


def _first_start(claim: Claim) -> dict[str, Any]:
    return next((record for record in read_records(claim.folder.journal) if record["event"] == "start"), {})
