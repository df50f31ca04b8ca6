"""Read samples from a TRL trainer right after it has generated completions or computed a loss.

Each kind of trainer has a `SampleExtractor`. Rows are built from values that the trainer has computed for its own
metrics, and from the token ids of its batch. Nothing here runs a model, draws a random number or keeps a tensor. The
device has finished the work by then, because TRL reads the same values to log its metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tachograph.recorder import text_of

__all__ = ["EXTRACTORS", "ObservedMethod", "Row", "SampleExtractor", "scored_rows"]

_MAX_TOKENS = 8_000
_MAX_SFT_EXAMPLES = 8
"""Fine-tuning examples are the data itself, so a few of them are enough."""
_GAP = " […] "
_IGNORED_LABEL = -100

Row = dict[str, Any]


class ObservedMethod(NamedTuple):
    """A method whose calls are observed while the trainer's own method runs."""

    owner: Any
    name: str
    extract: Callable[[tuple[Any, ...], dict[str, Any], Any], Any]
    """Return the extract of a call, given its positional arguments, keyword arguments and result."""


class SampleExtractor(NamedTuple):
    """How to read samples from one kind of trainer."""

    method: str
    """The trainer's method after which the samples exist."""
    observed_methods: Callable[[Any, tuple[Any, ...]], list[ObservedMethod]]
    """Return the methods to observe, given the trainer and the arguments of its method."""
    build_rows: Callable[[Any, Any, list[Any], int], list[Row]]
    """Return rows, given the trainer, its batch, the observed extracts and the maximum number of rows."""


# GRPO, RLOO ----------------------------------------------------------------------------------------------------------


def _grpo_rows(trainer: Any, batch: Any, extracts: list[Any], max_rows: int) -> list[Row]:
    logs = trainer._logs  # private: the table that the trainer fills for its own completion logs
    columns = (logs["prompt"], logs["completion"], logs["rewards"], logs["advantages"])
    return scored_rows(trainer, *columns, max_rows=max_rows, extra=logs.get("extra", {}))


