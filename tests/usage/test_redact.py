"""Redaction: private texts are replaced, ordinary names pass."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import string
import time
from collections import OrderedDict
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tachograph.usage._fields import REDACTED
from tachograph.usage._redact import is_private, private_reason, redact
from tests.tables import each

# Values made by the typed fields
# --------------------------------------------------------------------------------------------------------------------

VERSIONS = """
    2.13.0 2.11.0+cu128 0.13.0.dev0 5.0.0rc1 2.9.0.dev20250801+cu128 2.10.0+rocm6.4 3.11.9 3.14.0a4 2.7.4.post1
    0.0.28.post3 2.5.1+cpu 2.8.0+xpu 2025.3.0 24.04 570.124.06 12.8 9.0
""".split()
NAMES = """
    transformers.trainer _inner_training_loop torch.nn.modules.module <lambda> __call__ <module> <listcomp> <genexpr>
    Trainer.train.<locals>.wrapper torch.OutOfMemoryError UnicodeDecodeError torch.distributed.DistBackendError
    safetensors._safetensors_rust.SafetensorError json.decoder.JSONDecodeError
    torch._dynamo.exc.InternalTorchDynamoError
    huggingface_hub.errors.LocalEntryNotFoundError
    triton.compiler.errors.CompilationError pyarrow.csv msgspec.json
    torch.distributed.rpc.internal fsspec.implementations.local Trainer.log Response.json c_contiguous x
    bfloat16 float8_e4m3fn float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 paged_adamw_8bit galore_adamw_8bit_layerwise
    cosine_with_restarts warmup_stable_decay flash_attention_2 compressed-tensors fbgemm_fp8 mxfp4 Q4_K_M IQ2_XXS nf4
    deepspeed_zero3 cuda rocm mps xpu npu Linux Darwin Windows x86_64 aarch64 NaN Infinity -Infinity other none
    config-loaded num_parameters tokens_per_second gpu_0_peak_memory_bytes
""".split()
DEVICES = [
    *("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "Tesla T4"),
    *("Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop", "NVIDIA GeForce GTX 1080 Ti"),
    *("NVIDIA GeForce RTX 2080 SUPER with Max-Q Design", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"),
    *("NVIDIA RTX 2000 Ada Generation Laptop GPU", "Quadro RTX 8000", "TITAN Xp", "NVIDIA GH200 480GB", "MI300X"),
    *("AMD Instinct MI300X", "AMD Radeon RX 7900 XTX", "AMD Radeon(TM) Graphics", "AMD Radeon™ PRO W7900"),
    *("Apple M3 Max", "Apple Silicon", "Intel(R) Data Center GPU Max 1550", "Intel® Arc™ B580 Graphics", "Ascend910B3"),
    *("Gaudi2", "HL-225", "TPU v5 lite", "user exception", "other code", "", REDACTED),
]
HUB_IDS = """
    meta-llama/Llama-3.1-8B-Instruct meta-llama/Llama-2-7b-chat-hf meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8
    meta-llama/Llama-3.2-1B-Instruct-QLORA_INT4_EO8 meta-llama/Llama-3.2-3B-Instruct-SpinQuant_INT4_EO8
    deepseek-ai/DeepSeek-R1-Distill-Qwen-32B deepseek-ai/DeepSeek-R1-0528-Qwen3-8B deepseek-ai/DeepSeek-V3.1-Terminus
    deepseek-ai/deepseek-coder-6.7b-instruct Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 Qwen/Qwen1.5-MoE-A2.7B-Chat
    Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4 Qwen/QwQ-32B-Preview Qwen/Qwen2.5-14B-Instruct-1M
    mistralai/Mixtral-8x22B-Instruct-v0.1 mistralai/Mistral-Small-3.2-24B-Instruct-2506 mistralai/Pixtral-12B-2409
    google/gemma-3n-E4B-it google/gemma-3-27b-it-qat-q4_0-gguf google/t5-v1_1-small google/vit-base-patch16-224-in21k
    google/siglip2-so400m-patch14-384 google/mobilenet_v2_1.0_224 google/bert_uncased_L-2_H-128_A-2 google/umt5-xxl
    google/videoprism-base-f16r288 microsoft/Phi-3.5-MoE-instruct microsoft/swinv2-tiny-patch4-window8-256
    microsoft/beit-base-patch16-224-pt22k-ft22k microsoft/bitnet-b1.58-2B-4T microsoft/MiniLM-L12-H384-uncased
    microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext microsoft/dit-base-finetuned-rvlcdip
    facebook/opt-125m facebook/wav2vec2-large-xlsr-53 facebook/dinov3-vith16plus-pretrain-lvd1689m facebook/m2m100_418M
    facebook/esm2_t33_650M_UR50D facebook/vjepa2-vitg-fpc64-384-ssv2 facebook/sam2.1-hiera-base-plus
    nvidia/Llama-3_3-Nemotron-Super-49B-v1_5 nvidia/Qwen3-30B-A3B-NVFP4
    nvidia/segformer-b5-finetuned-cityscapes-1024-1024
    nvidia/parakeet-tdt-0.6b-v3 nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 HuggingFaceTB/SmolVLM2-256M-Video-Instruct
    unsloth/gemma-3-270m-it-unsloth-bnb-4bit openai/gpt-oss-120b openai/whisper-tiny.en allenai/OLMo-2-0325-32B-Instruct
    allenai/olmOCR-2-7B-1025-FP8 tiiuae/Falcon3-10B-Instruct-1.58bit zai-org/GLM-4.1V-9B-Thinking
    ibm-granite/granite-3.0-1b-a400m-base ibm-granite/granite-timeseries-ttm-r2 openbmb/MiniCPM-Llama3-V-2_5
    LiquidAI/LFM2-8B-A1B internlm/internlm-xcomposer2d5-7b stepfun-ai/GOT-OCR2_0 CohereForAI/c4ai-command-r-plus-08-2024
    state-spaces/mamba-2.8b-slimpj llava-hf/llava-onevision-qwen2-7b-ov-hf XiaomiMiMo/MiMo-7B-RL-0530
