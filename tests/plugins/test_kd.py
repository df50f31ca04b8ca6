"""Knowledge distillation: the loss against PyTorch's, its gradient, targets of datasets, and kinds of teachers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import torch.nn.functional as F
import transformers

from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import PluginSession, apply
from tachograph.plugins.kd import TARGET_COLUMNS, DenseTeacher, TargetCollator, TopKTargets, kd_loss, row_targets
from tachograph.plugins.kd._server import TeacherServer, TeacherServerError
from tests.plugins.conftest import (
    VOCABULARY,
    assert_gradients_match_differences,
    llama,
    logged,
    rows,
    weights,
)

TOKENS, SIZE = 21, 8


def student(dtype=torch.float64, tokens=TOKENS, vocabulary=30):
    torch.manual_seed(1)
    hidden = torch.randn(tokens, SIZE, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, SIZE, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, vocabulary, (tokens,))
    labels[::4] = -100
    return hidden, weight, labels


def teacher_logits(dtype=torch.float64, tokens=TOKENS, vocabulary=30):
    torch.manual_seed(2)
    return 2 * torch.randn(tokens, vocabulary, dtype=dtype)


def topk(logits, k):
    logprobs, ids = torch.log_softmax(logits, 1).topk(k, dim=1)
    return TopKTargets(ids, logprobs, torch.ones_like(ids))


def as_dense(logits):
    """Return a teacher whose logits are given."""
    return DenseTeacher(logits, torch.eye(logits.shape[1], dtype=logits.dtype))


# The loss -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("kind", ["all tokens", "second model"])
def test_full_vocabulary_equals_kl_div(kind, temperature):
    hidden, weight, labels = student()
    logits = teacher_logits()
    teacher = topk(logits, logits.shape[1]) if kind == "all tokens" else as_dense(logits)
    found = kd_loss(hidden, weight, labels, teacher, temperature=temperature, chunk_size=5)
    chosen = labels != -100
    expected = temperature**2 * F.kl_div(
        torch.log_softmax((hidden @ weight.T)[chosen] / temperature, 1),
        torch.softmax(logits[chosen] / temperature, 1),
        reduction="sum",
    )
    torch.testing.assert_close(found.total, expected)
    gradients = torch.autograd.grad(expected, (hidden, weight))
    torch.testing.assert_close(torch.autograd.grad(found.total, (hidden, weight)), gradients)
    assert found.num_labels == int(found.num_targets) == int(chosen.sum())
    assert float(found.topk_mass) == pytest.approx(found.num_labels)
    agreements = ((hidden @ weight.T).argmax(1) == logits.argmax(1))[chosen].sum()
    assert int(found.agreements) == int(agreements)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("normalize_topk", [False, True])
@pytest.mark.parametrize("kind", ["top k", "second model"])
def test_gradient_agrees_with_value_at_temperature_2(kind, normalize_topk, beta):
    hidden, weight, labels = student(tokens=5, vocabulary=9)
    logits = teacher_logits(tokens=5, vocabulary=9)
    teacher = topk(logits, 4) if kind == "top k" else as_dense(logits)
    bias = torch.randn(9, dtype=torch.float64, requires_grad=True)

    def loss():
        return kd_loss(
            hidden, weight, labels, teacher, alpha=0.7, ce_alpha=0.4, temperature=2.0, beta=beta,
            normalize_topk=normalize_topk, bias=bias, scale=0.8, softcap=3.0, chunk_size=2,
        ).total  # fmt: skip

    assert_gradients_match_differences(loss, (hidden, weight, bias))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_teacher_that_equals_student_gives_zero(beta):
    hidden, weight, labels = student(torch.float32)
    own = topk((hidden @ weight.T).detach(), 6)
    found = kd_loss(hidden, weight, labels, own, temperature=2.0, beta=beta, normalize_topk=True)
    assert float(found.divergence) == pytest.approx(0.0, abs=1e-5)
    found = kd_loss(hidden, weight, labels, DenseTeacher(hidden.detach(), weight.detach()), temperature=2.0, beta=beta)
    assert abs(float(found.total.detach())) < (1e-12 if beta != 0.5 else 1e-5)


def test_jensen_shannon_lies_between_and_is_symmetric():
    hidden, weight, labels = student()
    logits = teacher_logits()
    half = kd_loss(hidden, weight, labels, as_dense(logits), beta=0.5).divergence
    swapped = kd_loss(logits, torch.eye(30, dtype=torch.float64), labels, as_dense(hidden @ weight.T), beta=0.5)
    torch.testing.assert_close(half, swapped.divergence)
    assert 0 < float(half) < int((labels != -100).sum()) * 0.7  # at most log 2 per token


def test_total_combines_divergence_and_cross_entropy():
    hidden, weight, labels = student()
    logits = teacher_logits()
    found = kd_loss(hidden, weight, labels, topk(logits, 5), alpha=0.9, ce_alpha=0.1, temperature=3.0)
    torch.testing.assert_close(found.total, 0.9 * 9 * found.divergence + 0.1 * found.cross_entropy)
    torch.testing.assert_close(found.cross_entropy, F.cross_entropy(hidden @ weight.T, labels, reduction="sum"))
    mass = torch.softmax(logits, 1).topk(5).values.sum(1)[labels != -100].sum()
    torch.testing.assert_close(found.topk_mass, mass)


def test_chunk_size_does_not_change_the_result():
    logits = teacher_logits()
    results = []
    for chunk_size in (1, 4, 100, None):
        hidden, weight, labels = student()
        total = kd_loss(hidden, weight, labels, topk(logits, 5), ce_alpha=0.5, chunk_size=chunk_size).total
        total.backward()
        results.append((total.detach(), hidden.grad, weight.grad))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_half_precision_is_close():
    hidden, weight, labels = student(torch.bfloat16)
    logits = teacher_logits(torch.float32)
    total = kd_loss(hidden, weight, labels, topk(logits, 5), ce_alpha=0.5, temperature=2.0).total
    total.backward()
    wide = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight)]
    expected = kd_loss(*wide, labels, topk(logits, 5), ce_alpha=0.5, temperature=2.0).total
    expected.backward()
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-2)
    for leaf, exact in zip((hidden, weight), wide, strict=True):
        assert (leaf.grad - exact.grad).abs().max() / exact.grad.abs().max() < 2e-2


def test_masked_tokens_contribute_nothing():
    hidden, weight, labels = student()
    logits = teacher_logits()
    first = kd_loss(hidden, weight, labels, as_dense(logits), ce_alpha=0.5)
    first.total.backward()
    assert not hidden.grad[labels == -100].any()
    changed = logits.clone()
    changed[labels == -100] += torch.randn(30, dtype=torch.float64)
    assert torch.equal(kd_loss(hidden, weight, labels, as_dense(changed), ce_alpha=0.5).total, first.total)
    targets = topk(logits, 4)
    masked = targets._replace(mask=torch.zeros_like(targets.mask))
    found = kd_loss(hidden, weight, labels, masked)
    assert (float(found.total.detach()), int(found.num_targets)) == (0.0, 0)
    found = kd_loss(hidden, weight, torch.full_like(labels, -100), targets, ce_alpha=1.0)
    found.total.backward()
    assert (float(found.total.detach()), found.num_labels) == (0.0, 0)


# Targets of datasets --------------------------------------------------------------------------------------------------

ANSWER = [[(5, -0.1), (8, -3.0)], [(6, -0.2)], [(7, -0.3), (9, -2.0)]]


@pytest.mark.parametrize(
    "logprobs",
    [
        [[{"token": f"token_id:{t}", "logprob": p} for t, p in entry] for entry in ANSWER],
        [[{"token_id": t, "logprob": p} for t, p in entry] for entry in ANSWER],
        [[[t, p] for t, p in entry] for entry in ANSWER],
        [{str(t): {"logprob": p, "rank": 1} for t, p in entry} for entry in ANSWER],
        [{"token_ids": [t for t, _ in entry], "logprobs": [p for _, p in entry]} for entry in ANSWER],
        {"content": [{"top_logprobs": [{"token": t, "logprob": p} for t, p in entry]} for entry in ANSWER]},
        [None, None, *[[[t, p] for t, p in entry] for entry in ANSWER]],
    ],
    ids=["vllm", "ids", "pairs", "prompt_logprobs", "columns", "openai", "every token"],
)
def test_row_targets_move_to_the_preceding_position(logprobs):
    found = row_targets(logprobs, [3, 4, 5, 6, 7], [-100, -100, 5, 6, 7], temperature=2.0)
    pad = -1e9
    assert found == {
        "target_token_ids": [[0, 0], [5, 8], [6, 0], [7, 9], [0, 0]],
        "target_logprobs": [[pad, pad], [-0.2, -6.0], [-0.4, pad], [-0.6, -4.0], [pad, pad]],
        "target_mask": [[0, 0], [1, 1], [1, 0], [1, 1], [0, 0]],
    }


def test_row_targets_allow_template_and_truncation():
    pairs = [[[t, p] for t, p in entry] for entry in ANSWER]
    longer = row_targets(pairs, [3, 5, 6, 7, 2, 20], [-100, 5, 6, 7, 2, 20])
    assert [sum(mask) for mask in longer["target_mask"]] == [2, 1, 2, 0, 0, 0]
    shorter = row_targets(pairs, [3, 5, 6], [-100, 5, 6])
    assert [sum(mask) for mask in shorter["target_mask"]] == [2, 1, 0]


OTHER_TEXT = [[[1, -0.1]] for _ in range(16)]
SHIFTED = [[[token, -0.1]] for token in range(4, 20)]


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (OTHER_TEXT, "0 of 16 tokens are among their candidates"),
        (SHIFTED, "0 of 16 tokens are among their candidates, and 15 if they are shifted by one"),
        ([], "0 log-probabilities do not belong to the 17 tokens"),
        ([[{"token": "Hello", "logprob": -0.1}]], "return_tokens_as_token_ids"),
        ("text", "expected a list with an entry per token"),
        ([3], "expected a list or a mapping"),
        ([[3]], "expected {'token'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_logprobs_are_rejected(logprobs, message):
    with pytest.raises(ValueError, match=message):
        row_targets(logprobs, [30, *range(3, 19)], [-100, *range(3, 19)])


def pad_left(features):
    width = max(len(feature["input_ids"]) for feature in features)
    gaps = [[0] * (width - len(feature["input_ids"])) for feature in features]
    return {
        "input_ids": torch.tensor([gap + feature["input_ids"] for gap, feature in zip(gaps, features, strict=True)]),
        "attention_mask": torch.tensor(
            [gap + [1] * len(feature["input_ids"]) for gap, feature in zip(gaps, features, strict=True)]
        ),
    }


def concatenate(features):
    return {"input_ids": torch.tensor([[token for feature in features for token in feature["input_ids"]]])}


def test_collator_pads_targets_as_the_tokens():
    features = [
        {"input_ids": [5, 6], "target_token_ids": [[6], [0]], "target_logprobs": [[-0.5], [-1e9]]},
        {"input_ids": [7, 8, 9], "target_token_ids": [[8, 1], [9, 2], [0, 0]],
         "target_logprobs": [[-0.1, -2.0], [-0.2, -3.0], [-1e9, -1e9]], "target_mask": [[1, 1], [1, 1], [0, 0]]},
        {"input_ids": [4]},
    ]  # fmt: skip
    batch = TargetCollator(pad_left, VOCABULARY)(features)
    assert batch["target_token_ids"].tolist() == [[[0, 0], [6, 0], [0, 0]], [[8, 1], [9, 2], [0, 0]], [[0, 0]] * 3]
    assert batch["target_mask"].long().sum(2).tolist() == [[0, 1, 0], [2, 2, 0], [0, 0, 0]]
    assert batch["target_logprobs"][1, 1].tolist() == pytest.approx([-0.2, -3.0])
    assert batch["target_logprobs"][0, 0].tolist() == [-1e9, -1e9]
    joined = TargetCollator(concatenate, VOCABULARY)(features)
    assert joined["target_mask"].long().sum(2).tolist() == [[1, 0, 2, 2, 0, 0]]
    assert set(TargetCollator(pad_left, VOCABULARY)([{"input_ids": [1]}])) == {"input_ids", "attention_mask"}
    with pytest.raises(ValueError, match="token 9 is outside the vocabulary of the student"):
        TargetCollator(pad_left, 9)(features)


# Teachers in trainers -------------------------------------------------------------------------------------------------


def other_llama():
    model = llama()
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


@pytest.fixture(scope="module")
def teacher_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher")
    other_llama().save_pretrained(path / "other")
    llama().save_pretrained(path / "same")
    llama(vocab_size=48).save_pretrained(path / "small")
    return path


def candidates_of(model, tokens, k=VOCABULARY):
    """Return the most likely tokens at each position, as a server returns them: with the token that they predict."""
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.as_tensor(tokens)[None]).logits[0].float(), 1)
    best = logprobs.topk(k, dim=1)
    entries = [
        list(zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return [None, *entries[:-1]]


def scored_rows(model, k=VOCABULARY):
    return [
        {
            **row,
            **row_targets(candidates_of(model, row["input_ids"], k), row["input_ids"].tolist(), row["labels"].tolist()),
        }
        for row in rows()
    ]


def expected_loss(model, teacher, row_list, temperature, alpha, ce_alpha):
    """Return the mean loss of rows as the formula has it."""
    total, count = 0.0, 0
    for row in row_list:
        with torch.no_grad():
            ours, theirs = (net(row["input_ids"][None]).logits[0, :-1] for net in (model, teacher))
        chosen = row["labels"][1:] != -100
        divergence = F.kl_div(
            torch.log_softmax(ours[chosen] / temperature, 1), torch.softmax(theirs[chosen] / temperature, 1),
            reduction="sum",
        )  # fmt: skip
        entropy = F.cross_entropy(ours[chosen], row["labels"][1:][chosen], reduction="sum")
        total += float(alpha * temperature**2 * divergence + ce_alpha * entropy)
        count += int(chosen.sum())
    return total / count


def distil(make_trainer, options, *, sgd=True, **arguments):
    if sgd:
        arguments = {"optim": "sgd", "learning_rate": 0.1, **arguments}
    trainer = make_trainer(**arguments)
    apply(trainer, ["kd"], options)
    trainer.train()
    return trainer


@pytest.mark.parametrize("accumulation", [1, 2])
def test_equal_teacher_in_process_gives_zero(make_trainer, teacher_path, accumulation):
    before = weights(llama())
    trainer = distil(
        make_trainer, {"kd_teacher": str(teacher_path / "same"), "kd_temperature": 2.0},
        gradient_accumulation_steps=accumulation,
    )  # fmt: skip
    assert logged(trainer, "loss")[0] == 0.0
    assert logged(trainer, "loss") == pytest.approx([0.0] * 4, abs=1e-6)  # a rounding error changes the weights
    assert logged(trainer, "plugin/kd/agree_at_1") == [1.0] * 4
    for name, value in weights(trainer.model).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-7)


def test_teacher_in_process_gives_the_formula(make_trainer, teacher_path):
    data = rows(count=2)
    options = {"kd_teacher": str(teacher_path / "other"), "kd_temperature": 2.0, "kd_alpha": 0.9, "kd_ce_alpha": 0.1}
    trainer = make_trainer(data=data, max_steps=20, learning_rate=3e-2)
    expected = expected_loss(trainer.model, other_llama(), data, 2.0, 0.9, 0.1)
    applied = apply(trainer, ["kd"], options)
    assert trainer.evaluate(data)["eval_loss"] == pytest.approx(expected, rel=1e-4)
    trainer.train()
    losses = logged(trainer, "loss")
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0] / 2
    for metric in ("active", "kl", "ce", "total", "temperature", "target_share", "agree_at_1", "teacher_ms"):
        assert len(logged(trainer, f"plugin/kd/{metric}")) == 20
    plugin = applied.session.plugins[0]
    assert plugin.report.changes["teachers loaded"]["names"] == [str(teacher_path / "other")]
    assert not any(parameter.requires_grad for parameter in plugin._teacher.parameters())
    assert logged(trainer, "plugin/kd/total")[0] == pytest.approx(expected, rel=1e-4)


def test_accumulated_batches_equal_one_batch(make_trainer, teacher_path):
    data = rows(count=4)
    data[0]["labels"][:8] = -100
    options = {"kd_teacher": str(teacher_path / "other"), "kd_ce_alpha": 0.5}
    whole = distil(make_trainer, options, data=data, max_steps=2, per_device_train_batch_size=4)
    parts = distil(
        make_trainer, options, data=data, max_steps=2, per_device_train_batch_size=1, gradient_accumulation_steps=4
    )
    assert logged(parts, "loss") == pytest.approx(logged(whole, "loss"), rel=1e-4)
    for name, value in weights(whole.model).items():
        torch.testing.assert_close(weights(parts.model)[name], value, rtol=1e-4, atol=1e-6)


def test_dataset_targets_train_as_the_teacher_does(make_trainer, teacher_path):
    options = {"kd_temperature": 2.0, "kd_ce_alpha": 0.2}
    dense = distil(make_trainer, {**options, "kd_teacher": str(teacher_path / "other")})
    offline = distil(make_trainer, options, data=scored_rows(other_llama()))
    assert logged(offline, "loss") == pytest.approx(logged(dense, "loss"), rel=1e-4)
    for name, value in weights(dense.model).items():
        torch.testing.assert_close(weights(offline.model)[name], value, rtol=1e-3, atol=1e-5)
    assert logged(offline, "plugin/kd/teacher_topk_mass") == pytest.approx([1.0] * 4, rel=1e-4)
    assert logged(offline, "plugin/kd/target_share") == [1.0] * 4
    few = distil(make_trainer, options, data=scored_rows(other_llama(), k=40))
    assert 0.5 < logged(few, "plugin/kd/teacher_topk_mass")[0] < 1.0


def test_dataset_logprobs_train_as_targets_do(make_trainer):
    """The runner adds a column of log-probabilities as they are; the collator makes targets of it."""
    teacher = other_llama()
    raw = [
        {**row, "logprobs": [e and [[t, p / 2] for t, p in e] for e in candidates_of(teacher, row["input_ids"])],
         "logprobs_temperature": 2.0}
        for row in rows()
    ]  # fmt: skip
    targets = distil(make_trainer, {}, data=scored_rows(teacher))
    direct = distil(make_trainer, {}, data=raw)
    assert logged(direct, "loss") == pytest.approx(logged(targets, "loss"), rel=1e-4)


def test_wrong_rows_are_found_before_training(make_trainer):
    data = scored_rows(other_llama())
    data[3]["target_token_ids"][2][0] = VOCABULARY
    with pytest.raises(PluginError, match="row 3 of the dataset: .*token 64 is outside the vocabulary of the student"):
        apply(make_trainer(data=data), ["kd"])
    data = [{**row, "logprobs": "none"} for row in rows()]
    with pytest.raises(PluginError, match="row 0 of the dataset: log-probabilities: expected a list"):
        apply(make_trainer(data=data), ["kd"])
    data = [dict(row) for row in scored_rows(other_llama()) * 12]
    data[90]["target_token_ids"] = data[90]["target_token_ids"][:3]
    with pytest.raises(PluginError, match="row 90 of the dataset"):
        apply(make_trainer(data=data), ["kd"])


def test_packed_rows_with_logprobs_are_an_error(make_trainer):
    data = [{**row, "position_ids": torch.arange(12)} for row in scored_rows(other_llama())]
    with pytest.raises(PluginError, match="packing mixes the rows"):
        apply(make_trainer(data=data), ["kd"])


def test_targets_shifted_by_one_raise_the_loss(make_trainer):
    """The student is its own teacher, so the loss is 0 exactly where the targets belong."""
    aligned = scored_rows(other_llama())
    shifted = [
        {**row, **{key: [row[key][0], *row[key][:-1]] for key in TARGET_COLUMNS}} for row in scored_rows(other_llama())
    ]
    losses = []
    for data in (aligned, shifted):
        trainer = distil(make_trainer, {"kd_normalize_topk": True}, model=other_llama(), data=data, max_steps=1)
        losses.append(logged(trainer, "loss")[0])
    assert losses[0] == pytest.approx(0.0, abs=1e-5)
    assert losses[1] > 0.1


def test_evaluation_without_targets_is_cross_entropy(make_trainer):
    trainer = make_trainer(data=scored_rows(other_llama()))
    usual = trainer.evaluate(rows())["eval_loss"]
    applied = apply(trainer, ["kd"])
    assert trainer.evaluate(rows())["eval_loss"] == pytest.approx(usual, rel=1e-5)
    assert trainer.predict(scored_rows(other_llama())).predictions.shape == (8, 12, VOCABULARY)
    columns = trainer._signature_columns
    applied.undo()
    assert set(columns) - set(trainer._signature_columns or []) >= set(TARGET_COLUMNS)
    assert not isinstance(trainer.data_collator, TargetCollator)
    assert trainer.evaluate(rows())["eval_loss"] == pytest.approx(usual, rel=1e-5)


def test_temperature_falls_along_a_cosine(make_trainer, teacher_path):
    options = {"kd_teacher": str(teacher_path / "other"), "kd_temperature": 3.0, "kd_temperature_min": 1.0}
    trainer = distil(make_trainer, options)
    assert logged(trainer, "plugin/kd/temperature") == pytest.approx([3.0, 2 + 0.5**0.5, 2.0, 2 - 0.5**0.5])


# A server -------------------------------------------------------------------------------------------------------------


class Teacher(BaseHTTPRequestHandler):
    """Answers as vLLM and SGLang do."""

    def do_GET(self):
        self.answer({"data": [{"id": "teacher"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.requests.append((self.path, body))
        if server.num_failures:
            server.num_failures -= 1
            self.answer({"error": "busy"}, 503)
        elif self.path == "/v1/completions":
            scored = [candidates_of(server.model, prompt, body["prompt_logprobs"]) for prompt in body["prompt"]]
            choices = [
                {"index": index, "prompt_logprobs": [
                    entry and {str(t): {"logprob": p, "rank": 1, "decoded_token": "x"} for t, p in entry}
                    for entry in row
                ]}
                for index, row in enumerate(scored)
            ]  # fmt: skip
            self.answer({"choices": choices[::-1]})
        elif self.path == "/generate":
            scored = [candidates_of(server.model, ids, body["top_logprobs_num"]) for ids in body["input_ids"]]
            self.answer(
                [
                    {"meta_info": {"input_top_logprobs": [entry and [[p, t, None] for t, p in entry] for entry in row]}}
                    for row in scored
                ]
            )
        else:
            self.answer({"error": "unknown"}, 404)

    def answer(self, content, status=200):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Teacher)
    found.model, found.requests, found.num_failures = other_llama(), [], 0
    found.url = f"http://127.0.0.1:{found.server_port}"
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def padded_rows():
    """Return rows of different lengths, padded on the left and on the right."""
    found = rows()
    for index, row in enumerate(found):
        padding = slice(0, 2) if index % 2 else slice(9, 12)
        row["attention_mask"][padding] = 0
        row["input_ids"][padding] = 0
        row["labels"][padding] = -100
    return found


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_online_teacher_trains_as_in_process(make_trainer, teacher_path, server, kind):
    data = padded_rows()
    options = {"kd_temperature": 2.0, "kd_ce_alpha": 0.2}
    # Left padding shifts positions in this process but not on the server, so compare right-padded rows only.
    data = data[::2]
    dense = distil(make_trainer, {**options, "kd_teacher": str(teacher_path / "other")}, data=data, max_steps=2)
    online = distil(
        make_trainer,
        {**options, "kd_online_server_base_url": f"{server.url}/v1", "kd_online_server": kind,
         "kd_online_topk": VOCABULARY},
        data=data, max_steps=2,
    )  # fmt: skip
    assert logged(online, "loss") == pytest.approx(logged(dense, "loss"), rel=1e-4)
    for name, value in weights(dense.model).items():
        torch.testing.assert_close(weights(online.model)[name], value, rtol=1e-3, atol=1e-5)
    path, body = server.requests[0]
    prompts = body["prompt"] if kind == "vllm" else body["input_ids"]
    assert path == ("/v1/completions" if kind == "vllm" else "/generate")
    assert [len(prompt) for prompt in prompts] == [9, 9]


def test_online_targets_follow_left_padding(make_trainer, server):
    """The student is its own teacher: targets at the wrong position would give a loss."""
    data = padded_rows()[1::2]
    for row in data:  # positions start at the first token, as on the server
        row["position_ids"] = (row["attention_mask"].cumsum(0) - 1).clamp(min=0)
    options = {"kd_online_server_base_url": server.url, "kd_online_topk": VOCABULARY}
    trainer = distil(make_trainer, options, model=other_llama(), data=data, max_steps=1)
    assert logged(trainer, "loss") == pytest.approx([0.0], abs=1e-4)
    assert logged(trainer, "plugin/kd/target_share") == [1.0]


def test_server_with_other_vocabulary_is_an_error(make_trainer, server):
    trainer = make_trainer(model=llama(vocab_size=60), data=[
        {**row, "input_ids": row["input_ids"].clamp(max=59), "labels": row["labels"].clamp(max=59)} for row in rows()
    ])  # fmt: skip
    apply(trainer, ["kd"], {"kd_online_server_base_url": server.url, "kd_online_topk": VOCABULARY})
    with pytest.raises(PluginError, match="token 63 is outside the vocabulary of the student"):
        trainer.train()


def test_busy_server_is_asked_again(server):
    client = TeacherServer(server.url, topk=3, retry_s=0.001)
    server.num_failures = 2
    assert [len(entry) for entry in client.score([[5, 6, 7]])[0]] == [0, 3, 3]
    assert len(server.requests) == 3
    server.num_failures = 100
    with pytest.raises(TeacherServerError, match="/v1/completions failed: status 503"):
        client.score([[5, 6, 7]])
    assert len(server.requests) == 7


def test_server_without_logprobs_is_an_error(server):
    client = TeacherServer(server.url, topk=3, retry_s=0.001)
    server.model = None  # the request fails before it is answered
    server.RequestHandlerClass = type("Chat", (Teacher,), {"do_POST": lambda self: self.answer({"choices": [{}]})})
    with pytest.raises(TeacherServerError, match="returned no prompt_logprobs: is it a vLLM server"):
        client.score([[5, 6]])


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kd_alpha": 0}, "kd_alpha=0 ignores the teacher"),
        ({"kd_alpha": -1}, "kd_alpha=-1"),
        ({"kd_temperature": 0}, "kd_temperature=0"),
        ({"kd_beta": 1.5}, "kd_beta=1.5"),
        ({"kd_temperature": 1, "kd_temperature_min": 2}, "kd_temperature_min=2 must not be above"),
        ({"kd_teacher": "a", "kd_online_server_base_url": "http://b"}, "two teachers"),
        ({"kd_online_server_base_url": "localhost:8000"}, "must start with http://"),
        ({"kd_online_topk": 5}, "kd_online_topk=5 has no effect"),
        ({"kd_teacher": "a", "kd_normalize_topk": True}, "has no effect with kd_teacher"),
        ({"kd_tmperature": 2}, "kd_tmperature.*kd_temperature"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_options_are_rejected(make_trainer, options, message):
    with pytest.raises(ConfigError, match=message):
        apply(make_trainer(), ["kd"], options)


def plan_of(options, model=None):
    session = PluginSession.open(["kd"], options)
    return session.plugins[0].plan(session.cfg, model)


def test_plan_names_the_teacher(teacher_path):
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(llama().config)
    assert "runs the teacher" in plan_of({"kd_teacher": str(teacher_path / "other")}, model)[0]
    assert "asks http://b for the 20 most likely tokens" in plan_of({"kd_online_server_base_url": "http://b"})[0]
    assert "log-probabilities in the dataset" in plan_of({})[0]
    with pytest.raises(PluginError, match="the teacher has 48 tokens and the student 64"):
        plan_of({"kd_teacher": str(teacher_path / "small")}, model)


def test_missing_teachers_are_errors(make_trainer, teacher_path, tmp_path):
    with pytest.raises(
        PluginError, match="no log-probabilities of a teacher, only attention_mask.*set `logprobs_field`"
    ):
        apply(make_trainer(), ["kd"])
    with pytest.raises(PluginError, match="cannot load kd_teacher"):
        apply(make_trainer(), ["kd"], {"kd_teacher": str(tmp_path / "nothing")})
    with pytest.raises(PluginError, match="the teacher has 48 tokens and the student 64"):
        apply(make_trainer(), ["kd"], {"kd_teacher": str(teacher_path / "small")})
    with pytest.raises(PluginError, match="cut_cross_entropy and kd cannot be combined: both replace the loss"):
        apply(make_trainer(), ["cut_cross_entropy", "kd"])


def test_unreachable_server_is_an_error(make_trainer, server, monkeypatch):
    monkeypatch.setattr("tachograph.plugins.kd._server.time.sleep", lambda seconds: None)
    server.shutdown()
    server.server_close()
    with pytest.raises(PluginError, match="/v1/models failed.*Start the server first"):
        apply(make_trainer(), ["kd"], {"kd_online_server_base_url": server.url})


def test_adapter_is_distilled(make_trainer, teacher_path):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    trainer = distil(
        make_trainer, {"kd_teacher": str(teacher_path / "other")}, model=model, label_names=["labels"], sgd=False,
        learning_rate=5e-2, max_steps=12, data=rows(count=2),
    )  # fmt: skip
    losses = logged(trainer, "loss")
    assert losses[-1] < 0.95 * losses[0]


def test_capped_student_learns_from_other_architecture(make_trainer, teacher_path):
    config = transformers.Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, pad_token_id=0, final_logit_softcapping=5.0, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config)
    data = rows(count=2)
    expected = expected_loss(model.eval(), other_llama(), data, 1.0, 1.0, 0.0)
    trainer = distil(make_trainer, {"kd_teacher": str(teacher_path / "other")}, model=model, data=data, max_steps=1)
    assert logged(trainer, "loss") == pytest.approx([expected], rel=1e-4)
