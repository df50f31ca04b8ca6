"""Reads, checks and tokenises the data of pre-training and SFT, before the model is loaded."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tachograph.train._chat import Rendered
from tachograph.train._config import TrainConfig
from tachograph.train._dataset_config import DatasetConfig
from tachograph.train._formats import column_of, format_of
from tachograph.train._problems import Problems, RowError
from tachograph.train._rows import IGNORED_LABEL, PackedRows, TokenRows
from tachograph.train._sources import Row, read_rows

__all__ = ["Limits", "PreparedData", "encode", "prepare_rows"]

_BATCH_ROWS = 256


class Limits(NamedTuple):
    """The limits of the model.

    Attributes:
        vocab_size: the number of rows of its embedding; None if it is resized to the tokenizer.
        max_positions: the longest sequence; None if there is no limit.
    """

    vocab_size: int | None = None
    max_positions: int | None = None


class PreparedData(NamedTuple):
    """The data of a training.

    Attributes:
        train: the rows to train on.
        eval: the rows to evaluate on, if any.
        num_samples: the number of samples to train on, before packing.
        num_tokens: the number of their tokens; None if not known.
        num_trained_tokens: the number of tokens that have labels; None if not known.
        notes: dropped and changed rows, in words for the user.
    """

    train: Any
    eval: Any = None
    num_samples: int = 0
    num_tokens: int | None = None
    num_trained_tokens: int | None = None
    notes: Sequence[str] = ()


def prepare_rows(config: TrainConfig, tokenizer: Any, limits: Limits, problems: Problems) -> PreparedData:
    """Return the tokenised data. Errors are added to the problems; then the data is incomplete."""
    notes: list[str] = []
    train = _read_sets(config.train_sets(), config, tokenizer, limits, problems, notes)
    held_out = _read_sets(config.eval_sets(), config, tokenizer, limits, problems, notes)
    for key, dataset in config.train_sets():
        if dataset.logprobs_field and config.sample_packing:
            problems.add(f"{key}.logprobs_field cannot be used with sample_packing: remove one of them")
    if not config.train_sets():
        problems.add("datasets is missing: add `datasets: [{path: data.jsonl, type: chat_template}]`")
    if config.val_set_size and not problems:
        num_eval = int(config.val_set_size if config.val_set_size >= 1 else len(train) * config.val_set_size)
        if not 0 < num_eval < len(train):
            problems.add(f"val_set_size={config.val_set_size:g} leaves {num_eval} of {len(train)} rows for evaluation")
        else:
            train, held_out = train.split(num_eval, config.seed)
    train_rows: Any = train
    if config.sample_packing and len(train):
        train_rows = PackedRows(train, config.sequence_len)
        notes.append(f"packed {len(train)} samples into {len(train_rows)} rows")
    held_out_rows: Any = held_out
    if config.eval_sample_packing and len(held_out):
        held_out_rows = PackedRows(held_out, config.sequence_len)
    return PreparedData(
        train_rows,
        held_out_rows if len(held_out) else None,
        len(train),
        sum(train.lengths()),
        train.num_trained_tokens(),
        notes,
    )


def _read_sets(
    sets: Iterable[tuple[str, DatasetConfig]],
    config: TrainConfig,
    tokenizer: Any,
    limits: Limits,
    problems: Problems,
    notes: list[str],
) -> TokenRows:
    rows = TokenRows()
    digests: set[bytes] = set()
    for key, dataset in sets:
        had_problems = bool(problems)
        render = format_of(key, dataset, config, tokenizer, problems)
        if render is None:
            continue
        filler = _RowFilter(key, dataset, config, limits, rows, digests)
        source = read_rows(key, dataset, problems)
        while batch := list(itertools.islice(source, _BATCH_ROWS)):
            rendered_rows: list[tuple[Row, Rendered]] = []
            for row in batch:
                filler.num_read += 1
                try:
                    rendered_rows.append((row, render(row.values)))
                except RowError as error:
                    problems.add_row(row.location, str(error))
            for (row, text), (ids, labels) in zip(
                rendered_rows, encode(tokenizer, [text for _, text in rendered_rows]), strict=True
            ):
                try:
                    filler.add(row, ids, labels, text.can_split)
                except RowError as error:
                    problems.add_row(row.location, str(error))
        notes += filler.notes()
        if not problems or not had_problems:
            filler.check(problems)
    return rows


def encode(tokenizer: Any, texts: Sequence[Rendered]) -> list[tuple[list[int], list[int]]]:
    """Return tokens and labels of texts. A token is trained on if it starts inside one of the text's spans."""
    results: list[tuple[list[int], list[int]]] = [([], [])] * len(texts)
    for add_special_tokens in (False, True):
        indices = [index for index, text in enumerate(texts) if text.add_special_tokens == add_special_tokens]
        if not indices:
            continue
        encoding = tokenizer(
            [texts[index].text for index in indices],
            add_special_tokens=add_special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        for index, ids, offsets in zip(indices, encoding["input_ids"], encoding["offset_mapping"], strict=True):
            results[index] = _label(texts[index], list(ids), offsets, tokenizer.eos_token_id)
    return results


def _label(
    text: Rendered, ids: list[int], offsets: Sequence[tuple[int, int]], eos: int | None
) -> tuple[list[int], list[int]]:
    labels = [IGNORED_LABEL] * len(ids)
    spans = iter(text.spans)
    span = next(spans, None)
    for number, (start, _) in enumerate(offsets):
        while span is not None and start >= span[1]:
            span = next(spans, None)
        if span is None:
            break
        if start >= span[0]:
            labels[number] = ids[number]
    if text.add_eos and eos is not None:
        if ids and ids[-1] == eos:
            labels[-1] = eos
        else:
            ids.append(eos)
            labels.append(eos)
    return ids, labels


class _RowFilter:
    """Adds rows that fit, and counts the others."""

    def __init__(
        self,
        key: str,
        dataset: DatasetConfig,
        config: TrainConfig,
        limits: Limits,
        rows: TokenRows,
        digests: set[bytes],
    ) -> None:
        self._key = key
        self._dataset = dataset
        self._config = config
        self._limits = limits
        self._rows = rows
        self._digests = digests
        self.num_read = 0
        self._num_added = 0
        self._num_long = self._num_short = self._num_untrained = self._num_repeated = 0
        self._first_long = ""

    def add(self, row: Row, ids: list[int], labels: list[int], can_split: bool) -> None:
        """Add a row, or several parts of a long one.

        Raises:
            RowError: if it has a token that the model does not know, or is too long.
        """
        limits, length = self._limits, self._config.sequence_len
        if limits.vocab_size is not None and ids and (largest := max(ids)) >= limits.vocab_size:
            raise RowError(
                f"token {largest} is beyond the vocabulary of the model, which has {limits.vocab_size} tokens: the "
                "tokenizer does not belong to the model; set tokenizer_config, or add tokens with `tokens` or "
                "special_tokens, which resizes the model"
            )
        if can_split:
            for start in range(0, len(ids), length):
                self._keep(row, ids[start : start + length], labels[start : start + length])
            return
        if len(ids) > length:
            self._num_long += 1
            self._first_long = self._first_long or f"{row.location} ({len(ids)} tokens)"
            if self._config.excess_length_strategy == "raise":
                raise RowError(
                    f"{len(ids)} tokens are more than sequence_len={length}: raise it, or set excess_length_strategy "
                    "to drop or truncate"
                )
            if self._config.excess_length_strategy == "drop":
                return
        self._keep(row, ids[:length], labels[:length])

    def _keep(self, row: Row, ids: list[int], labels: list[int]) -> None:
        limits = self._limits
        if len(ids) < self._config.min_sample_len:
            self._num_short += 1
            return
        if all(label == IGNORED_LABEL for label in labels[1:]):
            self._num_untrained += 1
            return
        if limits.max_positions is not None and len(ids) > limits.max_positions:
            raise RowError(
                f"{len(ids)} tokens are more than the model's {limits.max_positions} positions: set "
                f"`sequence_len: {limits.max_positions}`, or raise max_position_embeddings in overrides_of_model_config"
            )
        if self._config.dataset_exact_deduplication:
            digest = hashlib.blake2b(array("i", [*ids, *labels]).tobytes(), digest_size=16).digest()
            if digest in self._digests:
                self._num_repeated += 1
                return
            self._digests.add(digest)
        self._rows.add(ids, labels, self._extra(row, ids, labels))
        self._num_added += 1

    def _extra(self, row: Row, ids: list[int], labels: list[int]) -> dict[str, Any] | None:
        """Return the log-probabilities of a teacher, if the dataset has them.

        Raises:
            RowError: if they do not belong to these tokens.
        """
        field = self._dataset.logprobs_field
        if field is None:
            return None
        from tachograph.plugins.kd import row_targets

        logprobs = column_of(row.values, field, "logprobs_field")
        try:
            targets = row_targets(logprobs, ids, labels)
        except (ValueError, TypeError, KeyError) as error:
            raise RowError(f"column {field!r}: {error}") from None
        largest = max((token for tokens in targets["target_token_ids"] for token in tokens), default=0)
        vocab_size = self._limits.vocab_size
        if vocab_size is not None and largest >= vocab_size:
            raise RowError(
                f"column {field!r}: token {largest} is beyond the vocabulary of the model, which has {vocab_size} "
                "tokens: the teacher must have the same tokenizer"
            )
        return {"logprobs": logprobs, "logprobs_temperature": self._dataset.temperature or 1.0}

    def notes(self) -> list[str]:
        """Return how many rows were dropped or truncated, in words for the user."""
        notes = []
        if self._num_long and self._config.excess_length_strategy != "raise":
            verb = "dropped" if self._config.excess_length_strategy == "drop" else "truncated"
            notes.append(
                f"{self._key}: {verb} {self._num_long} of {self.num_read} rows, which are longer than "
                f"sequence_len={self._config.sequence_len}; the first is {self._first_long}"
            )
        if self._num_short:
            notes.append(
                f"{self._key}: dropped {self._num_short} rows of fewer than {self._config.min_sample_len} tokens"
            )
        if self._num_repeated:
            notes.append(f"{self._key}: dropped {self._num_repeated} rows that repeat an earlier row")
        if self._num_untrained:
            notes.append(f"{self._key}: dropped {self._num_untrained} rows, because none of their tokens is trained on")
        return notes

    def check(self, problems: Problems) -> None:
        """Add a problem if nothing is left."""
        if self._num_added or self._num_repeated:
            return
        if not self.num_read:
            if not problems:
                problems.add(f"{self._key}.path={self._dataset.path!r}: the dataset is empty")
            return
        if problems:
            return
        reasons = "; ".join(note.partition(": ")[2] for note in self.notes())
        remedy = "raise sequence_len or set `excess_length_strategy: truncate`" if self._num_long else "check the data"
        problems.add(f"{self._key}.path={self._dataset.path!r}: no row is left ({reasons}): {remedy}")
