"""Masking of secrets and only secrets, and validation of run names."""

from __future__ import annotations

import pytest

from tachograph.exceptions import RunNameError
from tachograph.records import MASK, check_run_name, mask_arguments, mask_mapping, mask_text

SECRETS = """
    api_key apiKey OPENAI_API_KEY hf_token hub-token token wandb_api_key password db_passwd client_secret
    aws_secret_access_key privateKey credentials slack_webhook Authorization api_keys hf_tokens passwords dbpassword
    smtp_pass ssh_key signing_key openai_key wandb_key HFTOKEN ngrok_authtoken civitai_token modelscope_token
    telegram_token discord_token git_token jwt_token sas_token personal_access_token access_tokens github_pat kaggle_key
    slack_url discord_webhook_url swanlab_lark_webhook_url webhook_url lark-url feishuUrl SLACK_URLS
    comet_key groq_key license_key PGPASSWORD hf_token_1 api_key_2 auth_key use_auth_token
""".split()


@pytest.mark.parametrize("name", SECRETS)
def test_secret_is_masked_by_name(name):
    assert mask_mapping({name: "opaque-1"}) == {name: MASK}
    assert mask_mapping({"deep": {"er": [{name: "opaque-1"}]}}) == {"deep": {"er": [{name: MASK}]}}
    assert mask_arguments([f"--{name}", "-opaque", f"--{name}=opaque"]) == [f"--{name}", MASK, f"--{name}={MASK}"]
    assert "opaque-1" not in mask_text(f"the call with {name}=opaque-1 failed")
    assert "opaque-1" not in mask_text(f'{{"{name}": "opaque-1"}}')


HARMLESS = """
    pad_token eos_token bos_token unk_token mask_token additional_special_tokens decoder_start_token max_tokens
    tokenizer
    num_tokens tokens_per_second tokens image_token user_token stop_token trigger_token key monkey keyboard sort_key
    num_key_value_heads image_key key_padding_mask author secretary_model compass bypass pass_rate forward_pass
    url dataset_url base_url slack_channel larkin_model_url mlflow_tracking_uri bot_name slack endpoint
    passes token_dropout tokenizer_path special_tokens_map primary_key caption_key passkey_retrieval keypoints
""".split()


@pytest.mark.parametrize("name", HARMLESS)
def test_tokenizer_names_are_not_masked(name):
    assert mask_mapping({name: "some-text"}) == {name: "some-text"}
    assert mask_text(f"--{name}=some-text") == f"--{name}=some-text"


@pytest.mark.parametrize(
    "name", ["pass@1", "pass_at_10", "user_tokens", "api_tokens", "session_tokens", "token", "num_api_keys", "api_key"]
)
def test_number_under_key_or_token_is_not_masked(name):
    assert mask_mapping({name: 12}) == {name: 12}


def test_number_under_password_is_masked():
    assert mask_mapping({"password": 12345678}) == {"password": MASK}


def test_special_tokens_are_not_masked():
    assert mask_mapping({"bot_token": "<|bot|>", "id_token": "[ID]"}) == {"bot_token": "<|bot|>", "id_token": "[ID]"}


@pytest.mark.parametrize(
    "text",
    [
        "outputs/multitask_finetune_llama3_8b_v2",
        "checkpoints/task_arithmetic_merge_step1000.pt",
        "/mnt/disk-nvme0n1-scratch-data-2024-run",
        "a basic configuration of things",
        "git@github.com:me/repo.git",
        "--pad_token=<pad> --eos_token=</s> data.image_key=jpg noise_sig=0.25",
        "loss: 0.25, lr: 0.001",
        "2024-01-01 12:00:00 step: 5",
        "https://huggingface.co/meta-llama/Llama-3.1-8B?revision=main",
    ],
)
def test_ordinary_text_is_not_masked(text):
    assert mask_text(text) == text


