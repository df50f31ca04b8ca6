"""What samples lie in the hands of a TRL trainer right after it has generated, or has computed a loss.

Nothing here runs a model, draws a random number or keeps a tensor: rows are made of what the trainer has computed, and
of the token ids it was given. TRL has waited for the device by then, to report its own metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tachograph.recorder import text_of

__all__ = ["READERS", "Ear", "Reader"]

_MOST_TOKENS = 8_000
_MOST_EXAMPLES = 8
"""Of plain fine-tuning: they are the data and say little of the model."""
_GAP = " […] "
_IGNORED = -100

Row = dict[str, Any]


class Ear(NamedTuple):
    """A method whose calls are heard while the trainer works."""

    owner: Any
    name: str
    keep: Callable[[tuple[Any, ...], dict[str, Any], Any], Any]
    """What to keep of a call: its arguments, those by name, and its result are given."""


class Reader(NamedTuple):
    """How samples are read from one kind of trainer."""

    method: str
    """The method of the trainer after which they are there."""
    ears: Callable[[Any, tuple[Any, ...]], list[Ear]]
    """What to hear meanwhile, for a trainer and the arguments of its method."""
    read: Callable[[Any, Any, list[Any], int], list[Row]]
    """Rows, from the trainer, its batch, what was heard, and how many there may be at most."""


# Generation --------------------------------------------------------------------------------------------------------


def _generated(trainer: Any, batch: Any, heard: list[Any], most: int) -> list[Row]:
    logs = trainer._logs
    num_rows = len(logs["prompt"])
    group = max(1, int(getattr(trainer, "num_generations", 1)))
    most = min(num_rows, max(group, most // group * group))  # answers to one prompt are there to be compared
    rewards = {name: _first(values, num_rows, most) for name, values in logs["rewards"].items()}
    weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
    columns: dict[str, list[Any]] = {
        "prompt": [text_of(prompt) for prompt in _first(logs["prompt"], num_rows, most)],
        "completion": [text_of(completion) for completion in _first(logs["completion"], num_rows, most)],
        "reward": [
            _weighted(dict(zip(rewards, values, strict=True)), weights)
            for values in zip(*rewards.values(), strict=False)
        ],
        **{f"rewards/{name}": values for name, values in rewards.items()},
        "advantage": _first(logs["advantages"], num_rows, most),
    }
    for name, values in logs.get("extra", {}).items():  # what a reward function wants to be shown
        own = f"{name}_" if name in {*columns, "self", "step"} else str(name)
        columns.setdefault(own, _first(values, num_rows, most))
    return _with_columns([{} for _ in range(most)], columns)


def _first(values: Iterable[Any], num_rows: int, most: int) -> list[Any]:
    """Return the first values of a column, none of one that does not fit the rows."""
    known = list(values)
    return known[:most] if len(known) == num_rows else []


def _weighted(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the reward that the trainer reports the mean of; NaN if no function could judge."""
    known = [weights[name] * value for name, value in rewards.items() if not math.isnan(value)]
    return sum(known) if known else math.nan


# Pairs -------------------------------------------------------------------------------------------------------------


def _dpo(trainer: Any, batch: Any, heard: list[Any], most: int) -> list[Row]:
    # The trainer gathers, in this order: the rewards of the chosen and of the rejected answers, which of them are
    # higher, and the margins. Scalars it gathers in between are not of interest.
    chosen, rejected, _, margins = [tensor for tensor in heard if getattr(tensor, "ndim", 0) == 1][:4]
    num_pairs = len(batch["input_ids"]) // 2
    if len(chosen) != num_pairs or repr((chosen - rejected).tolist()) != repr(margins.tolist()):
        raise ValueError("rewards and margins are not gathered in the order that was expected")
    num_rows = min(num_pairs, most)
    first = _answers(trainer, batch, slice(0, num_rows))
    second = _answers(trainer, batch, slice(num_pairs, num_pairs + num_rows))
    rows = [
        {"prompt": prompt, "chosen": answer, "rejected": other}
        for (prompt, answer), (_, other) in zip(first, second, strict=True)
    ]
    return _with_columns(
        rows, {"chosen_reward": chosen.tolist(), "rejected_reward": rejected.tolist(), "margin": margins.tolist()}
    )