""".split()
PLAIN_IDS = """
    gpt2 bert-base-uncased distilbert-base-uncased-finetuned-sst-2-english TinyLlama-1.1B-Chat-v1.0 stablelm-2-1_6b
    bloomz-7b1-mt all-MiniLM-L6-v2 codegen25-7b-multi FLUX.1-dev Kimi-K2-Instruct-0905 EXAONE-3.5-7.8B-Instruct
    RWKV-5-World-1B5 tiny-random-LlamaForCausalLM dolphin-2.9.3-mistral-nemo-12b mxbai-embed-large-v1 xLSTM-7b
""".split()
ORGANIZATIONS = {hub_id.split("/")[0] for hub_id in HUB_IDS}


@each("text", [*VERSIONS, *NAMES, *DEVICES, *HUB_IDS, *PLAIN_IDS])
def test_values_made_by_fields_pass(text):
    assert private_reason(text, ORGANIZATIONS) is None
    assert redact({text: [text]}, ORGANIZATIONS) == {text: [text]}


@pytest.mark.parametrize("hub_id", ["META-LLAMA/Llama-3.1-8B", "qwen/Qwen3-8B"])
def test_organizations_are_case_insensitive(hub_id):
    assert not is_private(hub_id, ["meta-llama", "QWEN"])


@each("hub_id", HUB_IDS)
def test_hub_id_needs_listed_organization(hub_id):
    assert is_private(hub_id)
    assert is_private(hub_id, ["acme"])


def names_of(package: str) -> tuple[set[str], set[str], set[str]]:
    """Return the modules, classes and functions in a package's sources; importing them would take a minute."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    modules, classes, functions = set(), set(), set()
    for path in root.rglob("*.py"):
        modules.add(".".join(path.relative_to(root.parent).with_suffix("").parts))
        source = path.read_text(encoding="utf-8")
        classes |= set(re.findall(r"^\s*class (\w+)", source, re.MULTILINE))
        functions |= set(re.findall(r"^\s*(?:async )?def (\w+)", source, re.MULTILINE))
    return modules, classes, functions


