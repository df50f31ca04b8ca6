"""Healthy runs of many kinds, made from seeds: a warning on one of them is false.

The logs with labels come from few frameworks. These imitate what others write: small validation sets, restarts of the
learning rate, losses of adversaries, values with two digits, a value every 500 steps and the like. Each kind has the
same number of runs in both halves; rules are tuned on the first half only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.detectors.curves import (
    Record,
    Rng,
    Values,
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

# Kinds -------------------------------------------------------------------------------------------------------------


def _small_validation(rng: Rng) -> Iterator[Record]:
    """Epochs with a validation set of some dozens of samples: single values are several times as high."""
    num_values = int(rng.integers(15, 200))
    progress = np.arange(num_values) / num_values
    curve, scale, sigma = falling(rng, progress), any_scale(rng), rng.uniform(0.05, 0.35)
    val = curve * (1 + 0.1 * rng.random()) * np.exp(sigma * wandering(rng, num_values, rng.uniform(0, 0.6)))
    is_bad = rng.random(num_values) < rng.uniform(0, 0.08)  # running statistics of normalisation layers lag behind
    val = np.where(is_bad, val * np.exp(np.abs(rng.normal(size=num_values))), val)
    train = curve * noise(rng, num_values, 0.02)
    yield from step_records({"epoch": np.arange(num_values), "loss": scale * train, "val_loss": scale * val}, 40)


def _warm_restarts(rng: Rng) -> Iterator[Record]:
    """SGD with warm restarts: the loss rises with the learning rate and then falls further than before."""
    num_values = int(rng.integers(800, 3000))
    cycle, growth, phase = num_values / rng.integers(4, 9), rng.choice([1.0, 1.5, 2.0]), np.empty(num_values)
    begin = 0.0
    length = cycle if growth == 1 else cycle / growth
    for index in range(num_values):
        if index - begin >= length:
            begin, length = begin + length, length * growth
        phase[index] = (index - begin) / length
    lr = 0.5 * (1 + np.cos(np.pi * phase))
    loss = falling(rng, np.arange(num_values) / num_values) * (1 + rng.uniform(0.1, 0.6) * _follow(lr, 12))
    columns = {
        "train_loss": any_scale(rng) * loss * noise(rng, num_values, any_sigma(rng) / 2),
        "lr": 0.1 * lr,
    }
    yield from step_records(columns, any_interval(rng))


def _follow(values: Values, num_values: int) -> Values:
    """Let values follow with a delay."""
    result, value = np.empty(len(values)), values[0]
    for index, target in enumerate(values):
        value += (target - value) / num_values
        result[index] = value
    return result


def _cyclic_rate(rng: Rng) -> Iterator[Record]:
    """Triangles of the learning rate; in half of the runs the rate is not recorded."""
    num_values = int(rng.integers(800, 3000))
    period = num_values / rng.integers(4, 20)
    triangle = 1 - np.abs(2 * ((np.arange(num_values) / period) % 1) - 1)
    loss = falling(rng, np.arange(num_values) / num_values) * (1 + rng.uniform(0.05, 0.3) * _follow(triangle, 8))
    columns = {"loss": any_scale(rng) * loss * noise(rng, num_values, any_sigma(rng) / 2)}
    if rng.random() < 0.5:
        columns["lr"] = 1e-4 + 1e-2 * triangle
    yield from step_records(columns, any_interval(rng))


def _step_decay(rng: Rng) -> Iterator[Record]:
    """The learning rate is divided by ten twice, and the loss drops to a third each time."""
    num_values = int(rng.integers(600, 3000))
    progress = np.arange(num_values) / num_values
    stage = np.searchsorted([0.4, 0.7], progress, side="right")
    level = _follow(np.array([1.0, rng.uniform(0.2, 0.6), rng.uniform(0.1, 0.4)])[stage], int(rng.integers(2, 20)))
    loss = (0.4 + 0.6 * np.exp(-10 * progress)) * level * noise(rng, num_values, any_sigma(rng))
    columns = {"train_loss": any_scale(rng) * loss, "lr": 0.1 * 0.1**stage}
    yield from step_records(columns, any_interval(rng))


def _curriculum(rng: Rng) -> Iterator[Record]:
    """Longer sequences step by step: each stage begins at a higher loss and takes longer. The length is recorded."""
    num_values = int(rng.integers(800, 3000))
    progress = np.arange(num_values) / num_values
    num_stages = int(rng.integers(3, 7))
    stage = (progress * num_stages).astype(int)
    since = (progress * num_stages) % 1
    loss = falling(rng, progress) * (1 + rng.uniform(0.1, 0.6) * (stage > 0) * np.exp(-8 * since))
    columns = {
        "train_loss": any_scale(rng) * loss * noise(rng, num_values, any_sigma(rng) / 2),
        "lr": 3e-4 * warm_cosine(num_values),
        "seq_len": 128.0 * 2**stage,
        "sec_per_step": 0.1 * 1.8**stage * np.exp(0.03 * rng.normal(size=num_values)),
    }
    yield from step_records(columns, any_interval(rng))


def _mixup(rng: Rng) -> Iterator[Record]:
    """The loss depends on how strongly the two images of a batch are mixed."""
    num_values = int(rng.integers(500, 4000))
    strength = rng.beta(0.4, 0.4, size=num_values)
    strength = 1 - np.maximum(strength, 1 - strength)
    level = falling(rng, np.arange(num_values) / num_values)
    loss = (level + rng.uniform(0.3, 1.5) * (1 - 0.4 * level) * 2 * strength) * noise(
        rng, num_values, any_sigma(rng) / 2
    )
    yield from step_records({"loss": 3 * loss, "lr": 1e-3 * warm_cosine(num_values)}, any_interval(rng))


def _gan(rng: Rng) -> Iterator[Record]:
    """Generator and discriminator: one gains what the other one loses."""
    num_values = int(rng.integers(400, 3000))
    balance = 0.5 * wandering(rng, num_values, 0.99) + np.linspace(0, rng.uniform(-0.5, 1.5), num_values)
    columns = {
        "loss_G": np.exp(balance) * noise(rng, num_values, 0.3),
        "loss_D": np.exp(-balance) * noise(rng, num_values, 0.3),
    }
    yield from step_records(columns, any_interval(rng))


def _ppo(rng: Rng) -> Iterator[Record]:
    """Stable-Baselines3: rewards wander, losses mean little, and the entropy falls."""
    num_values = int(rng.integers(60, 800))
    progress = np.arange(num_values) / num_values
    scale, wander = 10 ** rng.uniform(0, 3), wandering(rng, num_values, 0.95)
    reward = scale * (
        rng.choice([-1, 0, 0.1]) + 1 / (1 + np.exp(-8 * (progress - rng.uniform(0.1, 0.6)))) + 0.07 * wander
    )
    columns = {
        "rollout/ep_rew_mean": reward + 0.03 * scale * rng.normal(size=num_values),
        "train/approx_kl": 0.008 * np.exp(0.5 * rng.normal(size=num_values)),
        "train/entropy_loss": -(1.4 - rng.uniform(0.2, 1.1) * progress) * np.exp(0.04 * rng.normal(size=num_values)),
        "train/value_loss": scale * np.exp(1.0 * rng.normal(size=num_values) - 2 * progress),
        "train/loss": 0.3 * scale * np.exp(1.0 * rng.normal(size=num_values)),
        "time/fps": 800 * np.exp(0.05 * rng.normal(size=num_values) - 0.05 * progress),
    }
    yield from step_records(columns, 2048)


def _grpo(rng: Rng) -> Iterator[Record]:
    """TRL: a loss around zero, rewards of verifiable answers, a heavy-tailed KL, completions that grow."""
    num_values = int(rng.integers(60, 1000))
    progress = np.arange(num_values) / num_values
    gain = rng.uniform(0, 0.5)
    columns = {
        "loss": 0.01 * rng.standard_t(4, size=num_values),
        "reward": 0.3 + gain * (1 - np.exp(-4 * progress)) + 0.08 * rng.normal(size=num_values),
        "reward_std": 0.2 * np.exp(0.2 * rng.normal(size=num_values)),
        "kl": 0.001 + 0.1 * progress**0.7 * np.exp(0.4 * rng.standard_t(4, size=num_values)),
        "entropy": (0.7 - rng.uniform(0, 0.45) * (1 - np.exp(-3 * progress)))
        * np.exp(0.1 * rng.normal(size=num_values)),
        "frac_reward_zero_std": np.clip(0.25 + 0.2 * progress * gain + 0.15 * rng.normal(size=num_values), 0, 1),
        "completions/clipped_ratio": np.clip(0.05 + 0.1 * progress + 0.05 * rng.normal(size=num_values), 0, 1),
        "grad_norm": 0.3 * np.exp(0.5 * rng.normal(size=num_values)),
        "learning_rate": 1e-6 * (1 - progress),
        "step_time": 20 * (1 + 0.8 * progress) * np.exp(0.15 * rng.normal(size=num_values)),
    }
    yield from step_records(columns)


def _distillation(rng: Rng) -> Iterator[Record]:
    """Several losses; the weight of one is increased over the first third, so that their sum rises at first."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    sigma = any_sigma(rng) / 2
    hard, soft = (falling(rng, progress) * noise(rng, num_values, sigma) for _ in range(2))
    weight = rng.uniform(0.1, 0.5) * np.minimum(1, progress * 3)
    columns = {"loss": hard + weight * soft, "ce_loss": hard, "kd_loss": soft, "lr": 1e-3 * warm_cosine(num_values)}
    yield from step_records(columns, any_interval(rng))


