"""Continue the run that saved a checkpoint.

`on_save` writes a small file into each checkpoint that identifies its run. Training that is resumed from a checkpoint
reads it to find the run to continue.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerState, TrainingArguments

from tachograph._base.files import replace_file
from tachograph._base.guard import faults
from tachograph.integrations._common.integration_run import IntegrationRun, RunOptions, is_run
from tachograph.integrations.transformers._call_stack import resume_arguments
from tachograph.reader import CHECKPOINT_RUN_FILE, find_parent
from tachograph.recorder import Run

__all__ = ["log_parents", "plan_run", "read_run_file", "write_run_file"]


def write_run_file(run: Run, checkpoint: str, requested_name: str | None, step: int) -> None:
    """Write into a checkpoint which run saved it."""
    if run.folder is None or not os.path.isdir(checkpoint):
        return
    content = {
        "run_name": run.name,
        "run_id": run.id,
        "asked_name": requested_name or "",
        "log_dir": os.path.relpath(run.folder.path.parent, checkpoint),
        "step": step,
    }
    replace_file(Path(checkpoint, CHECKPOINT_RUN_FILE), json.dumps(content).encode(), below=Path(checkpoint))


def read_run_file(args: TrainingArguments, state: TrainerState, trainer: Any) -> dict[str, str]:
    """Return the run file of the checkpoint that training is resumed from; empty if it has none."""
    for checkpoint in _checkpoints(args, state, trainer):
        try:
            with open(os.path.join(checkpoint, CHECKPOINT_RUN_FILE), encoding="utf-8") as file:
                content = json.load(file)
        except faults(OSError, ValueError):
            continue
        if isinstance(content, dict):
            run_file = {str(name): str(value) for name, value in content.items()}
            return {**run_file, "log_dir": os.path.normpath(os.path.join(checkpoint, run_file.get("log_dir", "")))}
    return {}


def log_parents(run: Run, args: TrainingArguments, state: TrainerState, model: Any, trainer: Any) -> None:
    """Record the checkpoint that training is resumed from, and the run that saved the model before it was loaded."""
    if state.global_step:
        for checkpoint in _checkpoints(args, state, trainer):
            if os.path.isdir(checkpoint):
                run.log_parent(os.path.abspath(checkpoint), how="resume")
                break
    source = getattr(model, "name_or_path", None)
    if isinstance(source, str) and os.path.isdir(source) and run.folder is not None:
        parent = find_parent(os.path.abspath(source), str(run.folder.path.parent), "finetune")
        if parent is not None and parent.run_id is not None:  # any other folder is a model of unknown origin
            run.add_parent(parent)


def _checkpoints(args: TrainingArguments, state: TrainerState, trainer: Any) -> list[str]:
    """Return the folders that training may be resumed from, the most likely one first."""
    checkpoints = resume_arguments(trainer)
    if isinstance(args.resume_from_checkpoint, str):
        checkpoints.append(args.resume_from_checkpoint)
    return [*checkpoints, os.path.join(args.output_dir or ".", f"checkpoint-{state.global_step}")]


def plan_run(plan: RunOptions, job: IntegrationRun, run_file: Mapping[str, str] | None) -> tuple[RunOptions, bool]:
    """Return the plan of a run, and whether it resumes one: our own earlier run, or the run of the checkpoint.

    Args:
        plan: the plan that the user gave.
        job: the job so far.
        run_file: the content of the checkpoint's run file; None if training is not resumed.
    """
    before = job.run
    if plan.run is not None:
        return plan, False
    if before is not None and job.owns_run and before.folder is not None:
        settings = {**plan.settings, "log_dir": str(before.folder.path.parent)}
        return RunOptions(None, before.folder.name, settings), True
    if run_file is None:
        return plan, False
    name = run_file.get("run_name", "")
    log_dir = str(plan.settings.get("log_dir") or run_file.get("log_dir"))
    is_same_name = plan.name in {None, name, run_file.get("asked_name")}
    if is_same_name and is_run(log_dir, name, run_file.get("run_id")):
        return RunOptions(None, name, {**plan.settings, "log_dir": log_dir}), True
    # Without a run file, the checkpoint may belong to a run that was recorded in another way: resume by name.
    return plan, not run_file
