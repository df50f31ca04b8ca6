"""Which tasks are evaluated: grouped by the number of examples in the prompt, and found before training."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import Any

from tachograph.exceptions import PluginError

__all__ = ["LoadedTasks", "find_tasks", "load_tasks", "parse_tasks"]

TaskGroups = dict[int | None, list[str]]
"""The names of the tasks by their number of examples; None: as each task defines it."""
LoadedTasks = list[tuple[int | None, dict[str, Any]]]
"""The number of examples and the tasks of each group, as the harness evaluates them."""
_MAX_NEAR = 3
_SEED = 1234
"""The harness's own default for the choice of examples, so that results can be compared."""


def parse_tasks(entries: Sequence[str]) -> TaskGroups:
    """Return the tasks by their number of examples: `gsm8k:5` has five.

    Raises:
        ValueError: if an entry is empty or repeated, or there is none.
    """
    groups: TaskGroups = {}
    for entry in entries:
        name, colon, count = entry.strip().rpartition(":")
        num_fewshot = int(count) if colon and count.isdecimal() else None
        task = name.strip() if num_fewshot is not None else entry.strip()
        if not task:
            raise ValueError(
                f"{entry!r} names no task: write a name such as hellaswag, or hellaswag:5 for five examples"
            )
        if task in groups.setdefault(num_fewshot, []):
            raise ValueError(f"{entry!r} is listed twice: remove one")
        groups[num_fewshot].append(task)
    if not groups:
        raise ValueError("no task is listed: add one, such as hellaswag")
    return groups


def find_tasks(groups: TaskGroups, include_path: str | Sequence[str] | None, *, include_defaults: bool) -> Any:
    """Return a task manager of the harness that has all tasks.

    The tasks of the harness are thousands of files and take about 20 s to index, so they are read only if a task is not
    among the user's own.

    Args:
        groups: the tasks.
        include_path: folders with tasks of the user.
        include_defaults: whether to search the tasks of the harness.

    Raises:
        PluginError: if a task is missing.
    """
    from lm_eval.tasks import TaskManager

    paths = [include_path] if isinstance(include_path, str) else list(include_path or [])
    for path in paths:
        if not os.path.isdir(path):
            raise PluginError(f"lm_eval_include_path: {path!r} is not a folder")
    names = [name for group in groups.values() for name in group]
    manager = TaskManager(include_path=paths, include_defaults=False) if paths else None
    if manager is None or not _has_all(manager, names):
        if include_defaults:
            manager = TaskManager(include_path=paths or None)
        elif manager is None:
            raise PluginError("lm_eval_include_defaults is false, but lm_eval_include_path is missing: no task exists")
    _check_names(manager, names, include_defaults=include_defaults)
    return manager


def _has_all(manager: Any, names: list[str]) -> bool:
    return all(_is_known(manager, name) for name in names)


def _is_known(manager: Any, name: str) -> bool:
    return name in manager.task_index or (name.endswith((".yaml", ".yml")) and os.path.isfile(name))


def _check_names(manager: Any, names: list[str], *, include_defaults: bool) -> None:
    missing = [name for name in names if not _is_known(manager, name)]
    if not missing:
        return
    task_names = manager.all_tasks
    problems = []
    for name in missing:
        similar_names = difflib.get_close_matches(name, task_names, n=_MAX_NEAR, cutoff=0.6)
        problems.append(
            repr(name) + (f" (did you mean {' or '.join(map(repr, similar_names))}?)" if similar_names else "")
        )
    where = f"{len(task_names)} tasks, groups and tags are known"
    if not include_defaults:
        where += ", all from lm_eval_include_path, because lm_eval_include_defaults is false"
    raise PluginError(
        f"lm_eval_tasks: unknown task {', '.join(problems)}; {where}. Correct the name, or add the folder of its YAML "
        "file to lm_eval_include_path"
    )


def load_tasks(manager: Any, groups: TaskGroups) -> LoadedTasks:
    """Load tasks with their data.

    Raises:
        PluginError: if a task cannot be loaded, or not be evaluated as asked.
    """
    return [(num_fewshot, _load_group(manager, names, num_fewshot)) for num_fewshot, names in groups.items()]


def _load_group(manager: Any, names: list[str], num_fewshot: int | None) -> dict[str, Any]:
    try:
        group: dict[str, Any] = manager.load(list(names))
    except Exception as error:  # the code of a task may raise anything
        raise PluginError(
            f"lm_eval_tasks: cannot load {', '.join(names)}: {type(error).__name__}: {error}. Check the YAML file and "
            "whether the dataset can be reached"
        ) from error
    for name, task in group["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise PluginError(
                f"lm_eval_tasks: task {name!r} executes code that the model writes, which is not supported here: "
                "remove it, and evaluate it with the harness in a sandbox"
            )
        task_num_fewshot = task.get_config("num_fewshot")
        if num_fewshot and task_num_fewshot == 0:
            raise PluginError(
                f"lm_eval_tasks: task {name!r} allows no examples (num_fewshot: 0 in its YAML file), but "
                f"{num_fewshot} are asked for: remove :{num_fewshot}"
            )
        if num_fewshot is not None or task_num_fewshot is None:
            task.set_config(key="num_fewshot", value=num_fewshot or 0)
        task.set_fewshot_seed(seed=_SEED)
    return group
