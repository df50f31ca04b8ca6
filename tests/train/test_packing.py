"""Packed rows and padding: samples do not affect each other, and no token is lost."""

from __future__ import annotations

import pytest
import torch

from tachograph.train._rows import PackedRows, PaddingCollator, TokenRows
from tests.train.conftest import make_model, make_tokenizer


def token_rows(*lengths):
    rows = TokenRows()
    generator = torch.Generator().manual_seed(1)
    for length in lengths:
        ids = torch.randint(8, 60, (length,), generator=generator).tolist()
        rows.add(ids, [-100, *ids[1:]])
    return rows


def test_every_sample_is_packed_once():
    lengths = [7, 3, 5, 2, 8, 1, 4, 6, 3, 3]
    packed = PackedRows(token_rows(*lengths), 8)
    assert sorted(number for numbers in packed._bins for number in numbers) == list(range(len(lengths)))
    assert max(packed.lengths()) <= 8
    assert len(packed) == 6  # 42 tokens need at least 6 rows of 8


def test_positions_restart_and_first_labels_are_ignored():
    rows = TokenRows()
    rows.add([11, 12, 13], [11, 12, 13])
    rows.add([21, 22], [21, 22])
    assert PackedRows(rows, 8)[0] == {
        "input_ids": [11, 12, 13, 21, 22],
        "labels": [-100, 12, 13, -100, 22],
        "position_ids": [0, 1, 2, 0, 1],
    }


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_samples_do_not_see_each_other(attention):
    """The logits of each sample are those that it has alone, and so is the loss of all of them."""
    rows = token_rows(9, 6, 4, 12)
    model = make_model(attn_implementation=attention).eval()
    packed = PackedRows(rows, 20)
    assert len(packed) == 2
    batch = PaddingCollator(make_tokenizer(), length=24)([packed[0], packed[1]])
    assert "attention_mask" not in batch
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
        total, count = 0.0, 0
        for number, members in enumerate(packed._bins):
            start = 0
            for member in members:
                row = rows[member]
                ids = torch.tensor([row["input_ids"]])
                alone = model(input_ids=ids, labels=torch.tensor([row["labels"]]), use_cache=False)
                length = ids.shape[1]
                torch.testing.assert_close(
                    logits[number, start : start + length], alone.logits[0], atol=1e-5, rtol=1e-4
                )
                start += length
                total += float(alone.loss) * (length - 1)
                count += length - 1
        together = model(**batch, use_cache=False).loss
    assert float(together) == pytest.approx(total / count, rel=1e-4)


def test_collator_pads_without_effect():
    rows = token_rows(5, 3)
    batch = PaddingCollator(make_tokenizer())([rows[0], rows[1]])
    assert batch["input_ids"].shape == (2, 5)
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert batch["labels"][1, 3:].tolist() == [-100, -100]
    assert PaddingCollator(make_tokenizer(), length=16)([rows[0]])["input_ids"].shape == (1, 16)


def test_split_keeps_every_row_once():
    rows = token_rows(*range(2, 12))
    train, held_out = rows.split(3, seed=5)
    assert sorted([*train.lengths(), *held_out.lengths()]) == list(range(2, 12))
    assert len(held_out) == 3
    assert rows.split(3, seed=5)[1].lengths() == held_out.lengths()
    with pytest.raises(IndexError):
        held_out[3]
