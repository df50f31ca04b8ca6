"""Healthy runs of kinds on which no rule was tuned: they show how the rules do on logs that nobody has seen.

When a warning on one of them has led to a change of a rule, the kind says nothing about such logs any more: move it to
`kinds.py`, and add another one here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.detectors.curves import (
    Record,
    Rng,
    any_interval,
    any_scale,
    any_sigma,
    every,
    falling,
    noise,
    step_records,
    wandering,
    warm_cosine,
)


def _resumed(rng: Rng) -> Iterator[Record]:
    """Jobs with a time limit: each attempt starts at the last checkpoint, some steps back, with another data order."""
    num_values, log_every = int(rng.integers(400, 2500)), any_interval(rng)
    sigma = any_sigma(rng) / 2
    level, size = falling(rng, np.arange(num_values) / num_values), any_scale(rng)
    lr, save_every = 3e-4 * warm_cosine(num_values), int(rng.integers(20, 100))
    at, time_s = 0, 0.0
    while at < num_values:
        yield {"event": "start", "time": time_s, "max_steps": num_values * log_every}
        end = min(num_values, at + int(rng.integers(60, 600)))
        loss = size * level[at:end] * noise(rng, end - at, sigma)
        norm = np.exp(0.3 * rng.normal(size=end - at))
        for offset in range(end - at):
            time_s += 0.1 * log_every
            step = (at + offset) * log_every
            values = {"loss": float(loss[offset]), "grad_norm": float(norm[offset]), "lr": float(lr[at + offset])}
            yield {"event": "step", "time": time_s, "global_step": step, **values}
        at = num_values if end == num_values else max(at + 1, end // save_every * save_every)


def _loss_scaler(rng: Rng) -> Iterator[Record]:
    """Half precision: the scale is halved several times in the first steps, and then doubles and overflows in turn."""
    num_values = int(rng.integers(300, 3000))
    loss_scale, since, growth = 2.0 ** rng.integers(15, 25), 0, int(rng.integers(50, 500))
    limit = 2.0 ** rng.integers(9, 15)
    loss = (
        any_scale(rng) * falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, any_sigma(rng) / 2)
    )
    norm, scales = np.exp(0.3 * rng.normal(size=num_values)), np.empty(num_values)
    for index in range(num_values):
        since += 1
        if loss_scale > limit * (0.5 if rng.random() < 0.002 else 1.5):
            norm[index], loss_scale, since = math.inf, loss_scale / 2, 0
        elif since >= growth:
            loss_scale, since = loss_scale * 2, 0
        scales[index] = loss_scale
    yield from step_records(
        {"train_loss": loss, "grad_norm": norm, "loss_scale": scales, "lr": 1e-3 * warm_cosine(num_values)}
    )


def _contrastive(rng: Rng) -> Iterator[Record]:
    """The loss stays near the logarithm of the number of negatives at first; then it falls fast, and then slowly."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    start, end = math.log(2.0 ** rng.integers(8, 16)), rng.uniform(0.1, 0.6)
    turn = 1 / (1 + np.exp(-(progress - rng.uniform(0.02, 0.2)) * rng.uniform(20, 100)))
    loss = start * (1 - (1 - end) * turn) * (1 - 0.2 * progress) * noise(rng, num_values, rng.uniform(0.005, 0.05))
    columns = {"train/loss": loss, "lr": 0.1 * warm_cosine(num_values), "temperature": 0.07 + 0.01 * progress}
    yield from step_records(columns, any_interval(rng))


