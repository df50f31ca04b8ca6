"""Masking of secrets and only secrets, and validation of run names."""

from __future__ import annotations

import pytest

from tachograph.exceptions import RunNameError
from tachograph.records import MASK, check_run_name, mask_arguments, mask_mapping, mask_text
from tests.tables import each

SECRETS = """
    api_key apiKey OPENAI_API_KEY hf_token hub-token token wandb_api_key password db_passwd client_secret
    aws_secret_access_key privateKey credentials slack_webhook Authorization api_keys hf_tokens passwords dbpassword
    smtp_pass ssh_key signing_key signing_salt openai_key wandb_key HFTOKEN ngrok_authtoken civitai_token
    modelscope_token telegram_token discord_token git_token jwt_token sas_token personal_access_token access_tokens
    github_pat kaggle_key
    slack_url discord_webhook_url swanlab_lark_webhook_url webhook_url lark-url feishuUrl SLACK_URLS
    comet_key groq_key license_key PGPASSWORD hf_token_1 api_key_2 auth_key use_auth_token
""".split()


@each("name", SECRETS)
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


@each("name", HARMLESS)
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


# A text, and the parts of its secrets that must not remain.
SECRETS_IN_TEXTS = [
    ("Your API key:\n0123456789abcdef0123", "0123456789"),
    ("password=[maskedopaque1", "opaque1"),
    ("wandb login --relogin 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("wandb login --host https://wandb.example.org 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("!wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("wandb API key: 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("python x.py --password opaque1xyz --lr 1", "opaque1"),
    ('python x.py --api-key "opaque1 xyz" --lr 1', "opaque1", "xyz"),
    ("python x.py --api-key 'opaque1 xyz'", "opaque1", "xyz"),
    ("python x.py --token=opaque1,xyz", "opaque1", "xyz"),
    ("Command '['python', 'x.py', '--token', 'opaque1xyz']' returned non-zero exit status 1.", "opaque1"),
    ('argv: ["python", "--hf-token", "opaque1xyz", "--lr", "1"]', "opaque1"),
    ('password: "a,b opaque1"', "a,b", "opaque1"),
    ("password: 'a;b opaque1'", "opaque1"),
    ("password=a,opaque1", "opaque1"),
    ("password=a;opaque1&more2", "opaque1", "more2"),
    ('password=ab"opaque1', "opaque1"),
    ("password=ab'opaque1", "opaque1"),
    ("{'api_key': 'opaque1xyz', 'lr': 1}", "opaque1"),
    ("{'api_key': 'it\\'s opaque1', 'lr': 1}", "opaque1"),
    ('{"api_key": "opaque1 \\" xyz9", "lr": 1}', "opaque1", "xyz9"),
    ('"{\\"api_key\\": \\"opaque1 xyz9\\"}"', "opaque1", "xyz9"),
    ("Config(api_key='opaque1xyz', lr=1)", "opaque1"),
    ("api_key: str = 'opaque1'", "opaque1"),
    ("password == 'opaque1'", "opaque1"),
    ("if token := 'opaque1'", "opaque1"),
    ("os.environ['HF_TOKEN'] = 'opaque1'", "opaque1"),
    ('export HF_TOKEN="opaque1"', "opaque1"),
    ("api_keys: ['opaque1', 'opaque2']", "opaque1", "opaque2"),
    ("password=b'opaque1 x2'", "opaque1", "x2"),
    ("machine api.wandb.ai\n  login user\n  password opaque1xyz", "opaque1"),
    ("machine github.com login me password opaque1", "opaque1"),
    ("[pypi]\nusername = __token__\npassword = opaque1", "opaque1"),
    ('{"auths": {"https://index.docker.io/v1/": {"auth": "dXNlcjpPcGFxdWUx"}}}', "dXNlcjpPcGFxdWUx"),
    ('{"identitytoken": "opaque1"}', "opaque1"),
    ("Authorization: Bearer opaque1xyzabc", "opaque1"),
    ("Authorization: Basic T3BhcXVlMTpvcGFxdWUx", "T3Bhc"),
    ("authorization: token opaque1xyz", "opaque1"),
    ("Authorization: ApiKey opaque1", "opaque1"),
    ("Proxy-Authorization: Basic T3BhcXVlMQ==", "T3Bhc"),
    (
        "Authorization: AWS4-HMAC-SHA256 Credential=x/20240101/us-east-1, SignedHeaders=host, Signature=opaque1",
        "opaque1",
    ),
    ("curl -H 'Authorization: Bearer opaque1xyz' https://x.y", "opaque1"),
    ("{'Authorization': 'Bearer opaque1xyz'}", "opaque1"),
    ("headers: bearer opaque1xyzabc", "opaque1"),
    ("Cookie: session=opaque1; other=opaque2", "opaque1", "opaque2"),
    ("Set-Cookie: sid=opaque1; Path=/", "opaque1"),
    ("X-Api-Key: opaque1", "opaque1"),
    ("PRIVATE-TOKEN: opaque1", "opaque1"),
    ("postgres://user:opaque1@host:5432/db", "opaque1"),
    ("postgresql+psycopg2://user:Op@que1:x/y@host/db", "que1"),
    ("mongodb+srv://user:opaque1@cluster0.mongodb.net/?retryWrites=true", "opaque1"),
    ("redis://:opaque1@host:6379/0", "opaque1"),
    ("amqp://guest:opaque1@rabbit/", "opaque1"),
    ("mysql://root:opaque1@127.0.0.1/x", "opaque1"),
    ("https://user:opaque1@github.com/me/repo.git", "opaque1"),
    ("https://oauth2:opaque1@gitlab.com/x.git", "opaque1"),
    ("https://example.org/x?token=opaque1&y=2", "opaque1"),
    ("https://example.org/x?y=2&access_token=opaque1#z", "opaque1"),
    ("https://acc.blob.core.windows.net/c?sv=2022&sig=opaque1%2Babc%3D", "opaque1"),
    ("https://s3/x?X-Amz-Algorithm=A&X-Amz-Credential=opaque1&X-Amz-Signature=opaque2", "opaque1", "opaque2"),
    ("https://fn.azurewebsites.net/api/x?code=opaque1opaque1opaque1x==", "opaque1"),
    (
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=opaque1abc/def+g==;EndpointSuffix=core.windows.net",
        "opaque1",
        "def",
    ),
    ("Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=opaque1=", "opaque1"),
    ("Server=x;User Id=sa;Password=opaque1;Encrypt=true", "opaque1"),
    ("Server=x;Uid=sa;Pwd=opaque1;", "opaque1"),
    ("host=x user=y password=opaque1 dbname=z", "opaque1"),
    ("sshpass -p opaque1 ssh host", "opaque1"),
    ("sshpass -popaque1 ssh host", "opaque1"),
    ("mysql -u root -popaque1 db", "opaque1"),
    ("docker login -u me -p opaque1 registry.io", "opaque1"),
    ("redis-cli -h x -a opaque1 ping", "opaque1"),
    ("curl -u me:opaque1 https://x", "opaque1"),
    ("curl --user me:opaque1 https://x", "opaque1"),
    ("CREATE USER x IDENTIFIED BY 'opaque1'", "opaque1"),
    ("ALTER ROLE x WITH PASSWORD 'opaque1'", "opaque1"),
    ("the password is 'opaque1'", "opaque1"),
    ("https://hooks.slack.com/services/T00000000/B00000000/opaque1xyz", "opaque1"),
    ("https://hooks.slack.com/workflows/T0/A0/123/opaque1", "opaque1"),
    ("https://discord.com/api/webhooks/123/opaque1", "opaque1"),
    ("https://discordapp.com/api/v10/webhooks/123/opaque1", "opaque1"),
    ("https://api.telegram.org/bot123:opaque1/sendMessage", "opaque1"),
    ("https://x.webhook.office.com/webhookb2/opaque1@y/z", "opaque1"),
    ("https://hooks.zapier.com/hooks/catch/1/opaque1/", "opaque1"),
    ("https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/1", "0123456789abcdef"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----", "b3BlbnN"),
    ("-----BEGIN PRIVATE KEY-----\nMIIEvQ", "MIIEvQ"),
    ("x\nMIIEvQIBADANBg\nAbcdefgh==\n-----END PRIVATE KEY-----\nafter", "MIIEvQ", "Abcdef"),
    ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\nlQOYBF\n-----END PGP PRIVATE KEY BLOCK-----", "lQOYBF"),
    ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIFHD\n-----END ENCRYPTED PRIVATE KEY-----", "MIIFHD"),
    ("-----BEGIN EC PRIVATE KEY-----\\nMHcCAQEE\\n-----END EC PRIVATE KEY-----\\n", "MHcCAQEE"),
    (
        '{"private_key_id": "1", "private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQ\\n-----END PRIVATE KEY-----\\n"}',
        "MIIEvQ",
    ),
    ("---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nP2/56wAA\n---- END SSH2 ENCRYPTED PRIVATE KEY ----", "P2/56"),
    ("PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 2\nAAABAQCm\nT3BhcXVl\nPrivate-MAC: 00", "AAABAQCm", "T3Bhc"),
    ("aws_secret_access_key = opaque1/abc+def", "opaque1", "def"),
    ("AWS_SECRET_ACCESS_KEY=opaque1/abc+def", "opaque1"),
    ("aws configure set aws_secret_access_key opaque1", "opaque1"),
    ("db_password: hunter2!", "hunter2"),
    ("  password:    opaque1", "opaque1"),
    ("PASSWORD=opaque1", "opaque1"),
    ("//registry.npmjs.org/:_authToken=opaque1", "opaque1"),
    ("//registry.npmjs.org/:_password=opaque1", "opaque1"),
    ("<password>opaque1</password>", "opaque1"),
    ("**Password**: opaque1", "opaque1"),
    ("`api_key`: `opaque1`", "opaque1"),
    ("token => opaque1", "opaque1"),
    ("set HF_TOKEN opaque1", "opaque1"),
    ("ENV HF_TOKEN opaque1", "opaque1"),
    ("vault login opaque1xyzopaque1xyz", "opaque1"),
    ("swanlab login -k opaque1xyzopaque1xyz", "opaque1"),
    ("git clone https://opaque1xyzopaque1xyz@github.com/x", "opaque1"),
]


@each("case", SECRETS_IN_TEXTS)
def test_context_marks_a_secret_in_a_text(case):
    text, *secrets = case
    for before, after in [("", ""), ("ERROR worker 3 | ", "\nnext line: 1")]:
        masked = mask_text(f"{before}{text}{after}")
        assert [secret for secret in secrets if secret in masked] == []
        assert masked.startswith(before)
        # A private key without its last line hides everything after it.
        assert masked.endswith(after) or "BEGIN PRIVATE KEY" in text


HARMLESS_TEXTS = [
    "secret:\nThe rest is silence.",
    "4249ec9a0b1c2d3e4f5061728394a5b6c7d8e9f0",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "123e4567-e89b-12d3-a456-426614174000",
    "meta-llama/Llama-3-8B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "sk-learn",
    "sk-learn-contrib-something-v2-0",
    "scikit-learn==1.4.2",
    "hf_model",
    "hf_hub_download",
    "hf_transformer_checkpoint_converter",
    "hf_ckpt",
    "token_count=512",
    "max_tokens: 4096",
    "tokenizer=meta-llama/Llama-3-8B",
    "tokenizer_path: /data/tok",
    "password_field_enabled",
    "password_field_enabled=True",
    "use_auth_token=False",
    "token: None",
    "key=loss",
    "sort_key=length",
    "/data/experiments/run-2024-01-01_12-00-00/checkpoints/step_00010000.safetensors",
    "s3://bucket/path/to/object-0123456789.parquet",
    "gs://my-bucket/datasets/c4/en.noblocklist-train.00000-of-01024.json.gz",
    "https://huggingface.co/datasets/allenai/c4/resolve/main/en/c4-train.00000-of-01024.json.gz",
    "http://localhost:8080/v1/chat/completions",
    "http://127.0.0.1:6006/#scalars",
    "tcp://10.0.0.1:29500",
    "file:///home/me/data@2024/x",
    "2024-01-01 12:00:00,123 INFO trainer.py:120 loss: 0.25 lr=1e-4 tokens_per_second=123456.7",
    "RuntimeError: CUDA error: device-side assert triggered at /opt/pytorch/aten/src/ATen/native/cuda/Loss.cu:240",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)",
    'File "/usr/lib/python3.11/site-packages/transformers/trainer.py", line 1234, in _inner_training_loop',
    "self.model.embed_tokens.weight",
    "pad_token_id=0, eos_token_id=2, bos_token='<s>', unk_token='<unk>'",
    "special_tokens: ['<s>', '</s>']",
    "next token: the",
    "The token: <pad>",
    "token: [MASK]",
    "num_tokens=1234567890",
    "seq_len=2048 key_value_heads=8 num_key_value_heads: 8",
    "api-server-01.internal.example.org",
    "ms-marco-MiniLM-L-6-v2",
    "pa-danish-corpus-with-a-very-long-name-for-testing-2024",
    "as-simple-as-possible",
    "ak-47",
    "key-value-memory-network-with-attention",
    "key-frames-000123",
    "pat-net-large",
    "fc-layer-norm-dropout-01",
    "re_implementation_of_attention",
    "fw_conv_3x3_bn_relu_dropout_block",
    "sdk-tools-linux-4333796",
    "secret_santa_dataset_v2_clean_final",
    "jina_embeddings_v2_base_en",
    "npm_config_registry",
    "pypi-simple-index-mirror-with-a-long-name",
    "xai-org/grok-1",
    "nvapi-client",
    "SG.something",
    "hvs.method_name_of_something_long",
    "self.hvs.some_long_attribute_name_here",
    "s.replace_all_the_occurrences_of",
    "dapi-gateway",
    "glft-abc",
    "AKIA",
    "ASIANUMBERSYSTEM",
    "AIzawa",
    "eyJustAWord",
    "eyJ.a.b",
    "AQ.Learning",
    "EAA-2024",
    "The skill of asking is a task; basic configuration of a bearer of bad news.",
    "Bearer authentication is required.",
    "bearer of news",
    "basic auth",
    "use the --token flag to authenticate",
    "pass --password to be prompted",
    "pass --token or set HF_TOKEN to your token",
    "docker run -u 1000:1000 -p 8080:80 image:latest",
    "python -u train.py",
    "ssh -p 22 host",
    "git@github.com:me/repo.git",
    "me@example.org",
    "user@host:/path/to/file",
    "12:30:45.123456",
    "ratio 16:9, time 12:00",
    "a == b and c != d",
    'x = {"a": 1, "b": [1, 2, 3]}',
    "lambda x: x.pass_through",
    "pass@1: 0.45 pass@10=0.8",
    "pass: 12, fail: 3",
    "forward_pass: 0.012",
    "compass: north",
    "author: someone",
    "authority=high",
    "auth: basic",
    "auth=oauth2",
    "authenticate: yes",
    "monkey: banana",
    "primary_key: id",
    "foreign_key=user_id",
    "cache_key=abc123",
    "keyboard: us",
    "image_key=jpg",
    "signature: (x: int) -> str",
    "sig=0.05",
    "noise_sig=0.25",
    "code=200",
    "exit code: 137",
    "error_code=12345",
    "?code=404&key=name",
    "The secret_key variable",
    "cookie_cutter",
    "-----BEGIN CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC me@host",
    "M.A.B.",
    "No.12.3456",
    "nn.Linear(in_features=4096, out_features=11008, bias=False)",
    "layers.0.self_attn.q_proj.weight",
    "model.layers.31.mlp.down_proj.weight",
    "wandb: Run data is saved locally in /x/wandb/run-20240101_120000-abcdef12",
    "wandb: Currently logged in as: someone (team). Use `wandb login --relogin` to force relogin",
    "W&B run: https://wandb.ai/team/project/runs/abc12345",
    "optimizer=adamw_torch_fused",
    "0x7f788bd50930",
    "1e-5",
    "1703123457.1",
    "Qwen/Qwen2.5-Coder-32B-Instruct-AWQ",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "gpt-4o-mini-2024-07-18",
    "ft:gpt-3.5-turbo-0613:my-org::8ABCdef1",
    "claude-3-5-sonnet-20240620",
    "llama.cpp",
    "ggml-model-Q4_K_M.gguf",
    "cpu_mem_rss_mb",
    "data-00000-of-00001.arrow",
    "runs/2024-01-01/12-00-00",
    "loss=0.1;acc=0.9;step=10",
    "SKLearnWrapper",
    "SK0123",
    "task_arithmetic_merge",
    "disk-nvme0n1-scratch-data-2024-run",
    "ATTACK",
    "ATTAIN",
    "QATAR",
    "1//0",
    "Q~",
    "AKIDO",
    "LTAI",
]


@each("text", HARMLESS_TEXTS)
def test_harmless_text_is_not_masked(text):
    for before, after in [("", ""), ("text ", " text"), ('"', '"'), ("(", ")"), ("line\n", "\nline")]:
        assert mask_text(f"{before}{text}{after}") == f"{before}{text}{after}"
    arguments = ["train.py", text, "--name", text, f"--name={text}"]
    assert mask_arguments(arguments) == arguments


def test_rest_of_a_text_stays_readable():
    text = (
        "login(user='me', password='a, b', retries=3) failed: https://me:opaque@host/x?token=opaque&page=2 (code=401)"
    )
    assert mask_text(text) == (
        f"login(user='me', password='{MASK}', retries=3) failed: https://{MASK}@host/x?token={MASK}&page=2 (code=401)"
    )


OPTIONS = """
    token hf-token hf_token api-key apikey password passwd pwd secret client-secret wandb-key openai-key access-token
    aws-secret-access-key auth-token authorization credentials creds private-key ssh-key db-password smtp-pass
    github-pat jwt bearer cookie slack-webhook webhook-url license-key HF_TOKEN OPENAI_API_KEY passphrase passcode
""".split()


@each("name", OPTIONS)
def test_options_are_masked_on_a_command_line(name):
    for arguments in [
        [f"--{name}", "opaque1"],
        [f"--{name}=opaque1"],
        [f"-{name}", "opaque1"],
        [f"--{name}=opaque1,a b;opaque2"],
        [f"--{name}", "opaque1 a,opaque2"],
        [f"--{name}", "-opaque1"],
        [f"{name}=opaque1"],
        [f"+cfg.{name}=opaque1"],
        [f"--cfg={{{name}: opaque1}}"],
        [f"--cfg={{'{name}': 'opaque1 opaque2'}}"],
        [f"python x.py --{name} opaque1"],
    ]:
        masked = mask_arguments(["train.py", *arguments, "--lr", "1e-4"])
        assert "opaque" not in " ".join(masked), arguments
        assert masked[0] == "train.py"
        assert masked[-2:] == ["--lr", "1e-4"]
        assert len(masked) == len(arguments) + 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["-u", "me:opaque1"],
        ["--user", "me:opaque1"],
        ["--auth=me:opaque1"],
        ["--basic-auth", "me:opaque1"],
        ["--db", "postgres://me:opaque1@host/db"],
        ["--db=postgres://me:opaque1@host/db"],
        ["-H", "Authorization: Bearer opaque1"],
        ["--header=Authorization: Bearer opaque1"],
        ["-e", "HF_TOKEN=opaque1"],
        ["-eHF_TOKEN=opaque1"],
        ["-Dpassword=opaque1"],
        ["--pass", "opaque1"],
        ["--api-keys", "opaque1", "opaque2"],
        ["-c", "python x.py --token opaque1"],
        ["https://host/?token=opaque1"],
        ["/password:opaque1"],
        ["--set", "auth.password=opaque1"],
        ["--options", "a=1,password=opaque1"],
        ["wandb", "login", "--relogin", "0123456789opaque1abcdef0123456789abcdef"],
    ],
    ids=" ".join,
)
def test_other_secrets_on_a_command_line_are_masked(arguments):
    assert "opaque" not in " ".join(mask_arguments(arguments))


def test_values_that_are_not_secrets_stay_on_a_command_line():
    arguments = [
        "--use-auth-token=True",
        "--password=None",
        "--user",
        "1000:1000",
        "-u",
        "train.py",
        "--token",
        "--lr=1",
    ]
    assert mask_arguments(arguments) == arguments


def test_command_line_in_a_config_is_masked():
    assert mask_mapping({"command": ["train.py", "--token", "opaque"]}) == {"command": ["train.py", "--token", MASK]}


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