def test_flags_and_empty_values_are_not_masked():
    assert mask_mapping({"use_auth_token": True, "password": None, "token": ""}) == {
        "use_auth_token": True,
        "password": None,
        "token": "",
    }


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "a" * 30,
        "sk-" + "b1" * 20,
        "ghp_" + "c" * 36,
        "AKIA" + "D" * 16,
        "xoxb-1234567890-abc",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4",
        "ya29." + "f1" * 15,
        "dckr_pat_" + "g1" * 15,
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
        "https://hooks.slack.com/services/T0/B0/xyz",
        "https://open.feishu.cn/open-apis/bot/v2/hook/0123-abc",
        "https://open.larksuite.com/open-apis/bot/v2/hook/0123-abc",
        "https://canary.discord.com/api/webhooks/1/xyz",
        "gsk_" + "d" * 40,
        "sk_live_" + "e" * 20,
    ],
)
def test_secret_is_masked_by_pattern(secret):
    assert secret not in mask_text(f"before {secret} after")
    assert mask_text(f"before {secret} after").endswith(" after")


def test_password_in_a_url_is_masked():
    assert mask_text("https://user:hunter2@host/repo.git") == f"https://{MASK}@host/repo.git"
    assert mask_text("redis://:hunter2@host/0") == f"redis://{MASK}@host/0"
    assert mask_text(f"https://{'t' * 40}@host/repo.git") == f"https://{MASK}@host/repo.git"
    assert mask_text("git@github.com:me/repo.git") == "git@github.com:me/repo.git"


@pytest.mark.parametrize(
    "text",
    ["GET /x?api_key=opaque1&y=1", "https://host/a?se=1&sig=opaque1%3D", "HF_TOKEN=opaque1 python x.py",
     "login failed: password=opaque1", 'password="opaque1"', "password: opaque1", "X-Api-Key: opaque1-abc",
     "Authorization: Token opaque1abcdef", "postgres://me:p@ss/opaque1@host/db",
     "Authorization: Basic b3BhcXVlMTpvcGFxdWUx", "X-Amz-Signature=opaque1"],
)  # fmt: skip
def test_secret_inside_a_text_is_masked(text):
    assert "opaque1" not in mask_text(text)
    assert "b3BhcXVl" not in mask_text(text)


def test_containers_under_a_secret_name_are_masked():
    assert mask_mapping({"secrets": ["a", "b"], "credentials": {"key": "c"}}) == {"secrets": MASK, "credentials": MASK}


def test_notify_section_is_masked():
    section = {
        "on": ["error"],
        "dashboard_url": "https://runs.example.org",
        "slack": "https://example.org/short",
        "lark": {"url": "https://example.org/hook", "secret": "s", "style": "text"},
        "webhook": {"url": {"env": "MY_URL"}, "template": {"routing": "key-of-mine"}},
        "email": {"host": "smtp.example.org", "to": ["a@example.org"], "password": "p"},
    }
    assert mask_mapping({"telemetry": {"notify": section}}) == {
        "telemetry": {
            "notify": {
                "on": ["error"],
                "dashboard_url": "https://runs.example.org",
                "slack": MASK,
                "lark": {"url": MASK, "secret": MASK, "style": "text"},
                "webhook": {"url": {"env": "MY_URL"}, "template": MASK},
                "email": {"host": "smtp.example.org", "to": ["a@example.org"], "password": MASK},
            }
        }
    }


def test_url_under_a_channel_name_is_masked():
    config = {"slack": {"url": "https://example.org/x", "channel": "runs"}, "data": {"url": "https://example.org/y"}}
    masked = {"slack": {"url": MASK, "channel": "runs"}, "data": {"url": "https://example.org/y"}}
    assert mask_mapping(config) == masked


@pytest.mark.parametrize("name", ["greyjacket", "run-2024.01", "läuft", "名前", "a b", "x" * 200])
def test_valid_run_names(name):
    assert check_run_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "x\0y", "x\ny", "x\u202ey", "x\u200by", "x" * 201,
     " x", "x.", "a:b", 7, None, "\ud800"],
)  # fmt: skip
def test_invalid_run_names_are_rejected(name):
    with pytest.raises(RunNameError):
        check_run_name(name)


def test_invalid_run_name_error_suggests_a_valid_one():
    with pytest.raises(RunNameError, match="try 'meta-llama'"):
        check_run_name("meta/llama")
