"""The fields: which values they accept and what they return."""

from __future__ import annotations

import enum
import math
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.exceptions import ConfigError
from tachograph.usage import (
    Choice,
    Count,
    Device,
    Flag,
    Group,
    HubId,
    JsonLines,
    ListOf,
    Measure,
    ModelType,
    OtlpLogs,
    PostHog,
    Schema,
    Seconds,
    Size,
    UsageConfig,
    Version,
    describe,
)
from tachograph.usage._fields import FIELD_TYPES, INVALID, SchemaField, clean_fields, describe_fields
from tachograph.usage._schemas import SCHEMAS

ORGANIZATIONS = ("google", "meta-llama")


def clean(field, value):
    return field.clean(value, ORGANIZATIONS)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        (Flag(""), True, True), (Flag(""), False, False), (Flag(""), 1, INVALID), (Flag(""), "true", True),
        (Flag(""), "yes", INVALID),
        (Count(""), 4096, 4096), (Count(""), 0, 0), (Count(""), 7, 7), (Count(""), 16.0, 16), (Count(""), 0.4, 0),
        (Count(""), 8_030_261_248, 8_000_000_000), (Count(""), 14155550123, 14_000_000_000), (Count(""), -1, INVALID),
        (Count(""), True, INVALID), (Count(""), "12", 12), (Count(""), "12 of alice", INVALID),
        (Count(""), 10**30, INVALID), (Count(""), math.nan, INVALID), (Count(""), 11, 10), (Count(""), 4321, 4096),
        (Count(""), np.int64(137), 144), (Count(""), 10**18, 10**18), (Count(""), 999_999, 1_000_000),
        (Count(""), 1_048_576, 1_000_000), (Count(""), 1_236_000_000, 1_250_000_000),
        (Size(""), 139.8 * 2**30, 144), (Size(""), 23 * 2**30, 24), (Size(""), 2**29, 0.5), (Size(""), 1, 0),
        (Size(""), 0, 0), (Size(""), 1.2 * 2**30, 1.25), (Size(""), 0.29 * 2**30, 0.3),
        (Seconds(""), 754, 768), (Seconds(""), 0.3, 0.3), (Seconds(""), 0.0001, 0), (Seconds(""), -1.0, INVALID),
        (Measure(""), 0.012345, 0.012), (Measure(""), -3.14159, -3.1), (Measure(""), 0, 0.0), (Measure(""), 2e-5, 2e-5),
        (Measure(""), math.nan, "NaN"), (Measure(""), math.inf, "Infinity"), (Measure(""), -math.inf, "-Infinity"),
        (Measure(""), np.float32(0.5), 0.5), (Measure(""), np.float32("nan"), "NaN"), (Measure(""), None, INVALID),
        (Measure(""), 128, 128.0), (Measure(""), -256, -256.0), (Measure(""), 127, 130.0), (Measure(""), 1.13, 1.1),
        (Measure(""), "3e-4", 3e-4), (Measure(""), "0x1f", INVALID), (Measure(""), True, INVALID),
        (Choice("", "lora", "QLoRA"), "LORA", "lora"), (Choice("", "lora", "QLoRA"), " qlora ", "QLoRA"),
        (Choice("", "lora"), "acme-secret", "other"), (Choice("", "lora"), "", INVALID),
        (Choice("", "lora"), None, INVALID),
        (Choice("", "bfloat16", also={"bf16": "bfloat16"}), "BF16", "bfloat16"),
        (SCHEMAS["config-loaded"].fields["dtype"], "torch.float16", "float16"),
        (Choice("", "lora"), ["lora"], INVALID), (Choice("", "lora"), Path("lora"), INVALID),
        (Version(""), "2.13.0", "2.13.0"), (Version(""), "2.11.0+cu128", "2.11.0+cu128"),
        (Version(""), "6.4+rocm6.4", "6.4+rocm6.4"),
        (Version(""), "0.13.0.dev0+g1a2b3c4", "0.13.0.dev0"), (Version(""), "5.0.0rc1", "5.0.0rc1"),
        (Version(""), "1.0+alice.at.acme", "1.0"), (Version(""), "v1.0", INVALID),
        (Version(""), "1.0 /home/alice", INVALID),
        (Version(""), "1.0\n", INVALID), (Version(""), "4155550123", INVALID),
        (HubId(""), "google/gemma-3", "google/gemma-3"),
        (HubId(""), "Meta-Llama/Llama-3.1-8B", "Meta-Llama/Llama-3.1-8B"),
        (HubId(""), "acme/secret", "[redacted]"), (HubId(""), "google", "[redacted]"),
        (HubId(""), "google/a/b", "[redacted]"),
        (HubId(""), "google/../x", "[redacted]"), (HubId(""), "google/x\n", "[redacted]"),
        (HubId(""), "./google/x", "[redacted]"),
        (HubId(""), Path("google/x"), "[redacted]"), (HubId(""), ("google/x",), "[redacted]"), (HubId(""), "", INVALID),
        (HubId(""), None, INVALID), (HubId(""), "C:\\google\\x", "[redacted]"),
        (HubId(""), "google/" + "x" * 500, "[redacted]"),
        (Device(""), "NVIDIA H200", "NVIDIA H200"), (Device(""), "NVIDIA A100-SXM4-80GB", "NVIDIA A100"),
        (Device(""), "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA RTX 4090 Laptop"),
        (Device(""), "Tesla T4", "NVIDIA T4"),
        (Device(""), "AMD Instinct MI300X", "AMD MI300X"), (Device(""), "Apple M3 Max", "Apple M3 Max"),
        (Device(""), "NVIDIA GB200", "NVIDIA GB200"), (Device(""), "NVIDIA L40S", "NVIDIA L40S"),
        (Device(""), "acme m1", "other"), (Device(""), "Atlas 800I A2", "other"), (Device(""), "Orin", "NVIDIA Orin"),
        (Device(""), "Ascend910B3", "Ascend 910B3"), (Device(""), "Intel(R) Arc(TM) A770 Graphics", "Intel Arc A770"),
        (Device(""), "NVIDIA A100 of alice@acme.com", "NVIDIA A100"), (Device(""), "", INVALID),
        (Device(""), 3, INVALID),
        (ListOf("", Flag("")), [True, "x", False], [True, False]), (ListOf("", Flag("")), "True", [True]),
        (ListOf("", Count(""), 2), (1, 2, 3), [1, 2]), (ListOf("", Flag("")), {True}, INVALID),
        (ListOf("", Flag("")), [], INVALID),
        (Group("", {"a": Flag("")}), {"a": True, "b": "secret"}, {"a": True}),
        (Group("", {"a": Flag("")}), {"b": 1}, INVALID),
        (Group("", {"a": Flag("")}), Namespace(a=True), INVALID),
    ],
)  # fmt: skip
def test_field_cleans_value(field, value, wanted, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    got = clean(field, value)
    assert got == wanted
    if got is not INVALID:
        assert field.clean_stored(got, ORGANIZATIONS) == got, "a stored value passes its field again"
    assert type(got) is type(wanted) or got == wanted == 0


def test_enum_is_cleaned_by_value():
    kind = enum.Enum("kind", {"LORA": "LORA", "MINE": "/home/alice"})
    assert clean(Choice("", "LORA"), kind.LORA) == "LORA"
    assert clean(Choice("", "LORA"), kind.MINE) == "other"


def test_hub_id_that_is_a_local_path_is_redacted(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert clean(HubId(""), "google/gemma-3") == "google/gemma-3"
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "gemma-3").symlink_to("nowhere")
    assert clean(HubId(""), "google/gemma-3") == "[redacted]"


def test_only_shipped_model_types_are_sent():
    transformers = pytest.importorskip("transformers")

    class AcmeConfig(transformers.PretrainedConfig):
        model_type = "acme-merger"

    transformers.AutoConfig.register("acme-merger", AcmeConfig)
    assert clean(ModelType(""), "llama") == "llama"
    assert clean(ModelType(""), "acme-merger") == "other"
    assert clean(ModelType(""), None) is INVALID


def test_failing_value_is_dropped():
    class Hostile:
        def __float__(self):
            raise RuntimeError("/home/alice")

        def __eq__(self, _other):
            raise RuntimeError("/home/alice")

        __hash__ = None

    values = {"a": Hostile(), "b": 3, "unknown": "x"}
    assert clean_fields({"a": HubId(""), "b": Count("")}, values, ()) == {"b": 3}


@pytest.mark.parametrize("shift", range(20))
def test_powers_of_two_and_their_multiples_are_kept(shift):
    """Ranks, batches, world sizes, layers, hidden sizes, lengths."""
    for digit in range(1, 10):
        if digit << shift < 10**6:
            assert clean(Count(""), digit << shift) == digit << shift


def test_usual_values_of_training_are_kept():
    world_sizes = [1, 2, 3, 4, 6, 8, 16, 24, 32, 48, 64, 72, 96, 128, 256, 512, 1024, 4096, 16384]
    decimal = [10, 12, 15, 20, 25, 30, 50, 100, 120, 150, 200, 250, 300, 500, 1000, 1200, 1500, 2500, 10_000, 100_000]
    parameters = [500_000_000, 1_500_000_000, 3 * 10**9, 7 * 10**9, 8 * 10**9, 14 * 10**9, 32 * 10**9, 70 * 10**9]
    for number in (*world_sizes, *decimal, *parameters):
        assert clean(Count(""), number) == number


@pytest.mark.parametrize(
    ("gib", "wanted"),
    # What drivers and kernels report for devices and machines with a memory of this size.
    [
        (7.6, 8), (11.9, 12), (15.8, 16), (22.3, 24), (23.6, 24), (31.7, 32), (39.4, 40), (44.4, 48), (47.4, 48),
        (79.2, 80), (79.6, 80), (94.5, 96), (178.4, 192), (191.7, 192), (62.8, 64), (125.7, 128), (251.6, 256),
        (503.5, 512), (1007.4, 1024), (2015.3, 2048),
    ],
)  # fmt: skip
def test_memory_is_sent_as_its_nominal_size(gib, wanted):
    assert clean(Size(""), gib * 2**30) == wanted


NUMBERS = st.one_of(st.integers(0, 10**18), st.floats(0, 1e18), st.floats(0, 1e4))


@given(NUMBERS, st.sampled_from([Count, Size, Seconds]))
def test_rounding_is_near_and_stable(number, kind):
    got = clean(kind(""), number)
    exact = number / 2**30 if kind is Size else math.floor(number) if kind is Count else number
    assert got == pytest.approx(exact, rel=0.15 if exact >= 1 else 0.35, abs=0.001)
    assert kind("").clean_stored(got, ORGANIZATIONS) == got


@given(st.integers(1, 10**17), st.sampled_from([Count, Seconds]))
def test_unusual_number_shares_its_bucket(number, kind):
    """A decade has about thirty buckets, so that no exact value is revealed."""
    decade = [clean(kind(""), number * step / 1000) for step in range(1000, 10_000, 3)]
    assert decade == sorted(decade)
    assert len(set(decade)) <= 32


@given(st.text(), st.sampled_from([field for field in FIELD_TYPES if field not in (Choice, Group, ListOf)]))
def test_no_field_passes_on_free_text(text, kind):
    got = kind("").clean(text, ORGANIZATIONS)
    if isinstance(got, str):
        assert got in ("other", "[redacted]") or (kind in (Version, HubId, Device, ModelType) and len(got) < 100)
    else:
        assert got is INVALID or isinstance(got, (bool, int, float))


# Setup ---------------------------------------------------------------------------------------------------------------


class Anything(SchemaField):
    kind = "anything"

    def clean(self, value, organizations):
        return value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"app": "Axolotl"}, "app='Axolotl': expected a name in lower case"),
        ({"app": "../x"}, "expected a name in lower case"),
        ({"env_prefix": "axo"}, "env_prefix='axo': expected upper case"),
        ({"consent": "optout"}, "consent='optout': expected one of opt-in, local, opt-out; did you mean 'opt-out'?"),
        ({"consent": "opt-out"}, "needs an endpoint"),
        ({"endpoint": "http://example.com", "api_key": "phc_x"}, "https://"),
        ({"endpoint": "https://user:secret@example.com", "api_key": "phc_x"}, "without user, password"),
        ({"endpoint": "https://example.com?x=1", "api_key": "phc_x"}, "without user, password, query"),
        ({"endpoint": "ftp://example.com", "api_key": "phc_x"}, "https://"),
        ({"endpoint": "http://localhost.example.com", "api_key": "phc_x"}, "https://"),
        ({"endpoint": "https://eu.i.posthog.com"}, "needs api_key"),
        ({"endpoint": "https://example.com", "api_key": 5}, "api_key=5: expected a string: the project's public key"),
        ({"endpoint": "https://example.com", "api_key": "phx_secret"}, "private key of PostHog"),
        ({"endpoint": 3}, "endpoint=3: expected the URL"),
        ({"endpoint": PostHog("https://example.com", "phc_x"), "api_key": "phc_y"}, "api_key needs a URL"),
        ({"organizations": "google"}, "organizations='google': expected a list"),
        ({"organizations": ["google/x"]}, "without spaces or slashes"),
        ({"packages": ["a b"]}, "without spaces or slashes"),
        ({"config_map": {"basemodel": "x"}}, "no field 'basemodel' in config-loaded; did you mean 'base_model'?"),
        ({"events": {"My Event": {}}}, "expected a name such as 'dataset-packed'"),
        ({"events": {"error": {"message": Flag("")}}}, "'error' is built from an exception"),
        ({"events": {"x": {"y": "text"}}}, "expected a field, one of Flag, Count"),
        ({"events": {"x": {"y": Anything("")}}}, "expected a field, one of Flag, Count"),
        ({"events": {"x": {"y": ListOf("", Anything(""))}}}, "expected a field, one of Flag, Count"),
        ({"events": {"x": {"y": Group("", {"z": Anything("")})}}}, "expected a field, one of Flag, Count"),
        ({"events": {"x": {"Y": Flag("")}}}, "expected a name such as 'num_packs'"),
        ({"events": {"x": [1]}}, "expected a mapping from names to fields"),
        ({"events": {"x": {"y": Choice("", "ok", "/home/alice/x")}}}, "looks private and would be redacted"),
        ({"events": {"x": {"y": Choice("Words.")}}}, "expected words to choose from"),
        ({"events": {"x": {"y": Choice("Words.", ["a", "b"])}}}, "expected words to choose from"),
        ({"events": {"x": {"y": Count("")}}}, "describe the field for your users"),
        ({"events": {"train-start": {"max_steps": Flag("Steps.")}}}, "the field 'max_steps' exists already"),
        ({"config_map": {"lora_rank": "lora..r"}}, "expected a path such as 'lora.rank' or a function, got 'lora..r'"),
        ({"endpoint": 3, "api_key": "phc_x"}, "endpoint=3: expected the URL"),
        ({"endpoint": "https://eu.i.posthog.com/i/v0/e/", "api_key": "phc_x"}, "takes single events"),
        ({"docs_url": "javascript:x"}, "https://"),
    ],
)  # fmt: skip
def test_invalid_config_raises_at_once(arguments, message):
    with pytest.raises(ConfigError) as error:
        UsageConfig(**{"app": "greyjacket", **arguments})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: JsonLines(None), "JsonLines(None): expected the path of a file"),
        (lambda: OtlpLogs("https://example.com", headers=7), "headers=7: expected a mapping"),
        (
            lambda: OtlpLogs("https://example.com", headers={"a": "b\nc"}),
            "expected a mapping from names to single-line strings",
        ),
    ],
)
def test_invalid_endpoint_raises_at_once(make, message):
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


