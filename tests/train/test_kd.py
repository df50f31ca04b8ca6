"""Knowledge distillation from a config: log-probabilities in the dataset, and a teacher in the process."""

from __future__ import annotations

import pytest
import torch

from tachograph.exceptions import TachographError
from tests.train.conftest import conversations, make_model, make_tokenizer, write_rows


def write_scored_rows(path, count=16):
    """Write conversations with the log-probabilities of the tokens of each answer, as vLLM returns them."""
    tokenizer, teacher = make_tokenizer(), make_model(8).eval()
    found = []
    for row in conversations(count):
        ids = tokenizer(
            tokenizer.apply_chat_template(row["messages"], tokenize=False), add_special_tokens=False
        ).input_ids
        with torch.no_grad():
            logprobs = torch.log_softmax(teacher(torch.tensor([ids])).logits[0], 1)
        answer = len(ids) - ids[::-1].index(tokenizer.convert_tokens_to_ids("<|assistant|>"))
        scored = [
            [{"token": f"token_id:{token}", "logprob": value} for token, value in enumerate(entry)]
            for entry in logprobs[answer - 1 : -1].tolist()
        ]
        found.append({**row, "scores": scored})
    write_rows(path, found)


def test_logprobs_field_trains_as_the_teacher_does(make_job):
    options = {"plugins": ["axolotl.integrations.kd.KDPlugin"], "kd_ce_alpha": 0.1, "kd_alpha": 0.9, "max_steps": 3}
    write_scored_rows("scored.jsonl")
    dataset = {
        "path": "./scored.jsonl",
        "type": "axolotl.integrations.kd.chat_template",
        "field_messages": "messages",
        "logprobs_field": "scores",
    }
    offline = make_job(**options, kd_trainer=True, datasets=[dataset]).run()
    dense = make_job(**options, kd_teacher="./teacher").run()
    assert offline.metrics["train_loss"] == pytest.approx(dense.metrics["train_loss"], rel=1e-4)


def test_dataset_without_logprobs_is_an_error(make_job):
    with pytest.raises(TachographError, match="no log-probabilities of a teacher.*set `logprobs_field`"):
        make_job(plugins=["kd"]).run()


def test_teacher_keeps_packed_samples_apart(make_job):
    """The loss of all samples in one packed row equals the loss of the samples in rows of their own."""
    options = {"plugins": ["kd"], "kd_teacher": "./teacher", "max_steps": 1, "sequence_len": 256}
    alone = make_job(**options, micro_batch_size=16).run()
    packed = make_job(**options, micro_batch_size=1, sample_packing=True)
    assert len(packed.check().data.train) == 1
    assert packed.run().metrics["train_loss"] == pytest.approx(alone.metrics["train_loss"], rel=1e-5)