# A third of the functions of the two largest packages is enough to detect one in a thousand.
@pytest.mark.parametrize(
    ("package", "every"), [("torch", 3), ("transformers", 3), ("trl", 1), ("peft", 1), ("accelerate", 1)]
)
@pytest.mark.slow
def test_names_in_real_packages_pass(package, every):
    modules, classes, functions = names_of(package)
    assert len(functions) > 500
    assert [name for name in sorted(modules | classes) if is_private(name)] == []
    some = sorted(functions)[::every]
    redacted_names = [name for name in some if is_private(name)]
    assert len(redacted_names) <= len(some) // 1000, redacted_names


def test_all_model_types_pass():
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    models = [path.name for path in (Path(spec.origin).parent / "models").iterdir() if path.is_dir()]
    assert len(models) > 300
    assert [name for name in models if is_private(name)] == []


# Private texts
# --------------------------------------------------------------------------------------------------------------------

PRIVATE: dict[str, list[str]] = {
    "path": [
        *(
            "/",
            "/home/alice/x",
            "/Users/alice/Library",
            "C:\\Users\\bob",
            "C:/Users/bob",
            "\\\\server\\share",
            "~/.ssh",
        ),
        *("./data", "../secret", "..", "data/train", ".env", ".netrc", "a/b", "file:///x", "https://x.y/z", "s3://b/k"),
        *("google/a/b", "google/../etc", "google/", "/google", "google/.ssh", "google\\x", "evil/google", "google//x"),
        *("google/a b", "google/a@b", "google/x\n", "google /x", "models--alice--secret", "--token", "／home／alice"),
        *("ｇｏｏｇｌｅ／x", "google／x", "℀"),
    ],
    "character": [
        *("alice@corp.com", "a.b+c@d.example", "ü@ü.de", "alice＠corp．com", "user@host", "~", "~alice", "$HOME"),
        *("%USERPROFILE%", "file:data", "mailto:x", "localhost:8080", "10.0.0.1:80", "::1", "fe80::1%eth0", "a=b"),
        *("::ffff:1.2.3.4", "2001:db8::1", "00:1a:2b:3c:4d:5e", "C:", "a\nb", "a\tb", "a\0b", "a\u200bb", "a\u202eb"),
        *("a\u00adb", "\ufeffa", "аlice", "home∕alice", "⅓", "١٢٣", "Алиса", "北京", "\ud800", "a,b", "who?", "{x}"),
        *("[redacted] x", "[REDACTED]", "<script>", "<alice>", "a\u2028b", "%2Fhome", "#1", "a;b", "x|y", '"'),
    ],
    "IP address": [
        *("10.0.0.1", "192.168.178.255", "v10.0.0.1", "10.0.0.1.x", "1.2.3.4rc1", "ip-10-0-12-34", "host_10_0_0_1"),
        *("１０.０.０.１", "1.2.3.4.5", "gpu 10 0 0 12", "0300.0250.0.1"),
    ],
    "MAC address": ["00-1A-2B-3C-4D-5E", "a0.b1.c2.d3.e4.f5", "001a.2b3c.4d5e", "nic-00-1a-2b-3c-4d-5e-x"],
    "id": [
        *("550e84f0-e29b-41d4-a716-4466b5440c00", "550E84F0E29B41D4A7164466B5440C00", "d41d8cd98f00", "0x7f3a2c"),
        *("001A2B3C4D5E", "9f86d08188c4d659a2feaa0c55ad015a3bf4f1be", "run_9f86d081884c7d65", "facadefacadefacade"),
    ],
    "personal number": [
        *("4915112345678", "+49 170 1234567", "(555) 123-4567", "555.123.4567", "4111 1111 1111 1111", "123-45-6789"),
        *("4111-1111-1111-1111", "52.5200 13.4050", "DE89370400440532013000", "x123456789x", "3232235777"),
    ],
    "key": [
        *("hf_abcdefghijklmnopqrst", "xhf_aaaaaaaaaaaaaaaaaaaa", "sk-abcdefghijklmnop1234", "sk-ant-api03-abc"),
        *("sk-proj-abc", "ghp_abcdefghijklmnopqrst", "github_pat_abcdefghijklmnop", "glpat-abcdefgh-ijklmnop1"),
        *("AKIAIOSFODNNXEXAMPLE", "xoxb-abcd-efgh-ij", "AIzaSyD-abcdefghijklmnopqrstuv", "ya29.abcdefghijklmnopqrst"),
        *("npm_abcdefghijklmnopqrst", "wandb_v1_abcdefghijklmnopq", "sk_live_abcdefghij", "nvapi-abcdefgh-ijklmnop1"),
        *("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.abc", "BEGIN RSA PRIVATE KEY", "ssh-rsa AAAA", "phc_abcdefghijklmnopq"),
        *("Bearer abc", "password hunter2", "api key x", "Token abc", "AGE-SECRET-KEY-1QQ", "pypi-AgEIcHlwaS5vcmcCJ1"),
    ],
    "host": [
        *("corp.example.com", "node17.cluster.local", "Alices-MacBook-Pro.local", "gpu-1.eu-west.internal", "x.lan"),
        *("alice(at)corp(dot)example", "git.acme.org", "gpu7.acme.de", "wandb-2.acme.io"),
    ],
    "file": [
        *("train_acme.py", "patients.jsonl", "patients.csv", "Patients.csv", "contract.pdf", "my notes.md", "x.docx"),
        *("acme-merger.json", "weights.safetensors", "id_rsa.pem", "config.yaml", "google/report.docx", "a.tar.gz"),
    ],
    "sentence": [
        *("my patient has cancer", "write a poem about cats", "Jane Doe", "TOP SECRET", "Dr Jane Smith of 42"),
        *("NVIDIA will buy acme", "Apple A B C D E F G 1", "abcd efgh ijkl mnop"),
    ],
    "random": [
        *("JBSWY3DPEHPK3PXP", "kX9vQ2mZr7LpT4wBn8Yc", "qzkxvjwpyhgbfmtdrcnl", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"),
        *("model_kX9vQ2mZr7LpT4wBn8Yc_last", "a8f3k2l9x0q1z7", "dQw4w9WgXcQdQw4w9WgXcQ", "Tr0ub4dor3xKc9Qz"),
    ],
    "long text": ["a" * 121, "word " * 30, "ﷺ" * 20, "a.b" * 1000],
}


@each("what, text", [(what, text) for what, texts in PRIVATE.items() for text in texts])
def test_private_text_is_redacted_with_reason(what, text):
    assert private_reason(text, ["google"]) == what
    assert redact({text: [text]}, ["google"]) == {REDACTED: [REDACTED]}


@pytest.mark.parametrize("what", ["IP address", "MAC address", "id", "personal number", "random"])
@pytest.mark.parametrize("around", ["{}", "x-{}", "model_{}_final", "<lambda>.{}", "NVIDIA {} Laptop", "v{}rc1"])
def test_surrounding_text_hides_nothing(what, around):
    for text in PRIVATE[what]:
        assert is_private(around.format(text))


def test_listed_organization_does_not_cover_private_name():
    for what in ("IP address", "MAC address", "id", "personal number", "key", "file", "random"):
        for text in PRIVATE[what]:
            assert is_private(f"google/{text}", ["google"])


@pytest.mark.parametrize(
    ("alphabet", "num_characters", "share"),
    [
        (string.ascii_letters + string.digits, 16, 0.90),
        (string.ascii_letters + string.digits, 20, 0.97),
        (string.ascii_letters + string.digits, 32, 0.995),
        (string.ascii_letters + string.digits + "-_", 24, 0.95),
        (string.ascii_letters + string.digits + "-_", 43, 0.995),
        (string.ascii_letters, 32, 0.98),
        (string.ascii_lowercase + string.digits, 16, 0.87),
        (string.ascii_lowercase + string.digits, 20, 0.95),
        (string.ascii_lowercase + string.digits, 32, 0.995),
        (string.ascii_uppercase + "234567", 16, 0.98),
        (string.ascii_uppercase + "234567", 20, 0.99),
        (string.ascii_lowercase, 20, 0.89),
        (string.ascii_lowercase, 32, 0.99),
        (string.ascii_uppercase, 20, 0.94),
        (string.ascii_uppercase, 32, 0.99),
        (string.hexdigits.lower(), 20, 1.0),
    ],
)
def test_random_keys_are_redacted(alphabet, num_characters, share):
    rng = random.Random(7)
    keys = ["".join(rng.choices(alphabet, k=num_characters)) for _ in range(1000)]
    assert sum(map(is_private, keys)) >= share * len(keys)


HOSTILE = [
    "a",
    "1",
    "1.",
    "-",
    "a1",
    "/",
    "\\",
    " a",
    "A",
    "eyJ",
    "0-",
    "ﷺ",
    "\u0301",
    "<",
    "<lambda>",
    "(",
    "._-",
    "~",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_text_takes_long(piece):
    for size in (120, 1_000_000):
        text = (piece * size)[:size]
        began_s = time.thread_time()
        is_private(text)
        is_private(text + "!", ["a"])
        redact([text, {text: text}], ["a"])
        assert time.thread_time() - began_s < 5  # a few milliseconds; an expression that backtracks takes hours


# Any text
# --------------------------------------------------------------------------------------------------------------------

PLAIN_TEXT = st.text(string.ascii_letters + string.digits + "_.- ", max_size=20)
AROUND = st.one_of(PLAIN_TEXT, PLAIN_TEXT, st.text(max_size=20))
PART = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8)
PARTS = st.lists(PART, min_size=1, max_size=4)
KEY_STARTS = [
    "hf_",
    "sk-",
    "sk-proj-",
    "ghp_",
    "gho_",
    "glpat-",
    "AKIA",
    "AIza",
    "npm_",
    "gsk_",
    "r8_",
    "phc_",
    "nvapi-",
]
KEYS = st.builds(
    lambda start, seed: start + "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=36)),
    st.sampled_from(KEY_STARTS),
    st.integers(0, 10**6),
)
HEX_KEYS = st.integers(16**39, 16**40 - 1).map("{:040x}".format)
POSIX = PARTS.map(lambda parts: "/" + "/".join(parts))
WINDOWS = st.builds(lambda drive, parts: f"{drive}:\\" + "\\".join(parts), st.sampled_from(string.ascii_letters), PARTS)
SECRETS = st.one_of(
    POSIX,
    POSIX.map(lambda path: "~" + path),
    WINDOWS,
    PARTS.map(lambda parts: "\\\\" + "\\".join(parts)),
    st.emails(),
    st.builds("{}+{}@{}.example".format, PART, PART, PART),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.builds("{}:{}".format, st.ip_addresses(v=4), st.integers(1, 65535)),
    st.uuids().map(str),
    HEX_KEYS,
    KEYS,
)


@settings(max_examples=6 * settings.default.max_examples)
@given(SECRETS, AROUND, AROUND)
def test_secret_is_found_in_any_surrounding(secret, before, after):
    assert is_private(before + secret + after, ORGANIZATIONS)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.text(max_size=200), st.lists(st.text(max_size=10), max_size=3))
