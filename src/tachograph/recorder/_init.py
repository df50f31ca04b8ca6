"""`init`: from arguments, environment and config to a run that records."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tachograph.clock import Clock, SystemClock, WallAnchor
from tachograph.exceptions import ConfigError, NoRunError
from tachograph.guard import guard
from tachograph.journal import Claim, claim_run_folder, overview, read_records, this_process
from tachograph.recorder._facts import config_facts, git_facts, samples_per_step, system_facts
from tachograph.recorder._pipeline import Pipeline
from tachograph.recorder._process import latest_run, live_runs, watch
from tachograph.recorder._run import Run
from tachograph.recorder._system import SystemSampler
from tachograph.recorder._writer import Writer
from tachograph.records import SCHEMA_VERSION, Problem, mask_mapping, plain
from tachograph.settings import Settings, resolve_settings

__all__ = ["current_run", "init", "log"]


def init(
    name: str | None = None,
    *,
    config: Any = None,
    resume: bool = False,
    tags: Iterable[str] = (),
    facts: Mapping[str, Any] | None = None,
    section: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Begin to record a run and make it the current one.

    Args:
        name: the run's folder inside `log_dir`; ``run-<date>_<time>`` if not given. A name that is in use gets a number
            behind it, and a line says so.
        config: the training config (a dict, a dataclass, an argparse namespace, …): stored in the `start` record with
            secrets masked, and searched for model, LoRA and training facts.
        resume: continue the run of that name if there is one, whether it finished, failed or crashed.
        tags: words to find the run by.
        facts: fields for the `start` record, such as ``{"trainable_params": 12_345, "max_steps": 5000}``.
        section: the `telemetry` section of a config file; see `init_from_config`.
        settings: any of the settings, such as `log_dir`, `log_every` or `enabled`.

    Raises:
        ConfigError: for a setting that does not exist or is out of its range.
        RunNameError: for a name that cannot be a folder.
        LogDirError: if the folder cannot be written.

    Example:
        >>> with tachograph.init("greyjacket", config=config, log_dir="./logs") as run:
        ...     run.log({"train_loss": loss}, step=step)
    """
    chosen = resolve_settings(settings, section)
    if isinstance(tags, str):
        raise ConfigError(f"tags={tags!r}: a list of words is expected, such as tags=[{tags!r}]")
    name = name or time.strftime("run-%Y%m%d_%H%M%S")
    rank = _rank()
    if not chosen.enabled or rank > 0:
        run = Run(name, settings=chosen, writer=None)
        if rank > 0:
            run._say(f"rank {rank} does not record; rank 0 does")
    else:
        claim = claim_run_folder(chosen.log_dir, name, resume=resume)
        try:
            run = start_run(claim, chosen, config=config, tags=tags, facts=facts)
        except BaseException:
            claim.release()
            raise
    watch(run, hooks=chosen.hooks and run.enabled)
    return run


def start_run(
    claim: Claim,
    settings: Settings,
    *,
    config: Any = None,
    tags: Iterable[str] = (),
    facts: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Run:
    """Write the `start` record of a claimed folder and return its run."""
    clock = clock or SystemClock()
    folder = claim.folder
    problems: list[Problem] = []
    snapshot = _snapshot(config, problems)
    start: dict[str, Any] = {**config_facts(snapshot), **(facts or {})}
    before = overview(folder) if claim.resumed else None
    run_id = (_first_run_id(claim) if claim.resumed else None) or secrets.token_hex(8)
    anchor = WallAnchor(clock)
    pipeline = Pipeline(
        anchor,
        log_every=settings.log_every,
        samples_per_step=samples_per_step(start),
        last_step=before.step if before else None,
    )
    writer = Writer(claim, settings, pipeline, anchor, clock, run_id)
    path = os.fspath(folder.path)
    run = Run(
        folder.name, settings=settings, writer=writer, run_id=run_id, path=path, resumed=claim.resumed, clock=clock
    )
    fields: dict[str, Any] = {
        "run_name": folder.name,
        "run_id": run_id,
        "schema": SCHEMA_VERSION,
        "resumed": claim.resumed,
        "tags": [str(tag) for tag in tags],
        "log_every": settings.log_every,
        "world_size": _world_size(),
        **start,
        **_guarded_facts(settings),
        "process": this_process(),
        "config": snapshot,
    }
    writer.note("start", fields)
    for problem in problems:
        writer.note("telemetry_error", {"kind": "value_not_stored", "field": problem.where, "reason": problem.reason})
    with guard("making control.json"):
        writer.control_file.reset({"log_every": settings.log_every}, clock.wall_s())
        writer.poll_controls = lambda: run._panel.poll(writer.control_file)
    writer.start()
    for line in claim.notes:
        run._say(line)
    run._say(f"run_name={folder.name}")
    files = os.path.join(settings.log_dir, folder.name, "metrics.jsonl")  # as the user wrote it
    run._say(f"Logging to {files} (and metrics.csv)" if settings.csv else f"Logging to {files}")
    writer.flush(settings.flush_interval_s)
    run._choose_way()
    if settings.system_interval_s:
        run._sampler = SystemSampler(path, settings.system_interval_s, run._take_sample)
        run._sampler.start()
    return run


def current_run() -> Run:
    """Return the run begun last that has not ended.

    Raises:
        NoRunError: if there is none.
    """
    runs = live_runs()
    if not runs:
        raise NoRunError("no run is being recorded: call tachograph.init(...) first, or log to the Run it returned")
    return runs[-1]


def log(metrics: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, step: Any = None, **named: Any) -> None:
    """Record metrics of a training step in the current run; see `Run.log`.

    Raises:
        NoRunError: if no run was begun in this process. After a run has ended, nothing is raised any more.
    """
    run = latest_run()
    if run is None:
        run = _no_run()
    run.log(metrics, step, **named)


def _no_run() -> Run:
    """In a worker process, logging without a run must not kill the worker; elsewhere it is a mistake in set-up."""
    import multiprocessing

    if multiprocessing.parent_process() is None:
        return current_run()
    run = Run("worker", settings=Settings(enabled=False), writer=None)
    watch(run, hooks=False)
    logging.getLogger("tachograph").warning(
        "tachograph.log() in a worker process that has no run: what it logs is not recorded; "
        "call tachograph.init() there for a run of its own"
    )
    return run


def _snapshot(config: Any, problems: list[Problem]) -> dict[str, Any]:
    if config is None:
        return {}
    snapshot = plain(config, "config", problems)
    if not isinstance(snapshot, dict):
        raise ConfigError(f"config={type(config).__name__}: a dict, a dataclass or a namespace is expected")
    return mask_mapping(snapshot)


def _guarded_facts(settings: Settings) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    with guard("collecting system facts"):
        facts.update(system_facts())
    if settings.git:
        with guard("asking git"):
            facts["git"] = git_facts()
    return {name: value for name, value in facts.items() if value is not None}


def _first_run_id(claim: Claim) -> str | None:
    for record in read_records(claim.folder.journal):
        if record["event"] == "start":
            return str(record["run_id"]) if record.get("run_id") else None
    return None


def _rank() -> int:
    """Return this process's rank in a distributed job, 0 where there is none or it cannot be told."""
    return _count("RANK", 0) if _world_size() > 1 else 0


def _world_size() -> int:
    return _count("WORLD_SIZE", 1)


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default
