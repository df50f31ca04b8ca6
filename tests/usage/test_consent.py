"""The order of consent, inherited and stored choices, and the notice."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

from tachograph.exceptions import ConfigError
from tachograph.usage import JsonLines, TelemetryManager, UsageConfig, decide, set_choice
from tachograph.usage import _notice as notice
from tachograph.usage._consent import _CI_VARIABLES, _OFFLINE_VARIABLES, stricter
from tachograph.usage._folder import usage_folder
from tests.conftest import HANG_S

POLICIES = {"opt-in": "off", "local": "local", "opt-out": "on"}
OPT_OUT_VALUES = [
    "1",
    "true",
    "TRUE",
    " 1 ",
    "yes",
    "on",
    "Yes",
    "On",
    "2",
    "no",
    "off",
    "junk",
    "",
    " ",
    "-1",
    "0.0",
    "None",
]
OPT_IN_VALUES = ["0", "false", "False", " 0 ", "FALSE"]


def mode(policy="opt-out", choice=None, **environ):
    return decide("greyjacket", "GREY", policy, choice=choice, environ=environ).mode


@pytest.mark.parametrize("policy", POLICIES)
def test_either_variable_opts_out_of_every_policy(policy):
    for variable, value in itertools.product(["GREY_DO_NOT_TRACK", "DO_NOT_TRACK"], OPT_OUT_VALUES):
        assert mode(policy, **{variable: value}) == "off", (variable, value)
    assert mode(policy) == POLICIES[policy]


@pytest.mark.parametrize("policy", POLICIES)
def test_only_own_variable_opts_in(policy):
    for value in OPT_IN_VALUES:
        assert mode(policy, GREY_DO_NOT_TRACK=value) == "on", value
        assert mode(policy, DO_NOT_TRACK=value) == POLICIES[policy], value


ELSE = "the stored choice, else a circumstance, else the policy"
VARIABLES = {
    # (the app's variable, the generic one): what decides
    (None, None): ELSE, (None, "0"): ELSE, (None, "1"): "off", (None, "junk"): "off",
    ("0", None): "on", ("0", "0"): "on", ("0", "1"): "off", ("0", "junk"): "off",
    ("1", None): "off", ("1", "0"): "off", ("1", "1"): "off", ("1", "junk"): "off",
    ("junk", None): "off", ("junk", "0"): "off", ("junk", "1"): "off", ("junk", "junk"): "off",
}  # fmt: skip


@pytest.mark.parametrize("stored", [None, "off", "local", "on", "off for all apps"])
def test_truth_table_of_choice_variables_and_policy(stored):
    """Stored choice x the app's variable x the generic variable x policy, also in CI and offline."""
    if stored is not None:
        set_choice(stored.split()[0], None if "all" in stored else "greyjacket")
    circumstances = [{}, {"CI": "true"}, {"HF_HUB_OFFLINE": "1"}]
    for (own, generic), policy, circumstance in itertools.product(VARIABLES, POLICIES, circumstances):
        variables = {"GREY_DO_NOT_TRACK": own, "DO_NOT_TRACK": generic}
        environ = {name: value for name, value in variables.items() if value is not None} | circumstance
        if VARIABLES[own, generic] != ELSE:
            wanted = VARIABLES[own, generic], "environment"
        elif stored is not None:
            wanted = stored.split()[0], "stored"
        else:
            wanted = ("off", "circumstance") if circumstance else (POLICIES[policy], "policy")
        decision = decide("greyjacket", "GREY", policy, environ=environ)
        assert (decision.mode, decision.source) == wanted, environ
        # If nothing is explicit, an app with the policy opt-out shows its notice.
        assert decision.is_explicit is (decision.source in {"environment", "stored"})
        without = {name: value for name, value in environ.items() if name != "DO_NOT_TRACK"}
        assert stricter(decision.mode, decide("greyjacket", "GREY", policy, environ=without).mode) == decision.mode