@example("/", [""])
@example("a/b", ["A"])
def test_slash_passes_only_in_hub_id(text, organizations):
    if is_private(text, organizations):
        return
    assert "\\" not in text
    if "/" in text:
        organization, name = text.split("/")
        assert organization.casefold() in {one.casefold() for one in organizations}
        assert re.fullmatch(r"[\w.-]+", name, re.ASCII)


# Any value
# --------------------------------------------------------------------------------------------------------------------


class DeceptiveText(str):
    """Compares equal to a harmless text but serialises as another."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(REDACTED)


class RaisingObject:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("/home/alice")

    __str__ = __repr__ = __iter__ = __len__ = __bool__ = __eq__ = __getattr__  # type: ignore[assignment]

    def __hash__(self) -> int:
        return 1


class Colour(str, Enum):
    RED = "red"


NON_JSON_VALUES = [
    *(
        (1, "a"),
        {"a"},
        frozenset("a"),
        b"a",
        bytearray(b"a"),
        memoryview(b"a"),
        Path("a"),
        PurePosixPath("/a"),
        object(),
    ),
    *(
        PureWindowsPath("C:/a"),
        DeceptiveText("/home/alice"),
        RaisingObject(),
        Colour.RED,
        OrderedDict(a=1),
        SimpleNamespace(a=1),
        1j,
    ),
    *(Decimal(1), range(3), iter([1]), print, int, ..., Exception("a"), 2**63, -(2**63) - 1, 10**5000),
]


@pytest.mark.parametrize("value", NON_JSON_VALUES, ids=lambda value: type(value).__name__)
def test_non_json_value_is_redacted_as_a_whole(value):
    assert redact(value) == REDACTED
    assert redact([value, {"a": value}]) == [REDACTED, {"a": REDACTED}]


def test_keys_that_are_not_texts_are_redacted():
    for key in (1, 1.5, None, True, (1, "a"), b"a", Path("a"), DeceptiveText("a"), RaisingObject()):
        assert redact({key: 1}) == {REDACTED: 1}


def test_redacted_keys_are_merged():
    assert redact({"/a": 1, "b": 2, "/c": 3, REDACTED: 4}) == {REDACTED: 1, "b": 2}


def test_numbers_booleans_and_none_pass():
    values = [0, -1, 2**63 - 1, -(2**63), 1.5, True, False, None, float("inf")]
    assert redact(values) == values
    assert [type(value) for value in redact(values)] == [type(value) for value in values]


def test_original_is_not_modified():
    value = {"a": ["/b"], "/c": {"d": "/e"}}
    assert redact(value) == {"a": [REDACTED], REDACTED: {"d": REDACTED}}
    assert value == {"a": ["/b"], "/c": {"d": "/e"}}


def size_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(size_of, inner))


def cyclic_value() -> list[Any]:
    one: list[Any] = ["a"]
    two: dict[str, Any] = {"one": one, "again": one}
    two["self"] = two
    one += [two, one, [two] * 50]
    return one


def deep(num_levels: int, wrap: Any) -> Any:
    value: Any = "/home/alice"
    for _ in range(num_levels):
        value = wrap(value)
    return value


HUGE_VALUES = {
    "cyclic": cyclic_value,
    "deep list": lambda: deep(100_000, lambda value: [value]),
    "deep dict": lambda: deep(100_000, lambda value: {"a": value}),
    "wide list": lambda: ["/a"] * 1_000_000,
    "wide dict": lambda: {f"a{index}": "b" for index in range(100_000)},
    "wide and deep": lambda: deep(12, lambda value: [value] * 10),
}


@pytest.mark.parametrize("name", HUGE_VALUES)
def test_no_value_is_too_large(name):
    value = HUGE_VALUES[name]()
    began_s = time.thread_time()
    copy = redact(value)
    assert time.thread_time() - began_s < 20  # at most a second
    assert size_of(copy) <= 5_001
    assert "alice" not in json.dumps(copy)
    assert redact(copy) == copy


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=30),
    st.sampled_from([*NAMES, *HUB_IDS]),
)  # fmt: skip
STRANGE = st.one_of(
    st.binary(max_size=8), st.builds(Path, PART), st.tuples(st.text()), st.frozensets(st.text()),
    st.dates(), st.decimals(),
    st.builds(DeceptiveText, st.text()), st.builds(RaisingObject), st.complex_numbers(), st.sets(st.integers()),
)  # fmt: skip
CANARY = "canary"
PLANTED = st.builds(lambda around, secret: f"{around}{secret}/{CANARY}", PLAIN_TEXT, SECRETS)
VALUES = st.recursive(
    st.one_of(SCALARS, STRANGE, PLANTED),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(SCALARS, PLANTED), inner, max_size=4),
        st.tuples(inner, inner),
    ),
    max_leaves=12,
)


@settings(max_examples=5 * settings.default.max_examples // 2)
@given(VALUES)
def test_any_value_becomes_json_without_planted_text(value):
    copy = redact(value, ORGANIZATIONS)
    assert CANARY not in json.dumps(copy, allow_nan=False)
    assert json.loads(json.dumps(copy)) == copy
    assert redact(copy, ORGANIZATIONS) == copy


@settings(max_examples=2 * settings.default.max_examples)
@given(SECRETS, AROUND)
def test_planted_secret_is_nowhere_in_copy(secret, around):
    text = around + secret
    value = {"a": [text, {text: text}, (text,), {text}, text.encode(errors="replace")], text: {"b": [[text]]}}
    assert redact(value, ORGANIZATIONS) == {
        "a": [REDACTED, {REDACTED: REDACTED}, REDACTED, REDACTED, REDACTED],
        REDACTED: {"b": [[REDACTED]]},
    }
