"""The state machine that recognises training loops, fed with synthetic events. Nothing here needs torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.integrations._common.loop_state import (
    MAX_PARTS,
    EpochFinished,
    Iteration,
    LoopState,
    Output,
    RunNeeded,
    StepSkipped,
    ValidationBatch,
    ValidationEnded,
    ValidationStarted,
)
from tachograph.spans import StandardTrainingJobSpanName as Names

SGD, ADAM = 1, 2


class Script:
    """Plays a training script: each call advances the clock by one second and collects the outputs."""

    def __init__(self, *, observes_steps: bool = True, is_recording: bool = True) -> None:
        self.state = LoopState()
        self.state.observes_steps = observes_steps
        self.now_s = 0.0
        self.outputs: list[Output] = []
        if is_recording:
            self.state.recording_started(0, self.tick())

    def tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def fetch(self, *, grad: bool = True, **manual: bool) -> None:
        requested_s = self.tick()
        self.outputs += self.state.batch_requested(requested_s, grad, **manual)
        self.outputs += self.state.batch_received(requested_s, self.tick(), grad)

    def exhaust(self, *, grad: bool = True, **manual: bool) -> None:
        requested_s = self.tick()
        self.outputs += self.state.batch_requested(requested_s, grad, **manual)
        self.outputs += self.state.data_exhausted(self.tick(), grad, **manual)

    def backward(self, loss: float | None = 1.0) -> None:
        if self.state.backward_started(self.tick()):
            self.state.add_loss(loss)
        self.state.backward_finished(self.tick())

    def step(self, optimizer: int = SGD, *, lr: float = 0.1, is_manual: bool = False) -> None:
        self.outputs += self.state.step_started(optimizer)
        self.state.update_started(self.tick(), lr)
        self.outputs += self.state.step_finished(optimizer, self.tick(), is_manual)

    def train(self, loss: float = 1.0, optimizer: int = SGD, *, fetches: bool = True) -> None:
        if fetches:
            self.fetch()
        self.backward(loss)
        self.step(optimizer)

    def end(self, **manual: bool) -> list[Output]:
        self.outputs += self.state.loop_ended(self.tick(), **manual)
        return self.outputs

    @property
    def iterations(self) -> list[Iteration]:
        return [output for output in self.outputs if isinstance(output, Iteration)]

    @property
    def others(self) -> list[Output]:
        return [output for output in self.outputs if not isinstance(output, Iteration)]

    @property
    def losses(self) -> list[list[Any]]:
        return [iteration.losses for iteration in self.iterations]


@pytest.fixture
def script() -> Script:
    return Script()


def test_module_does_not_import_torch():
    code = "import sys, tachograph.integrations._common.loop_state; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Iterations ----------------------------------------------------------------------------------------------------------


def test_iteration_ends_at_the_next_batch(script):
    script.fetch()
    script.backward(0.5)
    script.step(lr=0.2)
    assert script.outputs == []
    script.fetch()
    (iteration,) = script.outputs
    assert isinstance(iteration, Iteration)
    assert (iteration.step, iteration.losses, iteration.lr, iteration.is_manual) == (0, [0.5], 0.2, False)
    assert script.state.num_steps == 1


def test_phases_and_waits_have_their_times(script):
    """Recording starts at 1 s, and each event comes a second after the one before."""
    script.train()
    script.end()
    (iteration,) = script.iterations
    assert iteration.began_s == 2.0
    assert iteration.waits == [(2.0, 3.0)]
    assert [phase for phase in iteration.marks.phases if phase[0] is not None] == [
        (Names.MODEL_FORWARD, 3.0, 4.0),
        (Names.MODEL_BACKWARD, 4.0, 5.0),
        (Names.OPTIMIZER_UPDATE, 6.0, 7.0),
    ]
    assert iteration.step_s == 7.0


def test_next_iteration_begins_where_the_last_ended(script):
    script.train()
    script.train()
    script.end()
    first, second = script.iterations
    assert second.began_s == first.step_s


def test_accumulated_batches_are_one_iteration(script):
    for loss in (1.0, 2.0, 3.0):
        script.fetch()
        script.backward(loss)
    script.step()
    script.end()
    (iteration,) = script.iterations
    assert iteration.losses == [1.0, 2.0, 3.0]
    assert len(iteration.waits) == 3
    assert [name for name, _, _ in iteration.marks.phases].count(Names.MODEL_BACKWARD) == 3


def test_one_step_of_each_optimizer_is_one_iteration(script):
    for _ in range(2):
        script.fetch()
        for loss, optimizer in ((1.0, SGD), (2.0, ADAM)):
            script.backward(loss)
            script.step(optimizer)
    script.end()
    assert script.losses == [[1.0, 2.0], [1.0, 2.0]]
    assert script.iterations[0].stepped == {SGD, ADAM}
    assert [name for name, _, _ in script.iterations[0].marks.phases].count(Names.OPTIMIZER_UPDATE) == 2


def test_optimizers_without_loader_are_one_iteration(script):
    for _ in range(3):
        script.train(1.0, SGD, fetches=False)
        script.train(2.0, ADAM, fetches=False)
    script.end()
    assert script.losses == [[1.0, 2.0]] * 3


def test_repeated_steps_on_one_batch_are_iterations(script):
    script.fetch()
    for loss in (1.0, 2.0, 3.0):
        script.train(loss, fetches=False)
    script.end()
    assert script.losses == [[1.0], [2.0], [3.0]]
    assert [len(iteration.waits) for iteration in script.iterations] == [1, 0, 0]


def test_loop_without_loader_counts_steps(script):
    for _ in range(4):
        script.train(fetches=False)
    script.end()
    assert [iteration.step for iteration in script.iterations] == [0, 1, 2, 3]


def test_closure_counts_its_first_loss(script):
    """L-BFGS evaluates the loss several times inside one step."""
    for _ in range(2):
        script.outputs += script.state.step_started(SGD)
        script.state.update_started(script.tick(), 0.1)
        for loss in (5.0, 4.0, 3.0):
            script.backward(loss)
        script.outputs += script.state.step_finished(SGD, script.tick(), False)
    script.end()
    assert script.losses == [[5.0], [5.0]]


def test_steps_inside_backward_are_one_iteration(script):
    """One optimizer per parameter, stepped by a hook while the backward pass runs."""
    for _ in range(2):
        assert script.state.backward_started(script.tick())
        script.state.add_loss(1.0)
        for optimizer in (SGD, ADAM):
            script.step(optimizer)
        script.state.backward_finished(script.tick())
    script.end()
    assert script.losses == [[1.0], [1.0]]


def test_step_before_any_backward_is_ignored(script):
    script.fetch()
    script.step()
    script.fetch()
    assert script.outputs == []
    assert script.state.num_optimizer_steps == 1
    assert not script.state.has_stepped


def test_step_without_observed_start_is_ignored(script):
    script.backward()
    assert list(script.state.step_finished(SGD, script.tick(), False)) == []
    assert script.state.num_optimizer_steps == 0


def test_failed_backward_does_not_count_its_loss(script):
    script.fetch()
    if script.state.backward_started(script.tick()):
        script.state.add_loss(9.0)
    script.state.backward_failed()
    script.state.backward_finished(script.tick())
    script.backward(1.0)
    script.step()
    script.end()
    assert script.losses == [[1.0]]


def test_parts_of_an_iteration_are_bounded(script):
    for _ in range(MAX_PARTS + 10):
        script.fetch()
        script.backward()
    current = script.state.current
    assert (len(current.waits), len(current.losses)) == (MAX_PARTS, MAX_PARTS)
    assert len(current.marks) <= MAX_PARTS


def test_failed_backward_of_full_iteration_keeps_losses(script):
    for _ in range(MAX_PARTS):
        script.backward()
    if script.state.backward_started(script.tick()):
        script.state.add_loss(1.0)
    script.state.backward_failed()
    assert len(script.state.current.losses) == MAX_PARTS


# Loss scaling and norms ----------------------------------------------------------------------------------------------


def test_skipped_step_ends_an_iteration(script):
    script.train(1.0)
    script.fetch()
    script.backward(2.0)
    script.outputs += script.state.step_skipped(SGD, script.tick(), False)
    script.train(3.0)
    script.end()
    assert script.losses == [[1.0], [2.0], [3.0]]
    assert script.others == [StepSkipped(1)]


def test_scaling_marks_only_its_iteration(script):
    script.fetch()
    script.state.loss_scaled()
    script.backward()
    script.step()
    script.train()
    script.end()
    assert [iteration.is_scaled for iteration in script.iterations] == [True, False]


def test_first_norm_of_an_iteration_counts(script):
    script.fetch()
    script.backward()
    script.state.norm_computed(1.5)
    script.state.norm_computed(7.0)
    script.step()
    script.train()
    script.end()
    assert [iteration.norm for iteration in script.iterations] == [1.5, None]


def test_norm_after_the_step_belongs_to_what_follows(script):
    script.train()
    script.state.norm_computed(3.0)
    script.train(fetches=False)
    script.end()
    assert [iteration.norm for iteration in script.iterations] == [None, 3.0]


# Validation ----------------------------------------------------------------------------------------------------------


def test_batches_without_gradients_are_a_validation(script):
    script.train()
    for _ in range(2):
        script.fetch(grad=False)
    script.exhaust(grad=False)
    start_s = script.iterations[0].step_s + 1
    assert script.others == [
        ValidationStarted(start_s),
        ValidationBatch(start_s, start_s + 2),
        ValidationBatch(start_s + 2, start_s + 4),
        ValidationEnded(start_s + 5),
    ]
    script.train()
    script.end()
    assert [iteration.step for iteration in script.iterations] == [0, 1]
    assert script.iterations[1].began_s > start_s + 5, "the validation is not part of the iteration"


def test_abandoned_validation_ends_at_the_next_batch(script):
    script.train()
    script.fetch(grad=False)
    script.train()
    script.end()
    kinds = [type(output) for output in script.others]
    assert kinds == [ValidationStarted, ValidationBatch, ValidationEnded]
    assert len(script.iterations) == 2


def test_validation_before_training_is_ignored(script):
    script.fetch(grad=False)
    script.exhaust(grad=False)
    script.train()
    script.end()
    assert script.others == []
    assert len(script.iterations) == 1


def test_manual_validation_is_not_duplicated(script):
    script.train()
    script.fetch(grad=False, is_manual_validation=True)
    script.exhaust(grad=False, is_manual_validation=True)
    assert script.others == []


def test_pass_without_backward_is_a_validation(script):
    """Gradients are off only around the model, so that the loader does not see it."""
    script.train()
    script.exhaust()
    script.outputs.clear()
    starts_s = []
    for _ in range(2):
        starts_s.append(script.now_s + 1)
        script.fetch()
    script.exhaust()
    assert script.outputs == [
        ValidationStarted(starts_s[0]),
        ValidationBatch(*starts_s),
        ValidationBatch(starts_s[1], script.now_s),
        ValidationEnded(script.now_s),
    ]
    script.train(4.0)
    script.end()
    assert script.losses == [[4.0]]
    assert len(script.iterations[0].waits) == 1


def test_manual_pass_without_backward_is_not_duplicated(script):
    script.train()
    script.exhaust()
    script.outputs.clear()
    script.fetch()
    script.exhaust(is_manual_validation=True)
    assert script.outputs == []


def test_open_validation_ends_with_the_loop(script):
    script.train()
    script.fetch(grad=False)
    assert isinstance(script.end()[-1], ValidationEnded)


# Epochs --------------------------------------------------------------------------------------------------------------


def test_exhausted_loader_ends_an_epoch(script):
    for _ in range(2):
        script.train()
        script.train()
        script.exhaust()
    assert script.others == [EpochFinished(1, 1), EpochFinished(2, 3)]


def test_exhausted_loader_without_iterations_is_no_epoch(script):
    script.exhaust()
    assert script.outputs == []


def test_accumulation_survives_the_end_of_the_data(script):
    script.train(1.0)
    script.fetch()
    script.backward(2.0)
    script.exhaust()
    script.fetch()
    script.backward(3.0)
    script.step()
    script.end()
    assert script.losses == [[1.0], [2.0, 3.0]]


# Without step hooks --------------------------------------------------------------------------------------------------


def test_without_step_hooks_a_batch_is_an_iteration():
    script = Script(observes_steps=False)
    for _ in range(3):
        script.fetch()
    script.exhaust()
    assert [iteration.step for iteration in script.iterations] == [0, 1, 2]
    assert script.others == [EpochFinished(1, 2)]


def test_last_batch_is_finished_at_the_end():
    script = Script(observes_steps=False)
    script.fetch()
    script.fetch()
    script.end()
    assert len(script.iterations) == 2


def test_manual_batches_are_counted_but_manual():
    script = Script(observes_steps=False)
    script.fetch()
    script.fetch(is_manual=True)
    script.end(is_manual=True)
    assert [iteration.is_manual for iteration in script.iterations] == [True, True]


def test_first_batch_without_step_hooks_needs_a_run():
    script = Script(observes_steps=False, is_recording=False)
    script.fetch()
    assert script.outputs == [RunNeeded()]


# Compiled code -------------------------------------------------------------------------------------------------------


def test_compiled_steps_are_iterations(script):
    for _ in range(3):
        script.fetch()
        script.state.compiled_backward_seen()
        script.outputs += script.state.compiled_step_seen(99, script.tick(), False)
    script.exhaust()
    assert [iteration.step for iteration in script.iterations] == [0, 1, 2]
    assert script.losses == [[], [], []]
    assert all(name is None for iteration in script.iterations for name, _, _ in iteration.marks.phases)
    assert script.others == [EpochFinished(1, 2)]


def test_compiled_step_before_any_backward_is_ignored(script):
    assert list(script.state.compiled_step_seen(99, script.tick(), False)) == []
    assert not script.state.has_stepped


def test_compiled_backward_keeps_a_pass_from_being_validation(script):
    script.train()
    script.exhaust()
    script.outputs.clear()
    script.fetch()
    script.state.compiled_backward_seen()
    script.exhaust()
    assert script.outputs == []


# Recording -----------------------------------------------------------------------------------------------------------


def test_first_step_needs_a_run():
    script = Script(is_recording=False)
    script.train()
    assert script.outputs == [RunNeeded()]


def test_starting_the_run_is_not_part_of_an_iteration():
    script = Script(is_recording=False)
    script.train()
    script.state.recording_started(0, 100.0)
    script.now_s = 100.0
    script.train(fetches=False)
    script.end()
    first, second = script.iterations
    assert first.step_s < 100.0
    assert second.began_s == 100.0


def test_resumed_run_continues_the_count():
    script = Script(is_recording=False)
    script.train()
    script.state.recording_started(40, script.tick())
    script.train()
    script.exhaust()
    assert [iteration.step for iteration in script.iterations] == [40, 41]
    assert script.others == [RunNeeded(), EpochFinished(1, 41)]


def test_nothing_is_counted_after_the_run_has_ended(script):
    script.train()
    script.fetch()
    script.state.recording_stopped()
    script.outputs.clear()
    script.train()
    script.train()
    assert script.outputs == [RunNeeded(), RunNeeded()]
    assert script.state.num_steps == 1


def test_another_run_counts_from_zero(script):
    script.train()
    script.exhaust()
    script.state.recording_stopped(resets_count=True)
    script.outputs.clear()
    script.train()
    script.state.recording_started(0, script.tick())
    script.exhaust()
    assert [iteration.step for iteration in script.iterations] == [0]
    assert script.others == [RunNeeded(), EpochFinished(1, 0)]


def test_manual_iterations_are_counted_but_open_no_loop(script):
    script.fetch()
    script.backward()
    script.step(is_manual=True)
    script.fetch(grad=False)
    assert [iteration.is_manual for iteration in script.iterations] == [True]
    assert script.others == [], "without a loop of ours there is no validation of ours"


def test_thread_change_discards_unfinished_work(script):
    script.fetch()
    script.backward(9.0)
    script.state.thread_changed()
    script.train(1.0)
    script.end()
    assert script.losses == [[1.0]]


# Checkpoints ---------------------------------------------------------------------------------------------------------


def test_checkpoint_is_not_part_of_an_iteration(script):
    script.train()
    script.outputs += script.state.checkpoint_started()
    assert len(script.iterations) == 1
    script.now_s += 50.0
    script.state.checkpoint_finished(script.now_s)
    after_s = script.now_s
    script.train()
    script.end()
    assert script.iterations[1].began_s == after_s


def test_checkpoint_during_accumulation_keeps_gradients(script):
    script.train(1.0)
    script.fetch()
    script.backward(2.0)
    assert list(script.state.checkpoint_started()) == []
    script.state.checkpoint_finished(script.tick())
    script.backward(3.0)
    script.step()
    script.end()
    assert script.losses == [[1.0], [2.0, 3.0]]


def test_end_without_anything_reports_nothing(script):
    assert script.end() == []


PERIODS: dict[str, Callable[[Script], object]] = {
    "plain": lambda script: script.train(),
    "no loader": lambda script: script.train(fetches=False),
    "epoch": lambda script: (script.train(), script.exhaust()),
    "validation": lambda script: (script.train(), script.fetch(grad=False), script.exhaust(grad=False)),
}


@pytest.mark.parametrize("name", PERIODS)
def test_state_does_not_grow(script, name):
    for _ in range(500):
        PERIODS[name](script)
    script.end()
    assert len(script.iterations) == 500
    assert [iteration.step for iteration in script.iterations] == list(range(500))
    assert max(len(iteration.marks) for iteration in script.iterations) < 10
    assert max(len(iteration.waits) for iteration in script.iterations) <= 1


# Sampling ------------------------------------------------------------------------------------------------------------


class SampledScript(Script):
    """A script of which every second iteration is recorded in detail."""

    def __init__(self, num_optimizers: int = 1) -> None:
        super().__init__()
        numbers = itertools.count()
        self.num_optimizers = num_optimizers
        self.state._sample = lambda: (next(numbers) % 2 == 0,) * 2

    def train_all(self, num_iterations: int) -> list[Iteration]:
        for _ in range(num_iterations):
            self.fetch()
            for optimizer in range(self.num_optimizers):
                self.backward(1.0)
                self.step(optimizer)
        self.end()
        return self.iterations


def test_iterations_without_values_are_counted():
    iterations = SampledScript().train_all(9)
    assert [iteration.step for iteration in iterations] == list(range(9))
    assert [bool(iteration.losses) for iteration in iterations[1:]] == [True, False] * 4
    assert all(bool(iteration.losses) == iteration.records_values for iteration in iterations)


def test_several_optimizers_are_sampled_together():
    iterations = SampledScript(num_optimizers=2).train_all(12)
    assert len(iterations) == 12
    recorded = [iteration for iteration in iterations[2:] if iteration.records_values]
    assert len(recorded) == 5 and all(iteration.losses == [1.0, 1.0] for iteration in recorded)
    sampled = [iteration for iteration in iterations[2:] if iteration.marks.is_complete]
    assert len(sampled) == 5


def test_unsampled_gradients_are_not_mistaken_for_validation():
    script = SampledScript()
    script.train()
    script.train()
    script.fetch()  # the loss of this batch is not recorded, and its gradients are accumulated
    script.backward()
    script.exhaust()
    script.train()
    script.end()
    assert len(script.iterations) == 3 and script.iterations[-1].num_backwards == 2