def test_choice_of_program_precedes_all_other_sources():
    for kept, choice, own, generic in itertools.product(
        [None, "off", "on"], ["off", "local", "on", True, False], ["0", "1"], ["0", "1"]
    ):
        if kept is not None:
            set_choice(kept, "greyjacket")
        decision = decide(
            "greyjacket", "GREY", "local", choice=choice, environ={"GREY_DO_NOT_TRACK": own, "DO_NOT_TRACK": generic}
        )
        assert decision.mode == {True: "on", False: "off"}.get(choice, choice)
        assert decision.is_explicit


def test_generic_variable_sends_nothing_for_opted_out_user(tmp_path, monkeypatch):
    """The whole way to the endpoint, for each policy, with the choice stored and with none."""
    monkeypatch.setattr(notice, "sleep", lambda _s: None)
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    sent = tmp_path / "sent.jsonl"
    for stored, policy in [("off", "opt-in"), ("off", "local"), ("off", "opt-out"), (None, "opt-in"), (None, "local")]:
        app = f"grey-{policy}-{stored}".lower()
        if stored is not None:
            set_choice(stored, app)
        manager = TelemetryManager.configure(UsageConfig(app=app, endpoint=JsonLines(sent), consent=policy))
        manager.send_event("train-start", {"max_steps": 5})
        manager.shutdown(HANG_S)
        assert manager.decision.mode != "on", (stored, policy)
    assert not sent.exists()


@pytest.mark.parametrize("variable", [*_CI_VARIABLES, *_OFFLINE_VARIABLES])
def test_ci_and_offline_machines_are_off_by_default(variable):
    assert mode(**{variable: "1"}) == "off"
    assert mode(**{variable: "true"}) == "off"
    assert variable in decide("greyjacket", "GREY", "opt-out", environ={variable: "1"}).reason
    for unset in ("", "0", "false"):
        assert mode(**{variable: unset}) == "on"


def test_choice_for_all_apps_replaces_single_ones():
    set_choice("on", "greyjacket")
    assert (mode("opt-in"), decide("other", "OTHER", "opt-in", environ={}).mode) == ("on", "off")
    set_choice("off")
    assert (mode("opt-out"), decide("other", "OTHER", "opt-out", environ={}).mode) == ("off", "off")
    set_choice("local", "other")
    assert (mode("opt-out"), decide("other", "OTHER", "opt-out", environ={}).mode) == ("off", "local")
    assert "`tacho usage local other`" in decide("other", "OTHER", "opt-out", environ={}).reason


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"greyjacket": 1}', '{"greyjacket": "ON!"}', "\0\0", '{"*": ["on"]}', '{"*": null}',
        '{"*": "off", "greyjacket": null}',
    ],
)  # fmt: skip
def test_unreadable_choice_means_off(content):
    usage_folder().mkdir(parents=True)
    (usage_folder() / "choices.json").write_text(content)
    decision = decide("greyjacket", "GREY", "opt-out", environ={})
    assert decision.mode == "off"
    assert "choices.json" in decision.reason


def test_choice_for_one_app_keeps_broken_file():
    usage_folder().mkdir(parents=True)
    (usage_folder() / "choices.json").write_text("{")
    with pytest.raises(ConfigError, match="tacho usage off"):
        set_choice("on", "greyjacket")
    set_choice("off")
    assert json.loads((usage_folder() / "choices.json").read_text()) == {"*": "off"}


def test_user_without_home_folder_is_opted_out(monkeypatch, tmp_path):
    """Otherwise the choice would depend on the working directory."""
    monkeypatch.delenv("TACHO_USAGE_DIR")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "relative")
    monkeypatch.chdir(tmp_path)
    assert decide("greyjacket", "GREY", "opt-out", environ={}).mode == "off"
    with pytest.raises(ConfigError, match="no home folder; set TACHO_USAGE_DIR"):
        set_choice("off")
    manager = TelemetryManager.configure(UsageConfig(app="greyjacket"), choice="local")
    manager.send_event("train-start")
    manager.shutdown(HANG_S)
    assert manager.num_lost == 1
    assert list(tmp_path.iterdir()) == []


