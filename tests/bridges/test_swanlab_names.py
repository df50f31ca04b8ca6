"""The names of Axolotl's SwanLab integration, with real trainers."""

from __future__ import annotations

import pytest

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.integrations.swanlab import (
    DEFAULT_PROFILING_CONFIG,
    CompletionLogger,
    ProfilingConfig,
    swanlab_profile,
    swanlab_profiling_context,
    swanlab_profiling_context_advanced,
)
from tachograph.spans import configure_profiling, profiling_config

OPTIONS = {"console": False, "system_interval_s": 0, "git": False}


@pytest.fixture(autouse=True)
def restore_profiling():
    before = profiling_config()
    yield
    configure_profiling(before)


class Trainer:
    """Has the config under the name that Axolotl's trainers use."""

    def __init__(self):
        self.axolotl_cfg = {"use_swanlab": True}

    @swanlab_profile
    def training_step(self, error=None):
        if error is not None:
            raise error
        return 1


def calls(logs):
    """Return how often each name was recorded."""
    found: dict[str, int] = {}
    for record in tachograph.read(logs / "x").records("profile"):
        for name, value in record.items():
            if name.endswith("/count"):
                function = name.removeprefix("profiling/").removesuffix("/count")
                found[function] = found.get(function, 0) + value
    return found


def test_decorator_and_context_record_durations(logs):
    with tachograph.init("x", log_dir=str(logs), **OPTIONS):
        trainer = Trainer()
        assert trainer.training_step() == 1
        with pytest.raises(ValueError, match="as it was"):
            trainer.training_step(ValueError("as it was"))
        with swanlab_profiling_context(trainer, "forward_pass"):
            pass
    assert calls(logs) == {"Trainer.training_step": 2, "Trainer.forward_pass": 1}


def test_advanced_context_filters_and_throttles(logs):
    every_tenth = ProfilingConfig(min_duration_ms=0, log_interval=10)
    with tachograph.init("x", log_dir=str(logs), **OPTIONS):
        for _ in range(30):
            with swanlab_profiling_context_advanced(Trainer(), "often", config=every_tenth):
                pass
        with swanlab_profiling_context_advanced(Trainer(), "short", config=ProfilingConfig(min_duration_ms=60_000)):
            pass
    assert calls(logs) == {"Trainer.often": 4}  # calls 1, 10, 20 and 30


def test_default_config_turns_all_profiling_off(logs):
    with tachograph.init("x", log_dir=str(logs), **OPTIONS):
        DEFAULT_PROFILING_CONFIG.enabled = False
        Trainer().training_step()
        with swanlab_profiling_context(Trainer(), "a"), swanlab_profiling_context_advanced(Trainer(), "b"):
            pass
        DEFAULT_PROFILING_CONFIG.enabled = True
        DEFAULT_PROFILING_CONFIG.min_duration_ms = 0.0
        with swanlab_profiling_context_advanced(Trainer(), "c", DEFAULT_PROFILING_CONFIG):
            pass
    assert calls(logs) == {"Trainer.c": 1}


def test_invalid_profiling_config_fails_when_it_is_created():
    with pytest.raises(ConfigError, match="log_interval=0: expected an integer of at least 1"):
        ProfilingConfig(log_interval=0)
    with pytest.raises(ConfigError, match="log_interval=0"):
        DEFAULT_PROFILING_CONFIG.log_interval = 0
    with pytest.raises(AttributeError, match="no 'interval', only enabled, min_duration_ms, log_interval"):
        DEFAULT_PROFILING_CONFIG.interval = 1


def test_profiling_without_a_run_does_nothing():
    assert Trainer().training_step() == 1


def test_logger_records_the_latest_samples(logs):
    logger = CompletionLogger(maxlen=5)
    assert not logger.log_to_swanlab()
    logger.add_grpo_completion(0, "dropped", "because the buffer is full")
    logger.add_dpo_completion(1, "a", "b", "c", reward_diff=0.5)
    logger.add_kto_completion(2, "a", "b", label=False)
    logger.add_orpo_completion(3, "a", "b", "c", log_odds_ratio=0.25)
    logger.add_cpo_completion(4, "a", "b", "c")
    logger.add_grpo_completion(5, "a", "b", reward=1.0, advantage=-1.0)
    assert repr(logger) == "CompletionLogger(maxlen=5, buffered=5/5)"
    assert not logger.log_to_swanlab()  # there is no run
    with tachograph.init("x", log_dir=str(logs), **OPTIONS):
        assert logger.log_to_swanlab("probes")
        logger.clear()
        assert len(logger) == 0 and not logger.log_to_swanlab()
    (record,) = tachograph.read(logs / "x").records("completions")
    assert (record["table"], record["global_step"]) == ("probes", 5)
    assert record["rows"] == [
        {"step": 1, "prompt": "a", "chosen": "b", "rejected": "c", "reward_diff": 0.5},
        {"step": 2, "prompt": "a", "completion": "b", "label": "undesirable"},
        {"step": 3, "prompt": "a", "chosen": "b", "rejected": "c", "log_odds_ratio": 0.25},
        {"step": 4, "prompt": "a", "chosen": "b", "rejected": "c"},
        {"step": 5, "prompt": "a", "completion": "b", "reward": 1.0, "advantage": -1.0},
    ]
    with pytest.raises(ConfigError, match="maxlen=0: expected an integer of at least 1"):
        CompletionLogger(maxlen=0)