def scored_rows(
    trainer: Any,
    prompts: Sequence[Any],
    completions: Iterable[Any],
    rewards: Mapping[str, Iterable[float]],
    advantages: Iterable[float],
    *,
    max_rows: int,
    extra: Mapping[str, Iterable[Any]] | None = None,
) -> list[Row]:
    """Return rows for the first completions that a trainer has generated and scored.

    Args:
        trainer: the trainer, which knows the weights of its rewards.
        prompts: the prompt of each completion.
        completions: the completions.
        rewards: the values of each reward function, by its name.
        advantages: the advantage of each completion.
        max_rows: the maximum number of rows; at least the completions of one prompt are returned.
        extra: columns that reward functions have added.
    """
    num_rows = len(prompts)
    group = max(1, int(getattr(trainer, "num_generations", 1)))
    max_rows = min(num_rows, max(group, max_rows // group * group))  # whole groups: one prompt's answers are compared
    values = {name: _first_values(column, num_rows, max_rows) for name, column in rewards.items()}
    weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
    columns: dict[str, list[Any]] = {
        "prompt": [text_of(prompt) for prompt in _first_values(prompts, num_rows, max_rows)],
        "completion": [text_of(completion) for completion in _first_values(completions, num_rows, max_rows)],
        "reward": [
            _weighted_reward(dict(zip(values, row, strict=True)), weights)
            for row in zip(*values.values(), strict=False)
        ],
        **{f"rewards/{name}": column for name, column in values.items()},
        "advantage": _first_values(advantages, num_rows, max_rows),
    }
    for name, column in (extra or {}).items():  # columns that reward functions add with `log_extra`
        column_name = f"{name}_" if name in {*columns, "self", "step"} else str(name)
        columns.setdefault(column_name, _first_values(column, num_rows, max_rows))
    return _add_columns([{} for _ in range(max_rows)], columns)


def _first_values(values: Iterable[Any], num_rows: int, max_rows: int) -> list[Any]:
    """Return the first values of a column; an empty list if its length differs from the number of rows."""
    column = list(values)
    return column[:max_rows] if len(column) == num_rows else []


def _weighted_reward(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the reward whose mean the trainer reports; NaN if no reward function returned a value."""
    weighted_values = [weights[name] * value for name, value in rewards.items() if not math.isnan(value)]
    return sum(weighted_values) if weighted_values else math.nan


# Preference pairs: DPO, ORPO, CPO ------------------------------------------------------------------------------------


def _dpo_rows(trainer: Any, batch: Any, extracts: list[Any], max_rows: int) -> list[Row]:
    # `compute_loss` passes these 1-d tensors to `accelerator.gather`, in this order: chosen rewards, rejected rewards,
    # whether chosen > rejected, margins. The scalars that it gathers in between are skipped.
    chosen_rewards, rejected_rewards, _, margins = [tensor for tensor in extracts if getattr(tensor, "ndim", 0) == 1][
        :4
    ]
    num_pairs = len(batch["input_ids"]) // 2
    if len(chosen_rewards) != num_pairs or repr((chosen_rewards - rejected_rewards).tolist()) != repr(margins.tolist()):
        raise ValueError("rewards and margins are not gathered in the expected order")
    num_rows = min(num_pairs, max_rows)
    first = _prompts_and_answers(trainer, batch, slice(0, num_rows))
    second = _prompts_and_answers(trainer, batch, slice(num_pairs, num_pairs + num_rows))
    rows = [
        {"prompt": prompt, "chosen": chosen_text, "rejected": rejected_text}
        for (prompt, chosen_text), (_, rejected_text) in zip(first, second, strict=True)
    ]
    return _add_columns(
        rows,
        {
            "chosen_reward": chosen_rewards.tolist(),
            "rejected_reward": rejected_rewards.tolist(),
            "margin": margins.tolist(),
        },
    )


def _orpo_rows(trainer: Any, batch: Any, extracts: list[Any], max_rows: int) -> list[Row]:
    losses, chosen_rewards, rejected_rewards = extracts[-1]
    beta = float(trainer.beta)
    ratios = [loss / beta for loss in losses.tolist()] if beta else []
    return _add_columns(
        _pair_rows(trainer, batch, max_rows),
        {"log_odds_ratio": ratios, **_pair_rewards(chosen_rewards, rejected_rewards)},
    )


def _cpo_rows(trainer: Any, batch: Any, extracts: list[Any], max_rows: int) -> list[Row]:
    _, chosen_rewards, rejected_rewards = extracts[-1]
    return _add_columns(_pair_rows(trainer, batch, max_rows), _pair_rewards(chosen_rewards, rejected_rewards))


def _pair_rows(trainer: Any, batch: Any, max_rows: int) -> list[Row]:
    prompts, masks = _to_list(batch["prompt_input_ids"]), _to_list(batch["prompt_attention_mask"])
    chosen_labels, rejected_labels = _to_list(batch["chosen_labels"]), _to_list(batch["rejected_labels"])
    return [
        {
            "prompt": _decode(trainer, [token for token, is_token in zip(prompt, mask, strict=True) if is_token]),
            "chosen": _decode(trainer, [token for token in first if token != _IGNORED_LABEL]),
            "rejected": _decode(trainer, [token for token in second if token != _IGNORED_LABEL]),
        }
        for prompt, mask, first, second in list(zip(prompts, masks, chosen_labels, rejected_labels, strict=True))[
            :max_rows
        ]
    ]


def _pair_rewards(chosen_rewards: Any, rejected_rewards: Any) -> dict[str, list[float]]:
    return {
        "chosen_reward": chosen_rewards.tolist(),
        "rejected_reward": rejected_rewards.tolist(),
        "margin": (chosen_rewards - rejected_rewards).tolist(),
    }


# KTO, SFT ------------------------------------------------------------------------------------------------------------


def _kto_rows(trainer: Any, batch: Any, extracts: list[Any], max_rows: int) -> list[Row]:
    rows = [
        {"prompt": prompt, "completion": completion, "label": "desirable" if label else "undesirable"}
        for (prompt, completion), label in zip(
            _prompts_and_answers(trainer, batch, slice(0, max_rows)), _to_list(batch["label"][:max_rows]), strict=True
        )
    ]
    return _add_columns(rows, {"reward": _kto_rewards(trainer, batch, extracts)})


def _kto_rewards(trainer: Any, batch: Any, extracts: list[Any]) -> list[float]:
    """Return the rewards whose means the trainer reports; an empty list if no reference forward was observed."""
    ids = batch["input_ids"]
    calls = [call for call in extracts if call is not None and _is_same_batch(call.ids, ids)]
    policy = [call.log_probability(ids) for call in calls if call.is_policy]
    reference = [call.log_probability(ids) for call in calls if not call.is_policy]
    if batch.get("ref_logps") is not None:
        reference = [batch["ref_logps"]]
    if not policy or not reference:
        return []
    rewards: list[float] = (float(trainer.beta) * (policy[-1] - reference[-1])).tolist()
    return rewards


class _ForwardCall(NamedTuple):
    """The log probabilities that a forward pass returned. Only the policy's require gradients."""

    ids: Any
    log_probs: Any
    is_policy: bool

    def log_probability(self, ids: Any) -> Any:
        return self.log_probs[:, -(ids.shape[1] - 1) :].sum(-1)


def _is_same_batch(one: Any, other: Any) -> bool:
    # KTO also runs the models on mismatched prompt-answer pairs, whose results are of no use here.
    return one is not None and one.shape == other.shape and one.data_ptr() == other.data_ptr()


def _sft_rows(trainer: Any, batch: Any, extracts: list[Any], max_rows: int) -> list[Row]:
    rows = []
    for tokens, labels in _split_examples(batch, min(max_rows, _MAX_SFT_EXAMPLES)):
        label_indices = [index for index, label in enumerate(labels) if label != _IGNORED_LABEL]
        first = label_indices[0] if label_indices else len(tokens)
        ranges = _contiguous_ranges(label_indices)
        row = {"prompt": _decode(trainer, tokens[:first]) if first else None}
        row["completion"] = _GAP.join(_decode(trainer, tokens[start:end]) for start, end in ranges)
        rows.append(row)
    return rows


def _split_examples(batch: Any, max_rows: int) -> list[tuple[list[int], list[int]]]:
    """Return the tokens and labels of each example of a padded or packed batch."""
    ids, labels = _to_list(batch["input_ids"][:max_rows]), _to_list(batch["labels"][:max_rows])
    if batch.get("attention_mask") is not None:
        masks = _to_list(batch["attention_mask"][:max_rows])
        return [
            (
                [token for token, is_token in zip(row, mask, strict=True) if is_token],
                [one for one, is_token in zip(label, mask, strict=True) if is_token],
            )
            for row, label, mask in zip(ids, labels, masks, strict=True)
        ]
    if batch.get("position_ids") is None:
        return list(zip(ids, labels, strict=True))
    examples = []
    # A packed row: the position restarts at 0 where an example starts.
    for row, label, positions in zip(ids, labels, _to_list(batch["position_ids"][:max_rows]), strict=True):
        starts = [index for index, position in enumerate(positions) if position == 0] or [0]
        for start, end in zip(starts, [*starts[1:], len(row)], strict=True):
            examples.append((row[start:end], label[start:end]))
    return examples[:max_rows]


def _contiguous_ranges(indices: list[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges of consecutive indices."""
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges


# Shared helpers ------------------------------------------------------------------------------------------------------


def _to_list(tensor: Any) -> list[Any]:
    values: list[Any] = tensor.tolist()
    return values


def _prompts_and_answers(trainer: Any, batch: Any, rows: slice) -> list[tuple[str, str]]:
    """Return prompts and answers of rows of a batch whose `completion_mask` marks the tokens of the answer."""
    columns = [_to_list(batch[name][rows]) for name in ("input_ids", "attention_mask", "completion_mask")]
    pairs = []
    for ids, mask, is_answer in zip(*columns, strict=True):
        tokens = [
            (token, in_answer) for token, is_token, in_answer in zip(ids, mask, is_answer, strict=True) if is_token
        ]
        prompt_tokens = [token for token, in_answer in tokens if not in_answer]
        answer_tokens = [token for token, in_answer in tokens if in_answer]
        pairs.append((_decode(trainer, prompt_tokens), _decode(trainer, answer_tokens)))
    return pairs


def _decode(trainer: Any, tokens: list[int]) -> str:
    """Return tokens as text, with special tokens: a missing end-of-text token is a common bug."""
    text = str(trainer.processing_class.decode(tokens[:_MAX_TOKENS], skip_special_tokens=False))
    return text if len(tokens) <= _MAX_TOKENS else f"{text}… [cut, {len(tokens)} tokens]"


def _add_columns(rows: list[Row], columns: Mapping[str, Iterable[Any]]) -> list[Row]:
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=False):
            row[name] = value
    return rows


# Observed methods ----------------------------------------------------------------------------------------------------


def _observe_nothing(trainer: Any, arguments: tuple[Any, ...]) -> list[ObservedMethod]:
    return []


def _observe_gather(trainer: Any, arguments: tuple[Any, ...]) -> list[ObservedMethod]:
    return [ObservedMethod(trainer.accelerator, "gather", lambda args, kwargs, result: _detach(args[0]))]


def _observe_loss(name: str) -> Callable[[Any, tuple[Any, ...]], list[ObservedMethod]]:
    def extract(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Any]:
        return [*map(_detach, result[:3])]

    return lambda trainer, _: [ObservedMethod(trainer, name, extract)]


def _observe_forward(trainer: Any, arguments: tuple[Any, ...]) -> list[ObservedMethod]:
    """Observe `forward` of the policy and of the reference model."""
    policy, reference = arguments[0], getattr(trainer, "ref_model", None)
    if reference is None and policy is not trainer.model and not hasattr(policy, "_orig_mod"):
        # PEFT: the reference is the unwrapped model with its adapters disabled. A compiled model is not patched.
        reference = trainer.model
    return [ObservedMethod(model, "forward", _extract_log_probs) for model in (policy, reference) if model is not None]


def _extract_log_probs(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> _ForwardCall | None:
    log_probs = getattr(result, "log_probs", None)
    if log_probs is None:
        return None
    return _ForwardCall(kwargs.get("input_ids"), log_probs.detach(), bool(log_probs.requires_grad))


def _detach(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else None


_GRPO = SampleExtractor("_generate_and_score_completions", _observe_nothing, _grpo_rows)

EXTRACTORS = {
    "GRPOTrainer": _GRPO,
    "RLOOTrainer": _GRPO,
    "DPOTrainer": SampleExtractor("compute_loss", _observe_gather, _dpo_rows),
    "KTOTrainer": SampleExtractor("compute_loss", _observe_forward, _kto_rows),
    "ORPOTrainer": SampleExtractor("compute_loss", _observe_loss("odds_ratio_loss"), _orpo_rows),
    "CPOTrainer": SampleExtractor("compute_loss", _observe_loss("cpo_loss"), _cpo_rows),
    "SFTTrainer": SampleExtractor("compute_loss", _observe_nothing, _sft_rows),
}
"""By class name; a subclass uses the extractor of the nearest base class that has one."""
