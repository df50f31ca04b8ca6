"""Secrets are masked before they are written, and nothing else is."""

from __future__ import annotations

import pytest

from tachograph.exceptions import RunNameError
from tachograph.records import MASK, check_run_name, mask_arguments, mask_mapping, mask_text


@pytest.mark.parametrize(
    "name",
    [
        "api_key", "apiKey", "OPENAI_API_KEY", "hf_token", "hub-token", "token", "wandb_api_key", "password",
        "db_passwd", "client_secret", "aws_secret_access_key", "privateKey", "credentials", "slack_webhook",
        "Authorization", "api_keys", "hf_tokens", "passwords", "dbpassword", "smtp_pass", "ssh_key", "signing_key",
        "openai_key", "wandb_key", "HFTOKEN",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name(name):
    assert mask_mapping({name: "opaque"}) == {name: MASK}
    assert mask_mapping({"deep": {"er": [{name: "opaque"}]}}) == {"deep": {"er": [{name: MASK}]}}
    assert mask_mapping({"deep": {name: "opaque"}}) == {"deep": {name: MASK}}
    assert mask_arguments([f"--{name}", "-opaque", f"--{name}=opaque"]) == [f"--{name}", MASK, f"--{name}={MASK}"]


@pytest.mark.parametrize(
    "name",
    ["pad_token", "eos_token", "bos_token", "max_tokens", "tokenizer", "num_tokens", "tokens_per_second", "tokens",
     "key", "monkey", "keyboard", "num_key_value_heads", "author", "secretary_model"],
)  # fmt: skip
def test_vocabulary_is_not_a_secret(name):
    assert mask_mapping({name: "<pad>"}) == {name: "<pad>"}


def test_flags_and_empty_values_stay():
    assert mask_mapping({"use_auth_token": True, "password": None, "token": ""}) == {
        "use_auth_token": True,
        "password": None,
        "token": "",
    }


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "a" * 30,
        "sk-" + "b" * 40,
        "ghp_" + "c" * 36,
        "AKIA" + "D" * 16,
        "xoxb-1234567890-abc",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
        "https://hooks.slack.com/services/T0/B0/xyz",
        "gsk_" + "d" * 40,
        "sk_live_" + "e" * 20,
    ],
)
def test_a_secret_is_known_by_its_look(secret):
    assert secret not in mask_text(f"before {secret} after")
    assert mask_text(f"before {secret} after").endswith(" after")


def test_a_password_in_an_address():
    assert mask_text("https://user:hunter2@host/repo.git") == f"https://{MASK}@host/repo.git"
    assert mask_text("redis://:hunter2@host/0") == f"redis://{MASK}@host/0"
    assert mask_text(f"https://{'t' * 40}@host/repo.git") == f"https://{MASK}@host/repo.git"
    assert mask_text("git@github.com:me/repo.git") == "git@github.com:me/repo.git"


@pytest.mark.parametrize(
    "text",
    ["GET /x?api_key=opaque1&y=1", "https://host/a?se=1&sig=opaque1%3D", "HF_TOKEN=opaque1 python x.py",
     "login failed: password=opaque1", "Authorization: Basic b3BhcXVlMTpvcGFxdWUx", "X-Amz-Signature=opaque1"],
)  # fmt: skip
def test_a_secret_in_a_text(text):
    assert "opaque1" not in mask_text(text)
    assert "b3BhcXVl" not in mask_text(text)


def test_everything_under_a_secret_name():
    assert mask_mapping({"secrets": ["a", "b"], "credentials": {"key": "c"}}) == {"secrets": MASK, "credentials": MASK}


@pytest.mark.parametrize("name", ["greyjacket", "run-2024.01", "läuft", "名前", "a b", "x" * 200])
def test_good_names(name):
    assert check_run_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "x\0y", "x\ny", "x\u202ey", "x\u200by", "x" * 201,
     " x", "x.", "a:b", 7, None, "\ud800"],
)  # fmt: skip
def test_names_that_are_no_folder(name):
    with pytest.raises(RunNameError):
        check_run_name(name)


def test_a_bad_name_comes_with_a_good_one():
    with pytest.raises(RunNameError, match="try 'meta-llama'"):
        check_run_name("meta/llama")