def test_usage_dir_expands_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TACHO_USAGE_DIR", "~/custom")
    assert usage_folder() == tmp_path / "custom"


def test_unreadable_choice_leaks_no_descriptor():
    (usage_folder() / "choices.json").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert decide("greyjacket", "GREY", "opt-out", environ={}).mode == "off"
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("choice", "is_inherited"), [("off", True), ("local", True), ("on", False)])
def test_child_process_inherits_opt_out(script, tmp_path, choice, is_inherited):
    out = script(
        """
        import subprocess, sys
        from tachograph.usage import JsonLines, TelemetryManager, UsageConfig
        config = UsageConfig(app="greyjacket", endpoint=JsonLines("sent"))
        is_child = sys.argv[1] == "child"
        manager = TelemetryManager.configure(config, choice=None if is_child else sys.argv[1])
        print(manager.decision.mode, manager.decision.source, flush=True)
        if not is_child:
            subprocess.run([sys.executable, __file__, "child"], check=True)
        """,
        choice,
        cwd=tmp_path,
        env={"GREYJACKET_DO_NOT_TRACK": "0"},
    ).ok()
    wanted = [choice, "choice"] if is_inherited else ["on", "environment"]
    assert out.split() == [choice, "choice", *wanted]
    assert not [name for name in os.environ if "USAGE_CHOICE" in name]


def test_inherited_opt_out_and_own_choice_stricter_wins(monkeypatch):
    """Two apps with one prefix, an inherited opt-out next to other sources, and a reset."""
    made = [UsageConfig(app=app, env_prefix="ACME", endpoint=JsonLines("x")) for app in ("acme-train", "acme-eval")]
    for config, choice in zip(made, ("off", "on"), strict=True):
        TelemetryManager.configure(config, choice=choice)
    assert [config.decide().mode for config in made] == ["off", "local"]
    TelemetryManager.reset()
    assert [config.decide().mode for config in made] == ["local", "local"]
    for inherited, environ, wanted in (
        ("local", {"DO_NOT_TRACK": "1"}, "off"),
        ("local", {"GREY_DO_NOT_TRACK": "0"}, "local"),
        ("local", {"CI": "1"}, "off"),
        ("off", {"GREY_DO_NOT_TRACK": "0"}, "off"),
        ("junk", {}, "off"),
    ):
        variables = {"TACHO_USAGE_CHOICE_GREY_JACKET": inherited, **environ}
        assert decide("grey-jacket", "GREY", "opt-out", environ=variables).mode == wanted
    monkeypatch.setenv("TACHO_USAGE_CHOICE_ACME_TRAIN", "off")
    TelemetryManager.configure(made[0], choice="off")
    TelemetryManager.reset()
    assert os.environ["TACHO_USAGE_CHOICE_ACME_TRAIN"] == "off"


@pytest.mark.parametrize("choice", ["maybe", "", "ON", 1, 2.0])
def test_invalid_choice_raises(choice):
    with pytest.raises(ConfigError, match="off, local, on"):
        decide("greyjacket", "GREY", "local", choice=choice, environ={})


def test_stored_choice_is_readable_by_owner_only():
    set_choice("off", "greyjacket")
    assert os.stat(usage_folder()).st_mode & 0o777 == 0o700
    assert os.stat(usage_folder() / "choices.json").st_mode & 0o777 == 0o600


def test_without_endpoint_nothing_is_sent(monkeypatch):
    monkeypatch.setenv("GREYJACKET_DO_NOT_TRACK", "0")
    manager = TelemetryManager.configure(UsageConfig(app="greyjacket"))
    assert manager.decision.mode == "local"
    assert "greyjacket has no endpoint" in manager.decision.reason


