"""Find out what unequal work costs a job.

The computations of each step are replayed: an operation begins when its worker is free and when the operation that it
needs has ended. The forward pass of a micro-batch needs the one of the part of the model before, the backward pass the
one of the part behind, and the step ends with the slowest worker. Transfers take no time, so the replay contains only
what computing and waiting for computations cost.

Replays with other durations answer what equal work would gain. Each replay evens out one more kind of difference, so
that the gains add up:

1. All operations of a worker take their usual time: what is lost to micro-batches that differ by chance.
2. All workers of a part of the model take the same time: what is lost to slow workers.
3. All parts of the model take the same time: what is lost to the partition into stages.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph.diagnostics.op_trace._table import OpTable

__all__ = ["Imbalance", "Loss", "find_imbalance"]

_MIN_SLOWDOWN = 1.03
_MIN_CORRELATION = 0.8
_MAX_WORKERS = 8
_SLOWEST_SHARE = 0.03
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class Loss(msgspec.Struct, kw_only=True):
    """What one difference costs."""

    cause: Literal["workers", "stages", "micro_batches"]
    seconds_per_step: float
    text: str
    workers: list[int] = []
    """The ranks of slow workers."""
    stages: list[int] = []


class Imbalance(msgspec.Struct, kw_only=True):
    """What a job loses because its work is unequal."""

    num_steps: int
    num_workers: int
    num_dropped_steps: int
    step_s: float
    """The mean duration of a step, replayed."""
    ideal_step_s: float
    """The same with equal work."""
    losses: list[Loss]
    """The largest first."""
    by_worker: dict[int, float]
    """Seconds per step to gain if a worker took the usual time of its part of the model; the worst ones."""
    by_stage: dict[int, float]
    """Seconds per step to gain if a stage took the usual time of the others."""
    by_kind: dict[str, float]
    """Seconds per step to gain if all operations of a kind took the usual time of their part of the model."""
    slowest_share: float
    """The part of the loss to workers and micro-batches that the slowest 3 % of the workers explain."""
    correlation: float | None
    """Of forward and backward times of the same micro-batch. Near 1, the micro-batches themselves are unequal."""

    @property
    def slowdown(self) -> float:
        """How many times longer a step takes than with equal work."""
        return self.step_s / self.ideal_step_s if self.ideal_step_s > 0 else 1.0

    @property
    def is_balanced(self) -> bool:
        """Whether the loss is too small to matter."""
        return self.slowdown < _MIN_SLOWDOWN


def find_imbalance(ops: OpTable) -> Imbalance:
    """Replay a trace with even durations, and return what each difference costs."""
    workers, worker = np.unique(np.stack([ops.dp, ops.stage]), axis=1, return_inverse=True)
    worker = worker.reshape(-1)
    kind = ops.chunk * 2 + ops.is_backward
    usual = _means(ops.duration_s, worker, kind)
    typical = _medians_over_workers(usual, worker, kind)
    even = _means(typical, ops.is_backward.astype(np.int64), np.zeros_like(kind))

    # The whole loss first; then what single workers, stages and kinds contribute.
    durations = [ops.duration_s, usual, typical, even]
    ranks = np.array([_first(ops.rank, worker == index, -1) for index in range(workers.shape[1])])
    excess = np.array([np.sum((usual - typical)[worker == index]) for index in range(workers.shape[1])])
    worst = np.argsort(-excess)[:_MAX_WORKERS].tolist()
    stages = np.unique(ops.stage).tolist()
    slowest = np.argsort(-excess)[: max(1, round(_SLOWEST_SHARE * workers.shape[1]))]
    durations += [np.where(worker == index, typical, ops.duration_s) for index in worst]
    durations += [np.where(ops.stage == stage, _other_stages(typical, ops, stage), typical) for stage in stages]
    durations += [np.where(ops.is_backward == flag, typical, ops.duration_s) for flag in (False, True)]
    durations.append(np.where(np.isin(worker, slowest), typical, ops.duration_s))
    times = _replay(ops, worker, np.stack(durations, axis=1))

    actual, with_usual, with_typical, with_even = times[:4].tolist()
    rest = iter(times[4:].tolist())
    by_worker = {int(ranks[index]): actual - next(rest) for index in worst}
    by_stage = {stage: with_typical - next(rest) for stage in stages}
    by_kind = {name: actual - next(rest) for name in ("forward", "backward")}
    lost_within_stages = actual - with_typical
    slowest_share = (actual - next(rest)) / lost_within_stages if lost_within_stages > 0 else 0.0
    correlation = _correlation(ops, usual)
    losses = [
        _micro_batch_loss(actual - with_usual, correlation),
        _worker_loss(with_usual - with_typical, workers, excess, usual, typical, worker, ranks),
        _stage_loss(with_typical - with_even, ops, typical),
    ]
    return Imbalance(
        num_steps=len(np.unique(ops.step)),
        num_workers=workers.shape[1],
        num_dropped_steps=ops.num_dropped_steps,
        step_s=actual,
        ideal_step_s=with_even,
        losses=sorted(losses, key=lambda loss: -loss.seconds_per_step),
        by_worker=by_worker,
        by_stage=by_stage,
        by_kind=by_kind,
        slowest_share=min(max(slowest_share, 0.0), 1.0),
        correlation=correlation,
    )


def _first(values: _Ints, mask: npt.NDArray[np.bool_], default: int) -> int:
    index = int(np.argmax(mask))
    return int(values[index]) if mask[index] and values[index] >= 0 else default


def _means(durations: _Floats, first: _Ints, second: _Ints) -> _Floats:
    """Replace each duration by the mean of those with equal keys."""
    _, group = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    return np.asarray((np.bincount(group, durations) / np.bincount(group))[group])


def _medians_over_workers(usual: _Floats, worker: _Ints, kind: _Ints) -> _Floats:
    """Replace the usual duration of each worker by the median of all workers with the same part of the model."""
    typical = np.empty_like(usual)
    for key in np.unique(kind):
        rows = np.flatnonzero(kind == key)
        _, first = np.unique(worker[rows], return_index=True)
        typical[rows] = np.median(usual[rows[first]])
    return typical


def _other_stages(typical: _Floats, ops: OpTable, stage: int) -> _Floats:
    """Replace durations by the median over the other stages, separately for both directions."""
    replaced: _Floats = typical.copy()
    for is_backward in (False, True):
        rows = ops.is_backward == is_backward
        others = [
            float(np.mean(typical[rows & (ops.stage == other)])) for other in np.unique(ops.stage) if other != stage
        ]
        if others:
            replaced[rows] = np.median(others)
    return replaced


def _replay(ops: OpTable, worker: _Ints, durations: _Floats) -> _Floats:
    """Return the mean duration of a step for each column of durations."""
    total = np.zeros(durations.shape[1])
    steps = np.unique(ops.step)
    for step in steps:
        rows = np.flatnonzero(ops.step == step)
        rows = rows[np.argsort(ops.start_s[rows], kind="stable")]
        total += _replay_step(ops, worker, durations, rows)
    return np.asarray(total / len(steps))


def _replay_step(ops: OpTable, worker: _Ints, durations: _Floats, rows: _Ints) -> _Floats:
    operations = list(
        zip(
            worker[rows].tolist(),
            ops.dp[rows].tolist(),
            ops.chunk[rows].tolist(),
            ops.micro_batch[rows].tolist(),
            ops.is_backward[rows].tolist(),
            strict=True,
        )
    )
    index_of = {operation[1:]: index for index, operation in enumerate(operations)}
    last_chunk = max(operation[2] for operation in operations)
    last_of_worker: dict[int, int] = {}
    needed_by: dict[int, list[int]] = defaultdict(list)
    needs: list[list[int]] = []
    for index, (owner, dp, chunk, micro_batch, is_backward) in enumerate(operations):
        if not is_backward:
            dependency = index_of.get((dp, chunk - 1, micro_batch, False))
        elif chunk == last_chunk:
            dependency = index_of.get((dp, chunk, micro_batch, False))
        else:
            dependency = index_of.get((dp, chunk + 1, micro_batch, True))
        before = [each for each in (last_of_worker.get(owner), dependency) if each is not None]
        needs.append(before)
        for each in before:
            needed_by[each].append(index)
        last_of_worker[owner] = index
    ends = np.zeros((len(operations), durations.shape[1]))
    num_missing = [len(before) for before in needs]
    ready = deque(index for index, count in enumerate(num_missing) if count == 0)
    while ready:
        index = ready.popleft()
        begin = np.max(ends[needs[index]], axis=0) if needs[index] else 0.0
        ends[index] = begin + durations[rows[index]]
        for other in needed_by[index]:
            num_missing[other] -= 1
            if num_missing[other] == 0:
                ready.append(other)
    return np.asarray(np.max(ends, axis=0))


def _correlation(ops: OpTable, usual: _Floats) -> float | None:
    """Return how the forward times of micro-batches correlate with their backward times, beside their usual times."""
    relative = ops.duration_s / np.maximum(usual, 1e-12)
    keys = np.stack([ops.step, ops.dp, ops.chunk, ops.micro_batch])
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    pairs = np.full((int(group.max()) + 1, 2), np.nan)
    pairs[group, ops.is_backward.astype(np.int64)] = relative
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    if len(pairs) < 16 or np.any(np.std(pairs, axis=0) < 1e-9):
        return None
    return float(np.corrcoef(pairs.T)[0, 1])


def _micro_batch_loss(seconds: float, correlation: float | None) -> Loss:
    text = "micro-batches take different times on all workers"
    if correlation is not None and correlation >= _MIN_CORRELATION:
        text += f"; forward and backward times agree (correlation {correlation:.2f}): probably their sequence lengths"
    return Loss(cause="micro_batches", seconds_per_step=max(seconds, 0.0), text=text)


def _worker_loss(
    seconds: float,
    workers: _Ints,
    excess: _Floats,
    usual: _Floats,
    typical: _Floats,
    worker: _Ints,
    ranks: _Ints,
) -> Loss:
    """Name the workers that together make up most of what slow workers cost."""
    positive = np.maximum(excess, 0.0)
    order = np.argsort(-positive)
    num_named = int(np.searchsorted(np.cumsum(positive[order]), 0.6 * positive.sum())) + 1
    if positive.sum() <= 0 or num_named > max(1, round(0.1 * len(order))):
        return Loss(
            cause="workers", seconds_per_step=max(seconds, 0.0), text="many workers are a little slower than others"
        )
    named = order[:num_named].tolist()
    parts = []
    for index in named[:4]:
        rows = worker == index
        factor = float(np.sum(usual[rows]) / np.sum(typical[rows]))
        dp, stage = workers[:, index].tolist()
        rank = f"rank {ranks[index]} " if ranks[index] >= 0 else ""
        parts.append(
            f"{rank}(data-parallel {dp}, stage {stage}) takes {100 * (factor - 1):.0f} % longer than its peers"
        )
    more = f", and {num_named - 4} more workers" if num_named > 4 else ""
    return Loss(
        cause="workers",
        seconds_per_step=max(seconds, 0.0),
        text=f"{'; '.join(parts)}{more}",
        workers=[int(ranks[index]) for index in named],
    )


def _stage_loss(seconds: float, ops: OpTable, typical: _Floats) -> Loss:
    stages = np.unique(ops.stage)
    work = np.array([np.sum(typical[ops.stage == stage]) for stage in stages])
    largest = int(np.argmax(work))
    others = float(np.median(np.delete(work, largest))) if len(work) > 1 else 0.0
    if others <= 0:
        return Loss(cause="stages", seconds_per_step=0.0, text="there is one stage")
    stage = int(stages[largest])
    name = f"stage {stage}, the last one," if stage == int(stages[-1]) else f"stage {stage}"
    excess = work[largest] / others - 1
    if excess < _MIN_SLOWDOWN - 1:
        return Loss(cause="stages", seconds_per_step=max(seconds, 0.0), text="the stages have about the same work")
    text = f"{name} has {100 * excess:.0f} % more work than the other stages"
    return Loss(cause="stages", seconds_per_step=max(seconds, 0.0), text=text, stages=[stage])
