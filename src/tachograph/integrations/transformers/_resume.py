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
from tachograph.integrations._common.integration_run import RUN_FILE, IntegrationRun, RunOptions, is_run
from tachograph.integrations.transformers._call_stack import resume_arguments
from tachograph.recorder import Run

__all__ = ["plan_run", "read_run_file", "write_run_file"]


def write_run_file(run: Run, checkpoint: str, requested_name: str | None) -> None:
    """Write into a checkpoint which run saved it."""
    if run.folder is None or not os.path.isdir(checkpoint):
        return
    content = {
        "run_name": run.name,
        "run_id": run.id,
        "asked_name": requested_name or "",
        "log_dir": os.path.relpath(run.folder.path.parent, checkpoint),
    }
    replace_file(Path(checkpoint, RUN_FILE), json.dumps(content).encode(), below=Path(checkpoint))


def read_run_file(args: TrainingArguments, state: TrainerState, trainer: Any) -> dict[str, str]:
    """Return the run file of the checkpoint that training is resumed from; empty if it has none."""
    checkpoints = resume_arguments(trainer)
    if isinstance(args.resume_from_checkpoint, str):
        checkpoints.append(args.resume_from_checkpoint)
    checkpoints.append(os.path.join(args.output_dir or ".", f"checkpoint-{state.global_step}"))
    for checkpoint in checkpoints:
        try:
            with open(os.path.join(checkpoint, RUN_FILE), encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            saved = {str(name): str(value) for name, value in content.items()}
            return {**saved, "log_dir": os.path.normpath(os.path.join(checkpoint, saved.get("log_dir", "")))}
    return {}


def plan_run(plan: RunOptions, job: IntegrationRun, saved: Mapping[str, str] | None) -> tuple[RunOptions, bool]:
    """Return the plan of a run, and whether it resumes one: our own earlier run, or that of the checkpoint.

    Args:
        plan: the plan that the user gave.
        job: the job so far.
        saved: the content of the checkpoint's run file; None if training is not resumed.
    """
    before = job.run
    if plan.run is not None:
        return plan, False
    if before is not None and job.owns_run and before.folder is not None:
        settings = {**plan.settings, "log_dir": str(before.folder.path.parent)}
        return RunOptions(None, before.folder.name, settings), True
    if saved is None:
        return plan, False
    name = saved.get("run_name", "")
    log_dir = str(plan.settings.get("log_dir") or saved.get("log_dir"))
    is_same_name = plan.name in {None, name, saved.get("asked_name")}
    if is_same_name and is_run(log_dir, name, saved.get("run_id")):
        return RunOptions(None, name, {**plan.settings, "log_dir": log_dir}), True
    # Without a run file, the checkpoint may belong to a run that was recorded in another way: resume by name.
    return plan, not saved
