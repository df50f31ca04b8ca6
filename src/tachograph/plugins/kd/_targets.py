"""The teacher's most likely tokens as they come from datasets and servers, as columns of a dataset and as batches.

The convention everywhere: entry ``t`` of the targets is the teacher's distribution of token ``t + 1``, so it belongs to
the logits at position ``t``. Datasets and servers store it with the token that it predicts; `row_targets` moves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tachograph.plugins.kd._loss import PAD_LOGPROB

__all__ = [
    "LOGPROBS_COLUMN",
    "SOURCE_COLUMNS",
    "TARGET_COLUMNS",
    "TEMPERATURE_COLUMN",
    "TargetCollator",
    "batch_targets",
    "parse_logprobs",
    "row_targets",
]

TARGET_COLUMNS = ("target_token_ids", "target_logprobs", "target_mask")
LOGPROBS_COLUMN = "logprobs"
"""Log-probabilities as a dataset has them, in a format of `parse_logprobs`; the collator makes targets of them."""
TEMPERATURE_COLUMN = "logprobs_temperature"
"""The temperature of these log-probabilities."""
SOURCE_COLUMNS = (*TARGET_COLUMNS, LOGPROBS_COLUMN, TEMPERATURE_COLUMN)
"""All columns that targets are made from."""
_PREFIX = "token_id:"
_MIN_SCORED = 16
"""The tokens of a row from which on it is suspicious if hardly any is among its candidates."""

Candidates = list[tuple[int, float]]
"""Tokens of one position with their log-probabilities."""


def parse_logprobs(value: Any) -> list[Candidates]:
    """Return the candidates of each token, from the formats of vLLM, SGLang and OpenAI.

    Args:
        value: a list with an entry per token, or a mapping with such a list as `content`. An entry is None, a list, or
            a mapping. Lists have `{"token": "token_id:5", "logprob": -0.1}`, `{"token_id": 5, "logprob": -0.1}` or
            `[5, -0.1]`. Mappings have ids as keys, and numbers or `{"logprob": -0.1}` as values; or a list of
            candidates as `top_logprobs`; or two lists, `token_ids` and `logprobs`.

    Raises:
        ValueError: if it is something else.
    """
    if isinstance(value, Mapping) and "content" in value:
        value = value["content"]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"log-probabilities: expected a list with an entry per token, got {_short(value)}")
    return [_parse_entry(entry) for entry in value]


def _parse_entry(entry: Any) -> Candidates:
    if entry is None:
        return []
    pairs: list[tuple[Any, Any]]
    if isinstance(entry, Mapping):
        if entry.get("top_logprobs") is not None:
            return _parse_entry(entry["top_logprobs"])
        if "token_ids" in entry and "logprobs" in entry:
            pairs = list(zip(entry["token_ids"], entry["logprobs"], strict=True))
        else:
            pairs = [
                (token, value["logprob"] if isinstance(value, Mapping) else value)
                for token, value in entry.items()
                if value is not None
            ]
    elif isinstance(entry, Sequence) and not isinstance(entry, str):
        pairs = [_parse_candidate(candidate) for candidate in entry]
    else:
        raise ValueError(f"log-probabilities of a token: expected a list or a mapping, got {_short(entry)}")
    candidates = [(_token_id(token), float(logprob)) for token, logprob in pairs if logprob is not None]
    return [(token, logprob) for token, logprob in candidates if math.isfinite(logprob)]


def _parse_candidate(candidate: Any) -> tuple[Any, Any]:
    if isinstance(candidate, Mapping) and "logprob" in candidate:
        return candidate.get("token_id", candidate.get("token")), candidate["logprob"]
    if isinstance(candidate, Sequence) and not isinstance(candidate, str) and len(candidate) == 2:
        return candidate[0], candidate[1]
    raise ValueError(
        f"log-probability: expected {{'token': …, 'logprob': …}} or [id, logprob], got {_short(candidate)}"
    )


def _token_id(token: Any) -> int:
    text = str(token).removeprefix(_PREFIX)
    if not text.isdecimal():
        raise ValueError(
            f"log-probability of token {token!r}: expected an id such as 5 or 'token_id:5'; generate the dataset with "
            f"return_tokens_as_token_ids=true"
        )
    return int(text)


def row_targets(
    logprobs: Any,
    input_ids: Sequence[int],
    labels: Sequence[int],
    *,
    temperature: float = 1.0,
    ignore_index: int = -100,
) -> dict[str, list[Any]]:
    """Return the target columns of a tokenised row.

    Args:
        logprobs: the log-probabilities of the row, in a format of `parse_logprobs`: an entry for each token of the
            row, or for each token that has a label. Entries may be missing at the end, where a chat template adds
            tokens after the answer, or be too many, if the row was truncated.
        input_ids: the tokens of the row.
        labels: their labels.
        temperature: the temperature that the teacher used.
        ignore_index: the label of tokens that are not trained.

    Returns:
        `target_token_ids`, `target_logprobs` (at temperature 1) and `target_mask`, each with one list per token.

    Raises:
        ValueError: if the log-probabilities do not belong to these tokens.
    """
    entries = parse_logprobs(logprobs)
    trained_positions = [position for position, label in enumerate(labels) if label != ignore_index]
    by_token = dict(zip(trained_positions, entries, strict=False))
    if len(entries) == len(input_ids):
        by_every_token = {position: entries[position] for position in trained_positions}
        if _num_hits(by_every_token, input_ids) >= _num_hits(by_token, input_ids):
            by_token = by_every_token
    _check_alignment(by_token, input_ids, trained_positions, len(entries))
    targets = [by_token.get(position + 1, []) for position in range(len(input_ids))]
    return _columns([[(token, logprob * temperature) for token, logprob in entry] for entry in targets])


def _num_hits(by_token: Mapping[int, Candidates], input_ids: Sequence[int], shift: int = 0) -> int:
    """Return how many tokens are among the candidates of their position, or of one that is shifted."""
    return sum(
        int(input_ids[position + shift]) in {token for token, _ in candidates}
        for position, candidates in by_token.items()
        if 0 <= position + shift < len(input_ids)
    )


def _check_alignment(
    by_token: Mapping[int, Candidates], input_ids: Sequence[int], trained_positions: Sequence[int], count: int
) -> None:
    """Raise an error if the tokens are not among their candidates, or the candidates of a neighbour fit better.

    A teacher that scored a text finds most of its tokens likely, so both would mean that it scored another text.
    """
    num_scored = sum(bool(candidates) for candidates in by_token.values())
    hits = _num_hits(by_token, input_ids)
    shifted_hits = max(_num_hits(by_token, input_ids, shift) for shift in (-1, 1))
    is_other_text = num_scored >= _MIN_SCORED and hits * 10 < num_scored
    if is_other_text or 2 * (shifted_hits - hits) > num_scored or (trained_positions and not num_scored):
        raise ValueError(
            f"{count} log-probabilities do not belong to the {len(input_ids)} tokens "
            f"({len(trained_positions)} with a label): {hits} of {num_scored} tokens are among their candidates, and "
            f"{shifted_hits} if they are shifted by one. The teacher must have scored this text with the same "
            f"tokenizer and chat template."
        )


def _columns(entries: Sequence[Candidates], width: int | None = None) -> dict[str, list[Any]]:
    if width is None:
        width = max((len(entry) for entry in entries), default=0)
    missing = [width - len(entry) for entry in entries]
    return {
        "target_token_ids": [
            [token for token, _ in entry] + [0] * gap for entry, gap in zip(entries, missing, strict=True)
        ],
        "target_logprobs": [
            [logprob for _, logprob in entry] + [PAD_LOGPROB] * gap for entry, gap in zip(entries, missing, strict=True)
        ],
        "target_mask": [[1] * len(entry) + [0] * gap for entry, gap in zip(entries, missing, strict=True)],
    }


def batch_targets(
    candidates: Sequence[Sequence[Candidates]],
    positions: Sequence[Sequence[int]],
    shape: tuple[int, int],
    vocabulary: int,
) -> dict[str, torch.Tensor]:
    """Return the target columns of a batch whose rows were scored without their padding.

    Args:
        candidates: the candidates of each token of each row; that is, of the token that they predict.
        positions: where these tokens are in the batch.
        shape: the rows and positions of the batch.
        vocabulary: the number of tokens of the student.

    Raises:
        ValueError: if the student does not have one of the candidates.
    """
    width = max((len(entry) for row in candidates for entry in row), default=0)
    batch = _empty_batch((*shape, max(width, 1)))
    for line, (row, row_positions) in enumerate(zip(candidates, positions, strict=True)):
        columns = _columns(row[1:], width=max(width, 1))  # the first token is not predicted
        for key, values in columns.items():
            if values:
                batch[key][line, list(row_positions[:-1])] = torch.tensor(values, dtype=batch[key].dtype)
    return _check_vocabulary(batch, vocabulary)


def _check_vocabulary(batch: dict[str, torch.Tensor], vocabulary: int) -> dict[str, torch.Tensor]:
    """Return a batch whose tokens the student has. On a GPU, others would end the process without a clear message."""
    largest = int(batch["target_token_ids"].max())
    if largest >= vocabulary:
        raise ValueError(
            f"target_token_ids: token {largest} is outside the vocabulary of the student ({vocabulary} tokens): "
            f"the teacher must have the same tokenizer"
        )
    return batch


def _empty_batch(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {
        "target_token_ids": torch.zeros(shape, dtype=torch.long),
        "target_logprobs": torch.full(shape, PAD_LOGPROB),
        "target_mask": torch.zeros(shape, dtype=torch.bool),
    }


class TargetCollator:
    """Collates rows with targets. The targets of a batch are [rows, tokens, k], padded as the tokens are.

    A row has the target columns, or `logprobs` and perhaps `logprobs_temperature`, or neither.

    Args:
        collator: collates everything else.
        vocabulary: the number of tokens of the student.
        error: returns the error about invalid targets.
    """

    def __init__(
        self,
        collator: Callable[[list[dict[str, Any]]], Any],
        vocabulary: int,
        error: Callable[[str], Exception] = ValueError,
    ) -> None:
        self.collator = collator
        self.vocabulary = vocabulary
        self._error = error

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        try:
            return self._collate(features)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise self._error(str(error)) from error

    def _collate(self, features: list[dict[str, Any]]) -> Any:
        rows = [_targets_of(feature) for feature in features]
        batch = self.collator(
            [{key: value for key, value in feature.items() if key not in SOURCE_COLUMNS} for feature in features]
        )
        if not any(rows):
            return batch
        tensors = [_row_tensors(row, len(feature["input_ids"])) for row, feature in zip(rows, features, strict=True)]
        batch.update(self._pad_targets(tensors, batch))
        return batch

    def check(self, feature: Mapping[str, Any]) -> None:
        """Raise a `ValueError` if the targets of a row are invalid."""
        targets = _targets_of(feature)
        if targets:
            length = len(feature["input_ids"])
            row = _row_tensors(targets, length)
            self._pad_targets([row], {"input_ids": torch.zeros((1, length))})

    def _pad_targets(self, rows: list[dict[str, torch.Tensor]], batch: Any) -> dict[str, torch.Tensor]:
        shape = batch["input_ids"].shape
        width = max(1, *(row["target_mask"].shape[1] for row in rows))
        targets = _empty_batch((*shape, width))
        offset = 0
        for index, row in enumerate(rows):
            length, size = row["target_mask"].shape
            if shape[0] == 1 and len(rows) > 1:  # rows are concatenated, without padding
                line, first, offset = 0, offset, offset + length
            else:
                line, first = index, _first_token(batch, index)
            last = min(first + length, shape[1])
            for key, value in row.items():
                targets[key][line, first:last, :size] = value[: last - first]
        return _check_vocabulary(targets, self.vocabulary)


def _targets_of(feature: Mapping[str, Any]) -> dict[str, Any]:
    """Return the target columns of a row, computed from its log-probabilities if it has them."""
    logprobs = feature.get(LOGPROBS_COLUMN)
    if logprobs is None:
        return {key: feature[key] for key in TARGET_COLUMNS if key in feature}
    temperature = float(feature.get(TEMPERATURE_COLUMN) or 1.0)
    ids, labels = (_to_list(feature[key]) for key in ("input_ids", "labels"))
    return row_targets(logprobs, ids, labels, temperature=temperature)


def _to_list(values: Any) -> list[int]:
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _row_tensors(row: Mapping[str, Any], length: int) -> dict[str, torch.Tensor]:
    if not row:
        empty = torch.zeros((length, 0))
        return dict.fromkeys(TARGET_COLUMNS, empty)
    ids = torch.as_tensor(row["target_token_ids"], dtype=torch.long).reshape(length, -1)
    logprobs = torch.as_tensor(row["target_logprobs"], dtype=torch.float32).reshape(length, -1)
    mask = torch.as_tensor(row["target_mask"]).bool().reshape(length, -1) if "target_mask" in row else None
    if ids.shape != logprobs.shape or (mask is not None and mask.shape != ids.shape):
        raise ValueError(
            f"target columns of a row have different shapes: {tuple(ids.shape)} ids, {tuple(logprobs.shape)} logprobs"
        )
    return {
        "target_token_ids": ids,
        "target_logprobs": logprobs,
        "target_mask": mask if mask is not None else logprobs > PAD_LOGPROB / 2,
    }


def _first_token(batch: Any, row: int) -> int:
    """Return the position of the first token that is not padding."""
    mask = batch.get("attention_mask")
    if mask is None or mask.shape != batch["input_ids"].shape:
        return 0
    return int(mask[row].long().argmax())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