def _auto_encoder(rng: Rng) -> Iterator[Record]:
    """A variational auto-encoder whose KL term is switched on little by little."""
    num_values = int(rng.integers(400, 3000))
    progress = np.arange(num_values) / num_values
    reconstruction = 0.3 + 0.7 * np.exp(-rng.uniform(20, 60) * progress)
    weight = np.minimum(1, progress / rng.uniform(0.2, 0.5))
    loss = (reconstruction + rng.uniform(0.02, 0.12) * weight) * noise(rng, num_values, any_sigma(rng) / 2)
    yield from step_records({"loss": 100 * loss}, any_interval(rng))


def _fine_tuning(rng: Rng) -> Iterator[Record]:
    """A language model that is fine-tuned: it starts low, and the loss drops at the beginning of each epoch."""
    num_values = int(rng.integers(60, 600))
    progress = np.arange(num_values) / num_values
    epochs = int(rng.integers(1, 4))
    loss = (0.85 ** np.floor(progress * epochs)) * (1 + rng.uniform(0, 0.4) * np.exp(-40 * progress))
    columns = {
        "loss": np.round(any_scale(rng) * loss * noise(rng, num_values, rng.uniform(0.03, 0.3)), 4),
        "grad_norm": np.exp(0.5 * rng.normal(size=num_values)) * (1 + 3 * np.exp(-40 * progress)),
        "learning_rate": 2e-5 * warm_cosine(num_values),
        "epoch": np.round(progress * epochs, 2),
    }
    columns["eval_loss"] = every(1.05 * 0.95 * np.exp(0.02 * rng.normal(size=num_values)), max(1, num_values // 6))
    yield from step_records(columns, 10)


def _very_short(rng: Rng) -> Iterator[Record]:
    """Some values of a first try."""
    num_values = int(rng.integers(3, 60))
    progress = np.arange(num_values) / num_values
    loss = any_scale(rng) * falling(rng, progress) * noise(rng, num_values, any_sigma(rng))
    columns = {"train_loss": loss, "grad_norm": np.exp(-2 * progress + 0.4 * rng.normal(size=num_values))}
    columns["val_loss"] = every(loss * 1.1, 5)
    yield from step_records(columns, int(rng.choice([1, 10])))


def _rare_values(rng: Rng) -> Iterator[Record]:
    """One value of a single batch every 500 steps, after the first hundred steps one by one."""
    num_first, num_rare = int(rng.choice([0, 100])), int(rng.integers(60, 600))
    steps = np.concatenate([np.arange(num_first), np.arange(num_first, num_first + 500 * num_rare, 500)])
    progress = steps / steps[-1]
    loss = 10 * falling(rng, np.minimum(1, progress * 3)) * noise(rng, len(steps), any_sigma(rng))
    norm = np.exp(0.4 * rng.normal(size=len(steps))) * (1 + 5 * np.exp(-progress * 1000))
    for index, step in enumerate(steps):
        values = {"loss": float(loss[index]), "grad_norm": float(norm[index])}
        yield {"event": "step", "time": 0.1 * float(step), "global_step": int(step), **values}


def _epochs_only(rng: Rng) -> Iterator[Record]:
    """The CSV of Keras: one row for each epoch. The validation loss stays a little above the training loss."""
    num_values = int(rng.integers(8, 300))
    progress = np.arange(num_values) / num_values
    curve, scale = falling(rng, progress), any_scale(rng)
    val = (curve + rng.uniform(0, 0.1) * (1 - curve)) * np.exp(rng.uniform(0.01, 0.12) * rng.normal(size=num_values))
    columns = {
        "epoch": np.arange(num_values),
        "accuracy": 1 - 0.6 * curve,
        "loss": scale * curve * noise(rng, num_values, 0.01),
        "val_accuracy": np.clip(1 - 0.6 * curve + 0.02 * rng.normal(size=num_values), 0, 1),
        "val_loss": scale * val,
    }
    yield from step_records(columns)


def _rounded(rng: Rng) -> Iterator[Record]:
    """All values have two digits after the point, and the loss falls to a few hundredths."""
    num_values = int(rng.integers(200, 2000))
    loss = (
        rng.uniform(0.1, 2) * falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, any_sigma(rng))
    )
    norm = 0.2 * np.exp(0.4 * rng.normal(size=num_values))
    columns = {
        "loss": np.round(loss, 2),
        "grad_norm": np.round(norm, 2),
    }
    columns["val_loss"] = np.round(every(loss * 1.02, 20), 2)
    yield from step_records(columns, any_interval(rng))


def _validation_every_step(rng: Rng) -> Iterator[Record]:
    """One batch of validation data after each step."""
    num_values = int(rng.integers(200, 2000))
    curve, sigma = falling(rng, np.arange(num_values) / num_values), rng.uniform(0.05, 0.4)
    columns = {
        "train_loss": curve * noise(rng, num_values, sigma),
        "val_loss": 1.05 * curve * noise(rng, num_values, sigma),
    }
    yield from step_records(columns)


def _tiny_or_huge(rng: Rng) -> Iterator[Record]:
    """A loss of the order of a millionth or a million."""
    num_values = int(rng.integers(300, 2000))
    scale = 10 ** float(rng.choice([-8, -6, 6, 9]))
    loss = scale * falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, any_sigma(rng))
    columns = {"train_loss": loss, "grad_norm": scale * np.exp(0.4 * rng.normal(size=num_values))}
    columns["val_loss"] = every(1.03 * loss, 25)
    yield from step_records(columns, any_interval(rng))


