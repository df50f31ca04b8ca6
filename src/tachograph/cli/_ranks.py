"""The ranks of a distributed job, as `tacho show` prints them."""

from __future__ import annotations

import time
from collections import Counter

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tachograph.cli._format import add_row, duration, json_text, new_console, new_table, number, safe, state_text
from tachograph.cli._terminal import echo
from tachograph.cli._time import short_time
from tachograph.journal import RunFolder
from tachograph.reader import RankView, RunHistory, read_stacks, worst_ranks

__all__ = ["print_ranks", "render_ranks"]

_NUM_WORST = 8
"""How many ranks are listed if there are many."""

_MAX_LISTED = 16
_SLOW_SCORE = 0.935
_LONG_PHASE_S = 10.0
_MAX_STACK_LINES = 12


def print_ranks(history: RunHistory, num_worst: int | None, *, as_json: bool) -> None:
    """Print the ranks of a run: all of them, or only the worst."""
    ranks = history.ranks
    if as_json:
        listed = ranks if num_worst is None else worst_ranks(ranks)[:num_worst]
        stacks = read_stacks(history.folder)
        echo(json_text({"ranks": msgspec.to_builtins(listed), "stacks": msgspec.to_builtins(stacks)}))
    elif ranks:
        new_console().print(render_ranks(history, ranks, num_worst))
    else:
        echo("The run was recorded by one process: it has no other ranks.")


def render_ranks(history: RunHistory, ranks: list[RankView], num_worst: int | None = None) -> RenderableType:
    """Return the table of the ranks, the worst first if they are many, and where ranks that hang are.

    Args:
        history: the run.
        ranks: its ranks.
        num_worst: list only so many; by default all, or eight of more than sixteen.
    """
    if num_worst is None:
        num_worst = len(ranks) if len(ranks) <= _MAX_LISTED else _NUM_WORST
    listed = ranks if num_worst >= len(ranks) else worst_ranks(ranks)[:num_worst]
    numbers = ("iterations", "iteration", "own", "wait", "errors")
    has_mesh = any(view.mesh for view in listed)
    table = new_table("rank", "host", "pid", *(["mesh"] if has_mesh else []), "state", *numbers, right=numbers)
    for view in listed:
        add_row(
            table,
            str(view.rank),
            safe(view.host or "–"),
            str(view.pid or "–"),
            *([safe(" ".join(f"{name}={value}" for name, value in view.mesh.items()))] if has_mesh else []),
            state_text(view.state),
            number(view.num_iterations),
            short_time(view.mean_iteration_s),
            Text(short_time(view.own_s), style="bold yellow" if (view.score or 1.0) < _SLOW_SCORE else ""),
            short_time(view.wait_s),
            Text(str(view.num_errors), style="bold red") if view.num_errors else "",
        )
    parts: list[RenderableType] = [table]
    for view in listed:
        remark = _remark(view)
        if remark:
            parts.append(Text(f"rank {view.rank}: {safe(remark, 300)}", no_wrap=True, overflow="ellipsis"))
    if len(ranks) > len(listed):
        states = Counter(str(view.state) for view in ranks)
        counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
        parts.append(Text(f"the worst {len(listed)} of {len(ranks)} ranks: {counts}", style="dim"))
    world_size = (history.latest("start") or [{}])[-1].get("world_size")
    if isinstance(world_size, int) and world_size > len(ranks):
        num_missing = world_size - len(ranks)
        parts.append(Text(f"{num_missing} of {world_size} ranks left no journal in this folder", style="yellow"))
    return Group(*parts, *_stacks(history.folder))


def _remark(view: RankView) -> str:
    """Return the first line of its error, or its activity of long duration."""
    text = (view.error or (view.reason if view.rank else "") or "").partition("\n")[0]  # the headline has rank 0's
    if text or view.phase_since is None:
        return text
    took_s = time.time() - view.phase_since
    operation = view.collective or view.phase
    if took_s < _LONG_PHASE_S or not (operation or view.location):
        return ""
    where = f" at {view.location}" if view.location else ""
    return f"{f'in {operation}' if operation else 'running'}{where} for {duration(took_s)}"


def _stacks(folder: RunFolder) -> list[RenderableType]:
    """Return the stacks of ranks that hung, equal ones together."""
    parts: list[RenderableType] = []
    for group in read_stacks(folder):
        ranks = ", ".join(map(str, group.ranks[:_NUM_WORST])) + (" …" if len(group.ranks) > _NUM_WORST else "")
        noun = "rank" if len(group.ranks) == 1 else f"{len(group.ranks)} ranks:"
        lines = [safe(line, 200) for line in group.lines[-_MAX_STACK_LINES:]]
        parts += [Text(), Text(f"{noun} {ranks} hung in"), Text("\n".join(lines), style="dim")]
    return parts