def _orpo(trainer: Any, batch: Any, heard: list[Any], most: int) -> list[Row]:
    losses, chosen, rejected = heard[-1]
    beta = float(trainer.beta)
    ratios = [loss / beta for loss in losses.tolist()] if beta else []
    return _with_columns(
        _pairs(trainer, batch, most), {"log_odds_ratio": ratios, **_rewards_of_pairs(chosen, rejected)}
    )


def _cpo(trainer: Any, batch: Any, heard: list[Any], most: int) -> list[Row]:
    _, chosen, rejected = heard[-1]
    return _with_columns(_pairs(trainer, batch, most), _rewards_of_pairs(chosen, rejected))


def _pairs(trainer: Any, batch: Any, most: int) -> list[Row]:
    prompts, masks = _tokens(batch["prompt_input_ids"]), _tokens(batch["prompt_attention_mask"])
    chosen, rejected = _tokens(batch["chosen_labels"]), _tokens(batch["rejected_labels"])
    return [
        {
            "prompt": _decoded(trainer, [token for token, is_there in zip(prompt, mask, strict=True) if is_there]),
            "chosen": _decoded(trainer, [token for token in first if token != _IGNORED]),
            "rejected": _decoded(trainer, [token for token in second if token != _IGNORED]),
        }
        for prompt, mask, first, second in list(zip(prompts, masks, chosen, rejected, strict=True))[:most]
    ]


def _rewards_of_pairs(chosen: Any, rejected: Any) -> dict[str, list[float]]:
    return {
        "chosen_reward": chosen.tolist(),
        "rejected_reward": rejected.tolist(),
        "margin": (chosen - rejected).tolist(),
    }


# Single answers ----------------------------------------------------------------------------------------------------


def _kto(trainer: Any, batch: Any, heard: list[Any], most: int) -> list[Row]:
    rows = [
        {"prompt": prompt, "completion": answer, "label": "desirable" if label else "undesirable"}
        for (prompt, answer), label in zip(
            _answers(trainer, batch, slice(0, most)), _tokens(batch["label"][:most]), strict=True
        )
    ]
    return _with_columns(rows, {"reward": _kto_rewards(trainer, batch, heard)})


def _kto_rewards(trainer: Any, batch: Any, heard: list[Any]) -> list[float]:
    """Return the rewards that the trainer reports the means of, or none if the reference could not be heard."""
    ids = batch["input_ids"]
    about_these = [call for call in heard if call is not None and _is_same(call.ids, ids)]
    policy = [call.log_probability(ids) for call in about_these if call.is_policy]
    reference = [call.log_probability(ids) for call in about_these if not call.is_policy]
    if batch.get("ref_logps") is not None:
        reference = [batch["ref_logps"]]
    if not policy or not reference:
        return []
    rewards: list[float] = (float(trainer.beta) * (policy[-1] - reference[-1])).tolist()
    return rewards


class _Forward(NamedTuple):
    """What a model said of a batch; of the policy it can be learned from."""

    ids: Any
    log_probs: Any
    is_policy: bool

    def log_probability(self, ids: Any) -> Any:
        return self.log_probs[:, -(ids.shape[1] - 1) :].sum(-1)


def _is_same(one: Any, other: Any) -> bool:
    return one is not None and one.shape == other.shape and one.data_ptr() == other.data_ptr()


def _sft(trainer: Any, batch: Any, heard: list[Any], most: int) -> list[Row]:
    rows = []
    for tokens, labels in _examples(batch, min(most, _MOST_EXAMPLES)):
        trained = [index for index, label in enumerate(labels) if label != _IGNORED]
        first = trained[0] if trained else len(tokens)
        stretches = _stretches(trained)
        row = {"prompt": _decoded(trainer, tokens[:first]) if first else None}
        row["completion"] = _GAP.join(_decoded(trainer, tokens[start:end]) for start, end in stretches)
        rows.append(row)
    return rows