def test_endpoint_url_may_include_path():
    for url in (
        "https://example.com",
        "https://example.com/",
        "https://example.com/batch",
        "https://example.com/batch/",
    ):
        assert PostHog(url).name == "https://example.com/batch/"
    for url in ("https://example.com:4318", "https://example.com:4318/v1/logs", "https://example.com:4318/v1/logs/"):
        assert OtlpLogs(url).name == "https://example.com:4318/v1/logs"


def test_describe_explains_app_to_users():
    schema = Schema("After the dataset was packed.", {"num_packs": Count("Packs.")})
    config = UsageConfig(app="greyjacket", organizations=["google"], events={"packed": schema})
    text = describe(config)
    for part in (
        "The policy of greyjacket is to record on this machine",
        "set `GREYJACKET_DO_NOT_TRACK=1` to turn it off",
        "if their owner is one of: google",
        "### `packed`\n\nAfter the dataset was packed.\n",
        "| `num_packs` | count | Packs. |",
    ):
        assert part in text


def test_custom_fields_extend_builtin_events():
    config = UsageConfig(
        app="my-app",
        events={"config-loaded": {"uses_magic": Flag("Magic.")}, "dataset-packed": {"num_packs": Count("Packs.")}},
        config_map={"uses_magic": "magic.on", "base_model": "model"},
    )
    assert config.env_prefix == "MY_APP"
    assert config.packages == ("my_app",)
    assert "uses_magic" in config.schemas["config-processed"].fields
    assert set(config.schemas["dataset-packed"].fields) == {"num_packs"}
    assert "dataset-packed" not in SCHEMAS
    assert "uses_magic" not in SCHEMAS["config-loaded"].fields


def test_every_field_is_documented():
    for event, schema in SCHEMAS.items():
        assert schema.doc
        for name, about in describe_fields(schema.fields).items():
            assert about["doc"], (event, name)
            assert about["kind"], (event, name)
