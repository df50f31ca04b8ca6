"""The work of masking is linear in the length of a text, whatever it contains, and bounded per record."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph._base.secret_formats import FORMATS
from tachograph.records import MASK, MaskingBudget, mask_arguments, mask_text
from tachograph.records._masking import _MAX_WORK

# Beginnings of secrets, and everything around which the search decides something. Repeated, each makes as many false
# starts as a text can hold.
PIECES = [
    *(prefix for one in FORMATS for prefix in one.prefixes),
    *(one.hint for one in FORMATS if one.hint),
    "-eyJ", "eyJ.", "eyJ" * 21 + ".", "eyJaaaaaaaaaa.", "https://a", "https://a:", "https://a:b@", "://", "://user:",
    "a=", "a:", "password=", "password='", 'password="', "password=\\", 'password="\\"', "password=)", "password=,",
    "password=a,b", "password=[", "password={", "password=[masked", "password: ", "token=<", "token=<a>", "token={",
    "auth=!", 'auth="a', "auth=", "api key: ", "?sig=", "&code=", "--token ", "--token=<", "--password '", "-u a:",
    "'--token', '", " -p", "Authorization: ", "Authorization: digest ", "cookie: ", "bearer ", "bearer a1",
    "bearer aaaaaaa1 ", "wandb login ", "wandb login a ", "docker login ", "docker login -", "mysql ", "mysql -",
    "redis-cli ", "sshpass -p", "machine a ", "machine a login b ", "password 'a", "password is ", "identified by ",
    "set a_key ", "<password>", "private-lines: 1\n", "private-lines: 1\na", "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "PRIVATE KEY", "----", "1234567890", "1234567890:AA",
    "0123456789abcdef", "abc8Q~", "aaaaaaaaaaaaaa.", "M" + "a" * 23 + ".", "aaaaaa.", "-us1",
    "https://hooks.slack.com/", "https://aaaaaaaa.feishu.cn/", "https://api.telegram.org/bot", "_", "-", ".", "=",
    ":", '"', "'", "`", "\\", '\\"', ",", ";", "&", "@", "/", "%", "\n", "\t", " ", "a", "A", "1", "é", "密", "a_",
    "a-", "a.", MASK,
]  # fmt: skip
# Four times the text: linear work takes four times as long, quadratic work sixteen times.
SHORT, LONG = 4_000, 16_000
MAX_GROWTH = 10


def cpu_s(text: str) -> float:
    """Return the CPU time of masking a text; of this thread, so that other processes hardly matter."""
    started_s = time.thread_time()
    mask_text(text)
    return time.thread_time() - started_s


def growth(piece: str) -> float:
    """Return how much more work four times the text is. Of several tries the best counts: noise only adds."""
    short, long = ((piece * (size // len(piece) + 1))[:size] for size in (SHORT, LONG))
    mask_text(short)  # compiles the patterns
    best = float("inf")
    short_s = long_s = float("inf")
    for _ in range(25):
        short_s = min(short_s, cpu_s(short))
        long_s = min(long_s, cpu_s(long))
        best = long_s / short_s
        if best < MAX_GROWTH:
            break
    return best


@pytest.mark.slow
def test_work_is_linear_in_repeats_of_each_piece():
    assert {piece: grown for piece in PIECES if (grown := growth(piece)) >= MAX_GROWTH} == {}


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=2, max_size=5).map("".join))
def test_work_is_linear_in_repeats_of_pieces(piece):
    assert growth(piece) < MAX_GROWTH


@settings(max_examples=50, deadline=None)
@given(st.text(st.sampled_from("ab1_-.=:\"'/@,;& \\\n"), min_size=1, max_size=40))
def test_work_is_linear_in_repeats_of_any_characters(piece):
    assert growth(piece) < MAX_GROWTH


@pytest.mark.parametrize("piece", ["sk-", "-eyJ", "https://a", "://", "password=", "a="])
def test_hostile_text_costs_little_more_than_prose(piece):
    """A text of false starts costs at most a few hundred times as much; it used to be ten thousand times."""
    prose = ("The quick brown fox jumps over the lazy dog. " * 2_000)[:64_000]
    hostile = (piece * 64_000)[:64_000]
    mask_text(hostile[:1_000])
    for _ in range(20):
        ratio = min(cpu_s(hostile) for _ in range(2)) / min(cpu_s(prose) for _ in range(3))
        if ratio < 1_000:
            break
    assert ratio < 1_000


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_secret_is_masked_whatever_surrounds_it(around):
    """No false start before or after a secret hides it."""
    secret = "hf_" + "Ab3" * 12
    for text in (f"{around} {secret} {around}", f"{around}\n{secret}\n"):
        assert secret not in mask_text(text)
    assert secret not in " ".join(mask_arguments([around, secret, around]))


def test_text_beyond_the_budget_is_cut():
    secret = "hf_" + "Ab3" * 12
    text = "a=1 " * (_MAX_WORK // 256) + secret
    masked = mask_text(text)
    assert masked.endswith(f"… [cut, {len(text)} characters]")
    assert secret not in masked
    assert len(text) // 2 < len(masked) < len(text)
    assert masked == mask_text(text)


def test_enormous_text_is_cut():
    text = "x" * (_MAX_WORK + 1_000)
    assert mask_text(text) == f"{'x' * _MAX_WORK}… [cut, {len(text)} characters]"


def test_cut_does_not_split_a_secret():
    """The last word before a cut is dropped: half of a secret may be too short to be recognised."""
    secret = "xai-" + "aB3" * 27
    for padding in (0, 40, 90):
        text = "x=y " * (_MAX_WORK // 260 - 20) + "z" * padding + f" {secret}" * 400
        assert "aB3" not in mask_text(text)


def test_texts_of_one_record_share_a_budget():
    text = "a=1 " * 5_000
    with MaskingBudget():
        masked = [mask_text(text) for _ in range(60)]
        with MaskingBudget():
            assert mask_text(text) != text  # an inner one does not start anew
    num_whole = masked.count(text)
    assert 10 < num_whole < 50
    assert masked[:num_whole] == [text] * num_whole
    assert all(one.endswith(f"… [cut, {len(text)} characters]") for one in masked[num_whole:])
    assert mask_text(text) == text
    with MaskingBudget():
        assert mask_text(text) == text


def test_nothing_is_left_unsearched_without_a_budget():
    with MaskingBudget():
        for _ in range(60):
            mask_text("a=1 " * 5_000)
        for text in ("hf_" + "Ab3" * 200, ("hf_" + "Ab3" * 12 + " ") * 100, "x" * 300 + " AKIA" + "A1" * 8):
            assert mask_text(text) == f"… [cut, {len(text)} characters]"


def test_short_texts_are_never_cut():
    with MaskingBudget():
        for _ in range(60):
            mask_text("a=1 " * 5_000)
        assert mask_text("learning_rate=1e-4") == "learning_rate=1e-4"
        assert mask_text("password=opaque1") == f"password={MASK}"


def test_ordinary_record_of_a_megabyte_is_not_cut():
    text = ('{"per_device_train_batch_size": 8, "lr_scheduler_type": "cosine", "seed": 42}, ' * 200)[:8_000]
    with MaskingBudget():
        assert all(mask_text(text) == text for _ in range(125))