def _examples(batch: Any, most: int) -> list[tuple[list[int], list[int]]]:
    """Return tokens and labels of examples, whether padded or put together into one long row."""
    ids, labels = _tokens(batch["input_ids"][:most]), _tokens(batch["labels"][:most])
    if batch.get("attention_mask") is not None:
        masks = _tokens(batch["attention_mask"][:most])
        return [
            (
                [token for token, there in zip(row, mask, strict=True) if there],
                [x for x, there in zip(label, mask, strict=True) if there],
            )
            for row, label, mask in zip(ids, labels, masks, strict=True)
        ]
    if batch.get("position_ids") is None:
        return list(zip(ids, labels, strict=True))
    examples = []
    for row, label, places in zip(ids, labels, _tokens(batch["position_ids"][:most]), strict=True):
        starts = [index for index, place in enumerate(places) if place == 0] or [0]
        for start, end in zip(starts, [*starts[1:], len(row)], strict=True):
            examples.append((row[start:end], label[start:end]))
    return examples[:most]


def _stretches(places: list[int]) -> list[tuple[int, int]]:
    """Return where runs of neighbours begin and end."""
    stretches: list[tuple[int, int]] = []
    for place in places:
        if stretches and stretches[-1][1] == place:
            stretches[-1] = (stretches[-1][0], place + 1)
        else:
            stretches.append((place, place + 1))
    return stretches


# All of them -------------------------------------------------------------------------------------------------------


def _tokens(tensor: Any) -> list[Any]:
    found: list[Any] = tensor.tolist()
    return found


def _answers(trainer: Any, batch: Any, rows: slice) -> list[tuple[str, str]]:
    """Return prompts and answers of some rows of a batch that says which tokens are of the answer."""
    columns = [_tokens(batch[name][rows]) for name in ("input_ids", "attention_mask", "completion_mask")]
    found = []
    for ids, mask, is_answer in zip(*columns, strict=True):
        tokens = [(token, answers) for token, there, answers in zip(ids, mask, is_answer, strict=True) if there]
        prompt = [token for token, answers in tokens if not answers]
        found.append((_decoded(trainer, prompt), _decoded(trainer, [token for token, answers in tokens if answers])))
    return found


def _decoded(trainer: Any, tokens: list[int]) -> str:
    """Return tokens as text, special ones too: whether they are there is often the question."""
    text = str(trainer.processing_class.decode(tokens[:_MOST_TOKENS], skip_special_tokens=False))
    return text if len(tokens) <= _MOST_TOKENS else f"{text}… [cut, {len(tokens)} tokens]"


def _with_columns(rows: list[Row], columns: Mapping[str, Iterable[Any]]) -> list[Row]:
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=False):
            row[name] = value
    return rows


def _no_ears(trainer: Any, arguments: tuple[Any, ...]) -> list[Ear]:
    return []


def _gathering(trainer: Any, arguments: tuple[Any, ...]) -> list[Ear]:
    return [Ear(trainer.accelerator, "gather", lambda given, named, result: _detached(given[0]))]


def _losses(name: str) -> Callable[[Any, tuple[Any, ...]], list[Ear]]:
    return lambda trainer, _: [Ear(trainer, name, lambda given, named, result: [*map(_detached, result[:3])])]


def _models(trainer: Any, arguments: tuple[Any, ...]) -> list[Ear]:
    """Return the policy and the reference, each as it is called from outside."""
    policy, reference = arguments[0], getattr(trainer, "ref_model", None)
    if reference is None and policy is not trainer.model and not hasattr(policy, "_orig_mod"):
        reference = trainer.model  # its adapters are turned off for that; what is compiled is left alone
    return [Ear(model, "forward", _said) for model in (policy, reference) if model is not None]


def _said(given: tuple[Any, ...], named: dict[str, Any], result: Any) -> _Forward | None:
    log_probs = getattr(result, "log_probs", None)
    if log_probs is None:
        return None
    return _Forward(named.get("input_ids"), log_probs.detach(), bool(log_probs.requires_grad))


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else None


_GENERATED = Reader("_generate_and_score_completions", _no_ears, _generated)

READERS = {
    "GRPOTrainer": _GENERATED,
    "RLOOTrainer": _GENERATED,
    "DPOTrainer": Reader("compute_loss", _gathering, _dpo),
    "KTOTrainer": Reader("compute_loss", _models, _kto),
    "ORPOTrainer": Reader("compute_loss", _losses("odds_ratio_loss"), _orpo),
    "CPOTrainer": Reader("compute_loss", _losses("cpo_loss"), _cpo),
    "SFTTrainer": Reader("compute_loss", _no_ears, _sft),
}
"""By the name of the trainer's class, or of one that it inherits from."""
