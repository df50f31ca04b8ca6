"""Tokenised rows: kept as flat arrays, because lists of Python numbers need ten times the memory."""

from __future__ import annotations

import bisect
import random
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["IGNORED_LABEL", "PackedRows", "PaddingCollator", "TokenRows"]

IGNORED_LABEL = -100


class TokenRows:
    """Rows of tokens and labels. A dataset for a trainer: it has a length and yields dicts."""

    def __init__(self) -> None:
        self._ids = array("i")
        self._labels = array("i")
        self._starts = array("q", [0])
        self._extras: dict[int, dict[str, Any]] = {}
        self._selected_rows: Sequence[int] | None = None

    def add(self, ids: Sequence[int], labels: Sequence[int], extra: dict[str, Any] | None = None) -> None:
        """Add a row, with further columns if it has any."""
        if extra:
            self._extras[len(self._starts) - 1] = extra
        self._ids.extend(ids)
        self._labels.extend(labels)
        self._starts.append(len(self._ids))

    def __len__(self) -> int:
        return len(self._starts) - 1 if self._selected_rows is None else len(self._selected_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self._number(index)
        start, end = self._starts[number], self._starts[number + 1]
        return {
            "input_ids": self._ids[start:end].tolist(),
            "attention_mask": [1] * (end - start),
            "labels": self._labels[start:end].tolist(),
            **self._extras.get(number, {}),
        }

    def _number(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return index if self._selected_rows is None else self._selected_rows[index]

    def lengths(self) -> list[int]:
        """Return the number of tokens of each row."""
        numbers = range(len(self._starts) - 1) if self._selected_rows is None else self._selected_rows
        return [self._starts[number + 1] - self._starts[number] for number in numbers]

    def num_trained_tokens(self) -> int:
        """Return the number of tokens that are trained on."""
        if self._selected_rows is None:
            return len(self._labels) - self._labels.count(IGNORED_LABEL)
        return sum(
            end - start - self._labels[start:end].count(IGNORED_LABEL)
            for start, end in ((self._starts[number], self._starts[number + 1]) for number in self._selected_rows)
        )

    def select(self, indices: Iterable[int]) -> TokenRows:
        """Return some of the rows, without copying them."""
        selection = TokenRows()
        selection._ids, selection._labels, selection._starts = self._ids, self._labels, self._starts
        selection._extras = self._extras
        selection._selected_rows = array("q", [self._number(index) for index in indices])
        return selection

    def split(self, num_last: int, seed: int) -> tuple[TokenRows, TokenRows]:
        """Split off a number of random rows; return the remaining rows and the split ones, both in their order."""
        held_out = set(random.Random(seed).sample(range(len(self)), num_last))  # noqa: S311
        remaining = [index for index in range(len(self)) if index not in held_out]
        return self.select(remaining), self.select(sorted(held_out))


class PackedRows:
    """Several samples per row, up to a length.

    Positions start again with each sample, and there is no attention mask: that is how models of `transformers`
    recognise packed rows, and keep samples from attending to each other. The first label of each sample is ignored, so
    that no sample predicts the start of the next one.

    Samples are placed best-fit decreasing: the longest first, each into the row with the least room that is enough.
    """

    def __init__(self, rows: TokenRows, max_length: int) -> None:
        self._rows = rows
        self._bins: list[list[int]] = []
        lengths = rows.lengths()
        shortest = min(lengths, default=0)
        room: list[tuple[int, int]] = []  # free tokens and number of each row that has room for any sample
        for index in sorted(range(len(rows)), key=lambda index: (-lengths[index], index)):
            position = bisect.bisect_left(room, (lengths[index], -1))
            if position < len(room):
                free, number = room.pop(position)
                self._bins[number].append(index)
            else:
                free, number = max_length, len(self._bins)
                self._bins.append([index])
            if free - lengths[index] >= shortest:
                bisect.insort(room, (free - lengths[index], number))

    def __len__(self) -> int:
        return len(self._bins)

    def __getitem__(self, index: int) -> dict[str, Any]:
        packed_row: dict[str, list[int]] = {"input_ids": [], "labels": [], "position_ids": []}
        for number in self._bins[index]:
            row = self._rows[number]
            packed_row["input_ids"] += row["input_ids"]
            packed_row["labels"] += [IGNORED_LABEL, *row["labels"][1:]]
            packed_row["position_ids"] += range(len(row["input_ids"]))
        return packed_row

    def lengths(self) -> list[int]:
        """Return the number of tokens of each row."""
        lengths = self._rows.lengths()
        return [sum(lengths[number] for number in numbers) for numbers in self._bins]


class PaddingCollator:
    """Pads rows to the longest of a batch, or to a fixed length, and makes tensors of them.

    Args:
        tokenizer: gives the token that pads; a token without effect, because its label is ignored.
        length: the fixed length; None: the length of the longest row.
        multiple_of: round the length up to a multiple of this number.
    """

    def __init__(self, tokenizer: Any = None, length: int | None = None, multiple_of: int = 1) -> None:
        pad = getattr(tokenizer, "pad_token_id", None)
        self._pad = pad if pad is not None else getattr(tokenizer, "eos_token_id", None) or 0
        self._length = length
        self._multiple_of = multiple_of

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        import torch

        longest = self._length or max(len(row["input_ids"]) for row in rows)
        longest = -(-longest // self._multiple_of) * self._multiple_of
        filling = {"input_ids": self._pad, "labels": IGNORED_LABEL, "attention_mask": 0}
        batch: dict[str, Any] = {}
        for name in ("input_ids", "attention_mask", "labels", "position_ids"):
            if name not in rows[0]:
                continue
            padded_rows = []
            for row in rows:
                missing = longest - len(row[name])
                # Padding of a packed row is one more sample, so that no other one attends to it.
                tail = list(range(missing)) if name == "position_ids" else [filling[name]] * missing
                padded_rows.append([*row[name], *tail])
            batch[name] = torch.tensor(padded_rows, dtype=torch.long)
        return batch