def _negative(rng: Rng) -> Iterator[Record]:
    """A likelihood or a ratio in decibels: the loss becomes negative and falls on."""
    num_values = int(rng.integers(300, 2000))
    progress = np.arange(num_values) / num_values
    curve = rng.uniform(-4, 1) + rng.uniform(1, 5) * falling(rng, progress)
    sigma = rng.uniform(0.02, 0.4)
    loss = curve + sigma * (wandering(rng, num_values, 0.5) if rng.random() < 0.3 else rng.normal(size=num_values))
    columns = {"loss": loss, "val_loss": every(curve + 0.1 + 0.3 * sigma * rng.normal(size=num_values), 20)}
    yield from step_records(columns, any_interval(rng))


def _batch_of_one(rng: Rng) -> Iterator[Record]:
    """The loss of single samples is skewed: many are easy, a few are hard."""
    num_values = int(rng.integers(300, 3000))
    level = falling(rng, np.arange(num_values) / num_values)
    shape = rng.uniform(0.5, 3)
    loss = level * (
        rng.gamma(shape, size=num_values) / shape if rng.random() < 0.5 else np.exp(0.8 * rng.normal(size=num_values))
    )
    yield from step_records({"train_loss": loss, "lr": 1e-4 * warm_cosine(num_values)}, any_interval(rng))