def _self_distillation(rng: Rng) -> Iterator[Record]:
    """A teacher whose temperature rises in the first part: the loss falls, rises a little and falls again."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    hump = np.exp(-(((progress - rng.uniform(0.1, 0.25)) / 0.06) ** 2))
    loss = 11 * (0.25 + 0.75 * np.exp(-30 * progress) + rng.uniform(0, 0.05) * hump - 0.08 * progress)
    columns = {
        "loss": loss * noise(rng, num_values, rng.uniform(0.005, 0.03)),
        "lr": 5e-4 * warm_cosine(num_values),
    }
    yield from step_records(columns, any_interval(rng))


def _several_validation_sets(rng: Rng) -> Iterator[Record]:
    """Three validation sets of different size; the smallest one is noisy."""
    num_values = int(rng.integers(400, 3000))
    progress, interval = np.arange(num_values) / num_values, max(1, num_values // int(rng.integers(8, 60)))
    level, size = falling(rng, progress), any_scale(rng)
    columns = {"loss": size * level * noise(rng, num_values, any_sigma(rng) / 2)}
    for name, sigma in (("web", 0.005), ("code", 0.03), ("dialog", 0.15)):
        own = rng.uniform(0.8, 1.6) * (level + rng.uniform(0, 0.3)) * noise(rng, num_values, sigma)
        columns[f"eval_{name}_loss"] = every(size * own, interval)
    yield from step_records(columns, any_interval(rng))


def _sparse_validation(rng: Rng) -> Iterator[Record]:
    """An evaluation on few samples after each of very few epochs."""
    num_values = int(rng.integers(300, 3000))
    level, size = falling(rng, np.arange(num_values) / num_values), any_scale(rng)
    columns = {
        "train_loss": size * level * noise(rng, num_values, any_sigma(rng)),
        "lr": 1e-4 * warm_cosine(num_values),
        "val_loss": every(
            size * 1.1 * level * noise(rng, num_values, rng.uniform(0.02, 0.2)),
            num_values // int(rng.integers(3, 13)),
        ),
    }
    yield from step_records(columns, any_interval(rng))


def _q_learning(rng: Rng) -> Iterator[Record]:
    """Off-policy learning: returns are sparse and fall back now and then, and the losses grow with the values."""
    num_values = int(rng.integers(100, 1500))
    progress = np.arange(num_values) / num_values
    learned = 1 / (1 + np.exp(-10 * (progress - rng.uniform(0.2, 0.7))))
    returns = 200 * learned * np.clip(1 + 0.25 * wandering(rng, num_values, 0.9), 0, 2) + 10 * rng.gamma(
        2, size=num_values
    )
    columns = {
        "rollout/ep_rew_mean": returns,
        "rollout/exploration_rate": np.maximum(0.05, 1 - 5 * progress),
        "train/loss": (0.01 + learned**2) * np.exp(0.8 * rng.normal(size=num_values)),
        "train/critic_loss": (0.1 + 10 * learned) * np.exp(0.8 * rng.normal(size=num_values)),
        "train/actor_loss": -50 * learned + rng.normal(size=num_values),
    }
    yield from step_records(columns, 1000)


def _sparse_reward(rng: Rng) -> Iterator[Record]:
    """The reward of a rare success: zero for long, and then a share that grows slowly."""
    num_values = int(rng.integers(100, 1500))
    progress = np.arange(num_values) / num_values
    share = np.clip((progress - rng.uniform(0, 0.4)) * rng.uniform(0.1, 1.2), 0, 0.9)
    columns = {
        "reward": rng.binomial(int(rng.choice([8, 64])), share) / 8.0,
        "loss": 0.02 * rng.normal(size=num_values),
        "kl": np.abs(0.01 * progress * np.exp(0.5 * rng.normal(size=num_values))),
        "entropy": (1 - 0.5 * progress) * np.exp(0.1 * rng.normal(size=num_values)),
    }
    yield from step_records(columns)


def _wasserstein(rng: Rng) -> Iterator[Record]:
    """A critic whose loss is a distance with a sign, and a generator whose loss wanders without limits."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    columns = {
        "train/d_loss": -10 * np.exp(-3 * progress) + 0.8 * rng.normal(size=num_values),
        "train/g_loss": 4 * wandering(rng, num_values, 0.995) + rng.normal(size=num_values),
        "train/gradient_penalty": 0.1 * np.exp(0.6 * rng.normal(size=num_values)),
    }
    yield from step_records(columns, any_interval(rng))