# The notice ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def opt_out(tmp_path):
    return UsageConfig(app="greyjacket", endpoint=JsonLines(tmp_path / "sent.jsonl"), consent="opt-out")


def test_opt_out_shows_notice_and_waits_ten_seconds(script, tmp_path):
    """The only test that waits for the real pause."""
    running = script(
        """
        import sys
        from tachograph.usage import JsonLines, TelemetryManager, UsageConfig, _manager
        _manager._EXIT_TIMEOUT_S = 240.0  # for the disk of a busy machine
        config = UsageConfig(app="greyjacket", endpoint=JsonLines(sys.argv[1]), consent="opt-out", docs_url="https://x.org/t")
        manager = TelemetryManager.configure(config)
        manager.send_event("train-start", {"max_steps": 5})
        """,
        tmp_path / "sent.jsonl",
    )
    began_s = time.monotonic()
    code, _out, err = running.wait()
    assert code == 0
    assert time.monotonic() - began_s >= 10
    assert (tmp_path / "sent.jsonl").exists()
    for text in (
        "sent.jsonl",
        "GREYJACKET_DO_NOT_TRACK=1",
        "tacho usage off greyjacket",
        "https://x.org/t",
        "10 seconds",
    ):
        assert text in err


def test_no_notice_with_explicit_choice_or_other_policy(opt_out, monkeypatch, capsys):
    monkeypatch.setattr(notice, "sleep", lambda _s: pytest.fail("it paused"))
    for environ in ({"GREYJACKET_DO_NOT_TRACK": "0"}, {"DO_NOT_TRACK": "1"}, {"CI": "1"}, {"RANK": "1"}):
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            TelemetryManager.configure(opt_out)
            TelemetryManager.reset()
    for choice in ("on", "off", "local", True, False):
        TelemetryManager.configure(opt_out, choice=choice)
        TelemetryManager.reset()
    set_choice("on", "greyjacket")
    TelemetryManager.configure(opt_out)
    assert capsys.readouterr().err == ""


def test_notice_to_devnull_does_not_count(script, tmp_path):
    source = """
        from tachograph.usage import JsonLines, TelemetryManager, UsageConfig
        config = UsageConfig(app="greyjacket", endpoint=JsonLines("sent"), consent="opt-out")
        decision = TelemetryManager.configure(config).decision
        open("decided", "w").write(f"{decision.mode}: {decision.reason}")
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(source))
    subprocess.run([sys.executable, path], cwd=tmp_path, stderr=subprocess.DEVNULL, check=True)
    assert (tmp_path / "decided").read_text() == "local: the notice could not be shown, so nothing is sent"


def test_child_process_does_not_repeat_notice(opt_out, monkeypatch, capsys):
    pauses = []
    monkeypatch.setattr(notice, "sleep", pauses.append)
    first = TelemetryManager.configure(opt_out)
    run_id = first.run_id
    assert pauses == [10.0]
    TelemetryManager._instances.clear()  # like a child process, which has only the environment
    assert TelemetryManager.configure(opt_out).run_id == run_id
    assert pauses == [10.0]
    assert capsys.readouterr().err.count("anonymous usage reports") == 1


def test_opted_out_user_has_no_files(opt_out, monkeypatch):
    for name in ("DO_NOT_TRACK", "CI"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            manager = TelemetryManager.configure(opt_out)
            manager.send_event("train-start")
            TelemetryManager.reset()
    assert not usage_folder().exists()
    config = UsageConfig(app="greyjacket", endpoint="https://127.0.0.1:9", api_key="phc_x", consent="opt-in")
    TelemetryManager.configure(config).send_event("train-start")
    TelemetryManager.reset()
    assert [path.name for path in usage_folder().rglob("*.json*")] == ["app.json"]  # so that `status` lists the app