def _running_mean(rng: Rng) -> Iterator[Record]:
    """The mean since the beginning of the epoch, as progress bars show it: it begins anew with each epoch."""
    num_epochs, per_epoch = int(rng.integers(3, 20)), int(rng.integers(20, 200))
    loss = falling(rng, np.arange(num_epochs * per_epoch) / (num_epochs * per_epoch))
    loss = loss * noise(rng, len(loss), any_sigma(rng))
    means = np.cumsum(loss.reshape(num_epochs, per_epoch), axis=1) / np.arange(1, per_epoch + 1)
    yield from step_records({"loss": means.reshape(-1)}, any_interval(rng))


def _tasks(rng: Rng) -> Iterator[Record]:
    """Each batch comes from one of several data sets of different difficulty."""
    num_values = int(rng.integers(400, 3000))
    num_tasks = int(rng.integers(2, 6))
    levels, shares = np.exp(0.7 * rng.normal(size=num_tasks)), rng.dirichlet(np.full(num_tasks, 2.0))
    task = rng.choice(num_tasks, size=num_values, p=shares)
    loss = levels[task] * falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, 0.05)
    yield from step_records({"train_loss": loss, "lr": 1e-4 * warm_cosine(num_values)}, any_interval(rng))


def _late_decay(rng: Rng) -> Iterator[Record]:
    """A constant learning rate that falls in the last fifth, and the loss with it."""
    num_values = int(rng.integers(400, 4000))
    progress = np.arange(num_values) / num_values
    lr = np.clip((1 - progress) / 0.2, 0, 1)
    loss = (1 + 10 * progress) ** -0.15 * (0.85 + 0.15 * lr) * noise(rng, num_values, any_sigma(rng) / 3)
    columns = {"train_loss": 8 * loss, "lr": 3e-4 * lr, "grad_norm": np.exp(0.3 * rng.normal(size=num_values))}
    columns["val_loss"] = every(8 * loss * 1.01, max(1, num_values // 25))
    yield from step_records(columns, any_interval(rng))


def _shared_machine(rng: Rng) -> Iterator[Record]:
    """Step times vary with the length of the data, and other programs use the machine now and then."""
    num_values = int(rng.integers(300, 3000))
    step_s = 0.2 * rng.gamma(6, size=num_values) / 6 * np.exp(0.15 * wandering(rng, num_values, 0.97))
    step_s[rng.random(num_values) < 0.01] *= rng.uniform(3, 8)
    loss = falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, any_sigma(rng))
    yield from step_records({"train_loss": loss, "sec_per_step": step_s, "samples_per_sec": 32 / step_s})


def _longer_steps(rng: Rng) -> Iterator[Record]:
    """Layers are unfrozen, or the resolution is raised, as planned: the step time climbs in stairs."""
    num_values = int(rng.integers(400, 3000))
    num_stages = int(rng.integers(3, 6))
    stage = (np.arange(num_values) / num_values * num_stages).astype(int)
    step_s = 0.1 * rng.uniform(1.4, 2.0) ** stage * np.exp(0.02 * rng.normal(size=num_values))
    loss = falling(rng, np.arange(num_values) / num_values) * noise(rng, num_values, any_sigma(rng) / 2)
    yield from step_records({"train_loss": loss, "sec_per_step": step_s})


KINDS: dict[str, Callable[[Rng], Iterator[Record]]] = {
    "small validation set": _small_validation,
    "warm restarts": _warm_restarts,
    "cyclic learning rate": _cyclic_rate,
    "step decay": _step_decay,
    "curriculum": _curriculum,
    "mixup": _mixup,
    "adversarial": _gan,
    "policy gradients": _ppo,
    "group rewards": _grpo,
    "distillation": _distillation,
    "annealed auto-encoder": _auto_encoder,
    "fine-tuning": _fine_tuning,
    "very short": _very_short,
    "every 500 steps": _rare_values,
    "epochs only": _epochs_only,
    "two digits": _rounded,
    "validation every step": _validation_every_step,
    "millionths or millions": _tiny_or_huge,
    "negative": _negative,
    "batch of one": _batch_of_one,
    "running mean": _running_mean,
    "several tasks": _tasks,
    "late decay": _late_decay,
    "shared machine": _shared_machine,
    "longer steps by plan": _longer_steps,
}