def _larger_batches(rng: Rng) -> Iterator[Record]:
    """The batch size is doubled several times, as recorded; the noise of the loss shrinks."""
    num_values = int(rng.integers(600, 3000))
    progress = np.arange(num_values) / num_values
    stage = np.searchsorted(np.sort(rng.uniform(0.1, 0.8, size=3)), progress)
    factors = noise(rng, num_values, any_sigma(rng)) ** (0.7**stage)
    columns = {
        "train_loss": 10 * (1 + 30 * progress) ** -0.3 * factors,
        "lr": np.full(num_values, 3e-4) * np.minimum(1, progress * 20 + 0.01),
        "batch_size": 64.0 * 2**stage,
        "sec_per_step": 0.2 * 1.9**stage * np.exp(0.03 * rng.normal(size=num_values)),
    }
    yield from step_records(columns, any_interval(rng))


def _sorted_batches(rng: Rng) -> Iterator[Record]:
    """Batches of similar length, from short to long in each epoch: loss and step time follow the length."""
    num_epochs, per_epoch = int(rng.integers(3, 12)), int(rng.integers(50, 300))
    num_values = num_epochs * per_epoch
    length = np.tile(np.linspace(0, 1, per_epoch), num_epochs)
    level = falling(rng, np.arange(num_values) / num_values) * (1 + rng.uniform(0.1, 0.8) * length)
    columns = {
        "loss": any_scale(rng) * level * noise(rng, num_values, any_sigma(rng) / 2),
        "sec_per_step": 0.1 * (1 + 2 * length) * np.exp(0.05 * rng.normal(size=num_values)),
    }
    yield from step_records(columns)


def _diffusion(rng: Rng) -> Iterator[Record]:
    """The loss depends on the noise level of the samples: it is skewed, and flat after the first part."""
    num_values = int(rng.integers(400, 4000))
    shape = 0.6 * 2.0 ** rng.integers(0, 6)
    level = 0.04 + 0.9 * np.exp(-rng.uniform(20, 200) * np.arange(num_values) / num_values)
    columns = {
        "loss": level * rng.gamma(shape, size=num_values) / shape,
        "grad_norm": 0.1 * np.exp(0.5 * rng.normal(size=num_values)),
        "lr": 1e-4 * np.minimum(1, np.arange(1, num_values + 1) / 100),
    }
    yield from step_records(columns, any_interval(rng))


def _better_data_at_the_end(rng: Rng) -> Iterator[Record]:
    """The last part of the run uses cleaner data, and the loss is lower there at once."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    level = (1 + 30 * progress) ** -0.2 * np.where(progress > rng.uniform(0.8, 0.9), rng.uniform(0.6, 0.9), 1)
    loss = 10 * level * noise(rng, num_values, any_sigma(rng) / 2)
    yield from step_records({"train_loss": loss, "lr": 3e-4 * warm_cosine(num_values)}, any_interval(rng))


def _physics(rng: Rng) -> Iterator[Record]:
    """A residual that falls by many orders of magnitude, up and down by a factor of two within tens of values."""
    num_values = int(rng.integers(300, 3000))
    progress = np.arange(num_values) / num_values
    loss = 10 ** (2 - rng.uniform(2, 7) * progress**0.6) * np.exp(
        0.4 * np.clip(wandering(rng, num_values, 0.9), -2.5, 2.5)
    )
    yield from step_records({"loss": loss}, int(rng.choice([1, 100, 1000])))


def _growing_noise(rng: Rng) -> Iterator[Record]:
    """The better the model, the more the loss varies from batch to batch."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    sigma = 0.01 + rng.uniform(0.1, 0.3) * progress
    loss = any_scale(rng) * falling(rng, progress) * np.exp(sigma * np.clip(rng.normal(size=num_values), -3.5, 3.5))
    yield from step_records({"train_loss": loss, "lr": 1e-3 * warm_cosine(num_values)}, any_interval(rng))


