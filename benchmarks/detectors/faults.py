"""Faults injected into healthy runs: how many the rules find, and after how many values.

A *base* is a healthy run: a synthetic one, or a real run without a labelled fault where the logs are available. A
*fault* changes a copy of it from some value on. It counts as found if one of the expected rules reports it afterwards
with at least the expected severity. Everything is drawn from seeds, so every run of this benchmark gives the same
numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tachograph.diagnostics import RuleEngine

Record = dict[str, Any]
Columns = dict[str, np.ndarray]

_SEVERITIES = ("info", "warning", "critical")
_NUM_BASES = 20
_LENGTHS = (400, 800, 1500, 3000, 6000)
_LOG_EVERY = (1, 5, 10, 20, 50)
_MIN_SHARE = 0.8


class Base(NamedTuple):
    """A healthy run, as one array per metric; `val_loss` is NaN where no evaluation took place."""

    columns: Columns
    log_every: int
    rng: np.random.Generator

    @property
    def num_values(self) -> int:
        return len(next(iter(self.columns.values())))

    def copy(self) -> Columns:
        return {name: values.copy() for name, values in self.columns.items()}


class Fault(NamedTuple):
    name: str
    rules: tuple[str, ...]
    """Each of these rules names the fault correctly."""
    inject: Callable[[Columns, int, np.random.Generator], None]
    """Changes the columns from an index on."""
    severity: str = "warning"
    start: float = 0.5
    """Where it begins, as a share of the run."""
    is_rl: bool = False


class Result(NamedTuple):
    num_bases: int
    num_found: int
    delays: list[int]
    """Values between the start of the fault and the alert."""
    num_early: int
    """Runs in which one of the expected rules already fired before the fault."""
    others: dict[str, int]
    """Warnings of other rules after the start of the fault."""


# Bases -------------------------------------------------------------------------------------------------------------


def synthetic_bases(*, is_rl: bool = False, num_bases: int = _NUM_BASES) -> list[Base]:
    """Return healthy runs of different length, noise, scale and logging interval."""
    make = _rl_columns if is_rl else _supervised_columns
    bases = []
    for number in range(num_bases):
        rng = np.random.default_rng((7, is_rl, number))
        num_values = _LENGTHS[number % len(_LENGTHS)] // (4 if is_rl else 1)
        bases.append(Base(make(num_values, number, rng), _LOG_EVERY[(number // 2) % len(_LOG_EVERY)], rng))
    return bases


def real_bases(runs: Iterator[list[Record]]) -> list[Base]:
    """Return real runs as bases."""
    bases = []
    for number, records in enumerate(runs):
        names = [name for name in ("loss", "grad_norm") if any(name in record for record in records)]
        rows = [record for record in records if all(name in record for name in names)]
        columns = {name: np.array([row[name] for row in rows]) for name in names}
        if names and len(rows) >= 300 and all(np.isfinite(values).all() for values in columns.values()):
            bases.append(Base(columns, 1, np.random.default_rng((11, number))))
    return bases[:: max(1, len(bases) // _NUM_BASES)][:_NUM_BASES]


def _supervised_columns(num_values: int, number: int, rng: np.random.Generator) -> Columns:
    progress = np.arange(num_values) / num_values
    scale = (0.02, 0.3, 2.0, 8.0)[number % 4]
    falls = (
        (1 + 30 * progress) ** -0.35,
        0.3 + 0.7 * np.exp(-4 * progress),
        0.6 + 0.4 * np.exp(-8 * progress),
        (1 + 300 * progress) ** -0.12,
    )[number % 4]
    noise = (0.01, 0.03, 0.08, 0.2, 0.35)[number % 5]
    draws = (
        lambda: rng.normal(size=num_values),
        lambda: rng.normal(size=num_values) * (1 + 0.4 * np.sin(12 * progress)),
        lambda: np.convolve(rng.normal(size=num_values + 4), np.full(5, 5**-0.5), "valid"),
        lambda: (rng.gamma(8, size=num_values) - 8) / 8**0.5,
    )[number % 4]
    loss = scale * falls * np.maximum(0.02, 1 + noise * draws())
    norm = (0.1, 1.0, 5.0)[number % 3] * (0.7 + 0.3 * falls) * np.exp(0.3 * rng.normal(size=num_values))
    warm = np.minimum(1, np.arange(num_values) / max(1, num_values // 20))
    lr = 3e-4 * warm * (0.1 + 0.45 * (1 + np.cos(np.pi * progress)))
    step_s = (0.02, 0.3, 4.0)[number % 3] * np.exp((0.01, 0.04, 0.1)[number % 3] * rng.normal(size=num_values))
    val_every = max(1, num_values // 40)
    val = np.where(np.arange(num_values) % val_every == 0, 1.05 * scale * falls, np.nan)
    val *= np.exp(0.2 * noise * rng.normal(size=num_values))
    return {
        "train_loss": loss,
        "lr": lr,
        "grad_norm": norm,
        "sec_per_step": step_s,
        "samples_per_sec": 32 / step_s,
        "batch_size": np.full(num_values, 32.0),
        "val_loss": val,
        "loss_scale": np.full(num_values, 65536.0),
        "window/share_data": np.clip(0.05 + 0.01 * rng.normal(size=num_values), 0, 1),
    }


def _rl_columns(num_values: int, number: int, rng: np.random.Generator) -> Columns:
    progress = np.arange(num_values) / num_values
    noise = (0.03, 0.08, 0.15)[number % 3]

    def noisy(values: np.ndarray, share: float = noise) -> np.ndarray:
        return values * np.exp(share * rng.normal(size=num_values))

    return {
        "loss": 0.02 * rng.normal(size=num_values),
        "reward": 0.1 + 0.6 * (1 - np.exp(-3 * progress)) + noise * 0.3 * rng.normal(size=num_values),
        "entropy": noisy(0.8 - 0.3 * progress),
        "kl": noisy(0.02 + 0.05 * progress, 2 * noise),
        "frac_reward_zero_std": np.clip(0.15 + 0.05 * rng.normal(size=num_values), 0, 1),
        "completions/clipped_ratio": np.clip(0.05 + 0.02 * rng.normal(size=num_values), 0, 1),
        "grad_norm": noisy(np.full(num_values, 0.5), 0.3),
        "sec_per_step": noisy(np.full(num_values, 20.0), 0.08),
    }


# Faults ------------------------------------------------------------------------------------------------------------


def _scaled(name: str, factor: float, num_values: int | None = None) -> Callable[..., None]:
    """Multiply a metric, for a number of values or for good."""

    def inject(columns: Columns, at: int, _rng: np.random.Generator) -> None:
        columns[name][at : None if num_values is None else at + num_values] *= factor

    return inject


def _set(name: str, value: float, num_values: int | None = None) -> Callable[..., None]:
    def inject(columns: Columns, at: int, _rng: np.random.Generator) -> None:
        columns[name][at : None if num_values is None else at + num_values] = value

    return inject


def _ramp(name: str, factor: float, share: float = 1.0) -> Callable[..., None]:
    """Multiply a metric by a factor that grows to `factor` over a share of the rest of the run, then stays."""

    def inject(columns: Columns, at: int, _rng: np.random.Generator) -> None:
        rest = len(columns[name]) - at
        columns[name][at:] *= np.exp(np.log(factor) * np.minimum(1, np.arange(rest) / (share * rest)))

    return inject


def _spread_spikes(columns: Columns, at: int, rng: np.random.Generator) -> None:
    rest = len(_loss(columns)) - at
    for place in rng.choice(np.arange(0, rest, 25), size=min(6, rest // 25), replace=False):
        _loss(columns)[at + place] *= 4


def _slow_spike(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    loss = _loss(columns)
    rest = np.arange(len(loss) - at)
    loss[at:] *= 1 + 2 * np.exp(-rest / 25)


def _clear_spike(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    """Just above the noise: ten standard deviations of the values before, and at least a tenth of the level."""
    loss = _loss(columns)
    before = loss[max(0, at - 64) : at]
    spread = np.std(np.diff(before)) / np.sqrt(2)
    loss[at] = np.median(before[-8:]) + max(10 * spread, 0.1 * abs(np.median(before)))


def _plateau(columns: Columns, at: int, rng: np.random.Generator) -> None:
    """The loss stays where it is, with its noise."""
    loss = _loss(columns)
    before = loss[max(0, at - 64) : at]
    spread = np.std(np.diff(before)) / np.sqrt(2)
    loss[at:] = np.median(before) + spread * rng.normal(size=len(loss) - at)
    columns["lr"][at:] = columns["lr"][at]


def _constant_loss(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    _loss(columns)[at:] = np.median(_loss(columns)[at - 16 : at])


def _reset(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    """The weights are initialised anew: the loss falls again as at the start."""
    loss = _loss(columns)
    loss[at:] = loss[: len(loss) - at]


def _overfit(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    val = columns["val_loss"]
    rest = len(val) - at
    level = np.nanmedian(val[max(0, at - len(val) // 8) : at])
    noise = val[at:] / np.nanmedian(val[at:])
    val[at:] = level * (1 + 0.35 * np.arange(rest) / rest) * np.clip(noise, 0.9, 1.1)


def _slower(change: Callable[..., None]) -> Callable[..., None]:
    """Change the step time, and the throughput with it."""

    def inject(columns: Columns, at: int, rng: np.random.Generator) -> None:
        change(columns, at, rng)
        columns["samples_per_sec"] = columns["batch_size"] / columns["sec_per_step"]

    return inject


def _periodic(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    columns["sec_per_step"][at::8] *= 3


def _reward_collapse(columns: Columns, at: int, rng: np.random.Generator) -> None:
    reward = columns["reward"]
    rest = np.arange(len(reward) - at)
    reward[at:] = reward[at:] * np.exp(-rest / 15) + 0.02 * rng.normal(size=len(rest))


def _entropy_trend(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    """Entropy falls to 30 % of its value while the reward no longer rises."""
    _ramp("entropy", 0.3, 0.6)(columns, at, _rng)
    reward = columns["reward"]
    reward[at:] = np.median(reward[at - 16 : at]) + 0.02 * _rng.normal(size=len(reward) - at)


def _zero_variance_trend(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    share = columns["frac_reward_zero_std"]
    rest = len(share) - at
    share[at:] = np.clip(share[at:] + 0.45 * np.minimum(1, np.arange(rest) / (0.6 * rest)), 0, 1)


def _reward_to_start(columns: Columns, at: int, rng: np.random.Generator) -> None:
    """The reward is back where it began, with the noise of the start."""
    reward = columns["reward"]
    reward[at:] = rng.choice(reward[: max(8, len(reward) // 20)], size=len(reward) - at)


def _reward_falls_at_the_end(columns: Columns, _at: int, _rng: np.random.Generator) -> None:
    reward = columns["reward"]
    reward[-3:] = reward[0] - 20 * np.abs(reward).max()


def _on_and_off(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    """Every other twenty values are 30 % higher."""
    loss = _loss(columns)
    loss[at:][(np.arange(len(loss) - at) // 20) % 2 == 0] *= 1.3


def _rare_high_values(columns: Columns, at: int, rng: np.random.Generator) -> None:
    loss = _loss(columns)
    loss[at:][rng.random(len(loss) - at) < 0.02] *= 5


def _spike_at(index: int) -> Callable[..., None]:
    def inject(columns: Columns, _at: int, _rng: np.random.Generator) -> None:
        _loss(columns)[index] *= 4

    return inject


def _throughput_only(columns: Columns, at: int, _rng: np.random.Generator) -> None:
    columns["samples_per_sec"][at:] *= 0.6
    del columns["sec_per_step"]


def _loss(columns: Columns) -> np.ndarray:
    return columns["train_loss"] if "train_loss" in columns else columns["loss"]


def _on_loss(make: Callable[..., Callable[..., None]], *arguments: Any) -> Callable[..., None]:
    """Return an injection into the loss, whatever its name is."""

    def inject(columns: Columns, at: int, rng: np.random.Generator) -> None:
        name = "train_loss" if "train_loss" in columns else "loss"
        make(name, *arguments)(columns, at, rng)

    return inject


_SPIKE = ("loss_spike", "divergence")
_SLOWER = ("throughput_regression", "step_time_change")
_EXPLODING = ("exploding_gradients", "divergence")

FAULTS = (
    Fault("one value four times as high", _SPIKE, _on_loss(_scaled, 4.0, 1)),
    Fault("one value ten spreads up", _SPIKE, _clear_spike),
    Fault("early spike", _SPIKE, _on_loss(_scaled, 4.0, 1), start=0.15),
    Fault("spike at the twentieth value", _SPIKE, _spike_at(20), start=0.0),
    Fault("one value 20 % up", _SPIKE, _on_loss(_scaled, 1.2, 1)),
    Fault("one value 50 % up", _SPIKE, _on_loss(_scaled, 1.5, 1)),
    Fault("30 % up, on and off", (*_SPIKE, "loss_shift"), _on_and_off),
    Fault("2 % of the values five times as high", _SPIKE, _rare_high_values),
    Fault("spike of eight values", _SPIKE, _on_loss(_scaled, 3.0, 8)),
    Fault("spike that recovers slowly", _SPIKE, _slow_spike),
    Fault("six spikes", _SPIKE, _spread_spikes),
    Fault("loss doubles for good", (*_SPIKE, "loss_shift"), _on_loss(_scaled, 2.0)),
    Fault("loss 15 % up for good", (*_SPIKE, "loss_shift"), _on_loss(_scaled, 1.15)),
    Fault("divergence, fast", _SPIKE, _on_loss(_ramp, 30.0, 0.2)),
    Fault("divergence, slow", ("divergence", "loss_shift"), _on_loss(_ramp, 6.0)),
    Fault("loss ends above its start", ("divergence", "loss_shift"), _on_loss(_ramp, 8.0), start=0.2),
    Fault("loss drops to a tenth", ("loss_drop", "loss_shift"), _on_loss(_scaled, 0.1)),
    Fault("weights initialised anew", ("loss_reset",), _reset),
    Fault("plateau", ("plateau",), _plateau, severity="info", start=0.2),
    Fault("constant loss", ("plateau", "dead_learning_rate"), _constant_loss, severity="info", start=0.3),
    Fault("loss becomes NaN", ("not_finite",), _on_loss(_set, np.nan)),
    Fault("loss is infinite once", ("not_finite",), _on_loss(_set, np.inf, 1)),
    Fault("overfitting", ("overfitting",), _overfit),
    Fault("validation loss blows up", ("divergence", "validation_blow_up"), _scaled("val_loss", 100.0)),
    Fault("gradients explode, five values", _EXPLODING, _scaled("grad_norm", 20.0, 5)),
    Fault("gradients explode, early", _EXPLODING, _scaled("grad_norm", 20.0, 5), start=0.1),
    Fault("gradients explode for good", _EXPLODING, _scaled("grad_norm", 100.0)),
    Fault("absurd gradients from the start", ("exploding_gradients",), _scaled("grad_norm", 1e6), start=0.0),
    Fault("gradients vanish", ("vanishing_gradients",), _scaled("grad_norm", 1e-9)),
    Fault("gradients become NaN", ("not_finite",), _set("grad_norm", np.nan)),
    Fault("learning rate becomes zero", ("dead_learning_rate",), _set("lr", 0.0), start=0.4),
    Fault("loss scale collapses", ("loss_scale_collapse",), _ramp("loss_scale", 2.0**-15, 0.3)),
    Fault("half the clock", _SLOWER, _slower(_scaled("sec_per_step", 2.0))),
    Fault("steps 35 % slower", _SLOWER, _slower(_scaled("sec_per_step", 1.35))),
    Fault("steps 12 % slower", _SLOWER, _slower(_scaled("sec_per_step", 1.12))),
    Fault("steps 50 % slower by the end", _SLOWER, _slower(_ramp("sec_per_step", 1.5)), start=0.1),
    Fault("every eighth step slow", ("step_outliers", *_SLOWER), _slower(_periodic), severity="info"),
    Fault("throughput falls by 40 %", _SLOWER, _throughput_only),
    Fault("waits for data", ("data_stall",), _set("window/share_data", 0.6)),
    Fault("reward collapses", ("reward_drop",), _reward_collapse, is_rl=True),
    Fault("reward halves", ("reward_drop",), _scaled("reward", 0.5), is_rl=True),
    Fault("reward back at its start", ("reward_drop",), _reward_to_start, is_rl=True),
    Fault("reward falls in the last records", ("reward_drop",), _reward_falls_at_the_end, is_rl=True, start=0.9),
    Fault("entropy falls to 10 %", ("entropy_collapse",), _scaled("entropy", 0.1), is_rl=True),
    Fault("entropy collapses", ("entropy_collapse",), _ramp("entropy", 0.03, 0.3), is_rl=True),
    Fault("entropy falls without gain", ("entropy_collapse",), _entropy_trend, is_rl=True, start=0.4),
    Fault("no variance of rewards", ("zero_variance_rewards",), _set("frac_reward_zero_std", 0.97), is_rl=True),
    Fault("less and less variance", ("zero_variance_rewards",), _zero_variance_trend, is_rl=True, start=0.3),
    Fault("completions are cut off", ("truncated_completions",), _set("completions/clipped_ratio", 0.95), is_rl=True),
    Fault("divergence from the reference", ("kl_outlier",), _scaled("kl", 60.0), is_rl=True),
)


# Score -------------------------------------------------------------------------------------------------------------


def records_of(columns: Columns, log_every: int) -> Iterator[Record]:
    """Yield the records of a run."""
    num_values = len(next(iter(columns.values())))
    yield {"event": "start", "time": 0.0, "max_steps": num_values * log_every}
    time_s = 0.0
    names = [name for name in columns if name != "val_loss"]
    for index in range(num_values):
        record: Record = {"event": "step", "time": time_s, "global_step": index * log_every}
        record.update((name, float(columns[name][index])) for name in names)
        time_s += log_every * record.get("sec_per_step", 1.0)
        yield record
        if "val_loss" in columns and not np.isnan(columns["val_loss"][index]):
            value = float(columns["val_loss"][index])
            yield {"event": "validation", "time": time_s, "global_step": index * log_every, "val_loss": value}


def alerts_of(columns: Columns, log_every: int) -> list[tuple[int, Record]]:
    """Run the rules over a run; return each alert with the index of the value that caused it."""
    engine = RuleEngine()
    return [
        (record.get("global_step", 0) // log_every, alert)
        for record in records_of(columns, log_every)
        for alert in engine.observe(record)
    ]


def with_fault(fault: Fault, base: Base) -> Columns:
    """Return a copy of a run with a fault.

    Raises:
        KeyError: if the run does not have the metric.
    """
    columns, at = base.copy(), round(fault.start * base.num_values)
    fault.inject(columns, at, np.random.default_rng((13, at)))
    return columns


def inject(fault: Fault, bases: list[Base]) -> Result:
    """Inject a fault into each base that has its metric."""
    num_bases = num_found = num_early = 0
    delays: list[int] = []
    others: dict[str, int] = {}
    least = _SEVERITIES.index(fault.severity)
    for base in bases:
        at = round(fault.start * base.num_values)
        try:
            columns = with_fault(fault, base)
        except KeyError:
            continue
        num_bases += 1
        found = [
            (index, alert)
            for index, alert in alerts_of(columns, base.log_every)
            if alert["status"] != "resolved" and _SEVERITIES.index(alert["severity"]) >= least
        ]
        expected = [index for index, alert in found if alert["rule"] in fault.rules]
        num_early += any(index < at for index in expected)
        after = [index for index in expected if index >= at]
        if after:
            num_found += 1
            delays.append(after[0] - at)
        for rule in {alert["rule"] for index, alert in found if index >= at and alert["rule"] not in fault.rules}:
            others[rule] = others.get(rule, 0) + 1
    return Result(num_bases, num_found, delays, num_early, others)


def has_warning(alerts: list[tuple[int, Record]]) -> bool:
    return any(alert["severity"] != "info" for _, alert in alerts)


def print_faults(real: list[Base], require: Callable[[str, bool], None]) -> None:
    """Inject all faults and print how many were found."""
    supervised, rl = synthetic_bases(), synthetic_bases(is_rl=True)
    clean = [alerts_of(base.columns, base.log_every) for base in (*supervised, *rl)]
    noisy = sum(map(has_warning, clean))
    print(f"healthy synthetic runs with a warning: {noisy}/{len(clean)}")
    for alerts in clean:
        for rule in sorted({alert["rule"] for _, alert in alerts if alert["severity"] != "info"}):
            print(f"  {rule}")
    require("warnings on <= 3 % of the healthy synthetic runs", noisy <= 0.03 * len(clean))
    print(f"\n{'injected fault':34}{'found':>8}{'real':>8}{'delay':>7}{'worst':>7}{'early':>7}  other warnings")
    for fault in FAULTS:
        result = inject(fault, rl if fault.is_rl else supervised)
        on_real = inject(fault, real) if real and not fault.is_rl else None
        delays = result.delays or [-1]
        has_real = on_real is not None and on_real.num_bases
        share = f"{on_real.num_found}/{on_real.num_bases}" if on_real is not None and has_real else ""
        others = ", ".join(f"{rule} {count}" for rule, count in sorted(result.others.items()))
        print(
            f"{fault.name:34}{f'{result.num_found}/{result.num_bases}':>8}{share:>8}"
            f"{statistics.median(delays):>7.0f}{max(delays):>7}{result.num_early:>7}  {others}",
            flush=True,
        )
        require(f"{fault.name}: found in >= 80 %", result.num_found >= _MIN_SHARE * result.num_bases)