def _averaged_weights(rng: Rng) -> Iterator[Record]:
    """The validation uses averaged weights: far too high at first, and then below the training loss."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    level, size = falling(rng, progress), any_scale(rng)
    lag = 1 + rng.uniform(1, 20) * np.exp(-progress * rng.uniform(20, 100))
    val = 0.95 * level * lag * noise(rng, num_values, 0.01)
    columns = {"loss": size * level * noise(rng, num_values, any_sigma(rng) / 2)}
    columns["val_loss"] = every(size * val, max(1, num_values // int(rng.integers(10, 60))))
    yield from step_records(columns, any_interval(rng))


def _smoothed(rng: Rng) -> Iterator[Record]:
    """A loss that the training code has smoothed before it is recorded."""
    num_values = int(rng.integers(300, 3000))
    loss = falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, any_sigma(rng))
    beta, mean = 1 - 1 / rng.integers(10, 100), 0.0
    smoothed = np.empty(num_values)
    for index, value in enumerate(loss):
        mean = beta * mean + (1 - beta) * value
        smoothed[index] = mean / (1 - beta ** (index + 1))
    yield from step_records({"loss": any_scale(rng) * smoothed}, any_interval(rng))


def _irregular_intervals(rng: Rng) -> Iterator[Record]:
    """A record every thirty seconds, after a number of steps that varies."""
    num_values = int(rng.integers(200, 1500))
    at = np.cumsum(rng.integers(5, 60, size=num_values))
    loss = any_scale(rng) * falling(rng, at / at[-1]) * noise(rng, num_values, any_sigma(rng))
    for index, step in enumerate(at):
        yield {"event": "step", "time": 30.0 * index, "global_step": int(step), "loss": float(loss[index])}


def _harder_augmentation(rng: Rng) -> Iterator[Record]:
    """Augmentation becomes stronger in the second half: the training loss rises slowly, the validation loss falls."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    level = 0.2 + 0.8 * np.exp(-rng.uniform(6, 30) * progress)
    harder = 1 + rng.uniform(0.1, 0.4) * np.clip(2 * progress - 1, 0, 1)
    columns = {
        "train_loss": 5 * level * harder * noise(rng, num_values, any_sigma(rng) / 2),
        "lr": 1e-3 * warm_cosine(num_values),
        "val_loss": every(5 * level * (1 - 0.2 * progress) * noise(rng, num_values, 0.01), max(1, num_values // 30)),
    }
    yield from step_records(columns, any_interval(rng))


def _slow_moments(rng: Rng) -> Iterator[Record]:
    """Compilation, checkpoints and new epochs make single steps many times as long as the others."""
    num_values = int(rng.integers(300, 3000))
    step_s = rng.choice([0.02, 0.3, 3.0]) * np.exp(0.03 * rng.normal(size=num_values))
    step_s[: int(rng.integers(1, 6))] *= 100
    step_s[:: int(rng.integers(100, 400))] *= rng.uniform(3, 20)
    loss = (
        any_scale(rng) * falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, any_sigma(rng) / 2)
    )
    yield from step_records({"loss": loss, "sec_per_step": step_s})


def _two_lengths(rng: Rng) -> Iterator[Record]:
    """Steps of two kinds in random order, one twice as long as the other, and more of them later."""
    num_values = int(rng.integers(300, 3000))
    is_long = rng.random(num_values) < np.linspace(0.1, rng.uniform(0.1, 0.4), num_values)
    step_s = 0.2 * np.where(is_long, 2.0, 1.0) * np.exp(0.04 * rng.normal(size=num_values))
    loss = (
        any_scale(rng) * falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, any_sigma(rng) / 2)
    )
    yield from step_records({"loss": loss, "sec_per_step": step_s})


UNSEEN_KINDS: dict[str, Callable[[Rng], Iterator[Record]]] = {
    "resumed": _resumed,
    "loss scaler": _loss_scaler,
    "contrastive": _contrastive,
    "self-distillation": _self_distillation,
    "several validation sets": _several_validation_sets,
    "sparse validation": _sparse_validation,
    "q-learning": _q_learning,
    "sparse reward": _sparse_reward,
    "wasserstein": _wasserstein,
    "larger batches": _larger_batches,
    "sorted batches": _sorted_batches,
    "diffusion": _diffusion,
    "better data at the end": _better_data_at_the_end,
    "physics": _physics,
    "growing noise": _growing_noise,
    "averaged weights": _averaged_weights,
    "smoothed": _smoothed,
    "irregular intervals": _irregular_intervals,
    "harder augmentation": _harder_augmentation,
    "slow moments": _slow_moments,
    "two lengths of steps": _two_lengths,
}
