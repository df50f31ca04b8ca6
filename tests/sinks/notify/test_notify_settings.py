"""Settings of notifications: read from every source, validated at setup, and never quoted if secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.sinks.notify import (
    CHANNELS,
    EVENTS,
    PLACEHOLDERS,
    Message,
    NotifySettings,
    config_warnings,
    notify_table,
    open_channels,
    resolve_notify,
)

URL = "https://hooks.example.org/services/canary-path"


def test_precedence_of_notify_sources(monkeypatch):
    section = {"slack": {"url": f"{URL}/section"}, "burst": 3}
    assert resolve_notify(None, section).slack.url.reveal() == f"{URL}/section"
    monkeypatch.setenv("TACHO_NOTIFY_SLACK_URL", f"{URL}/environment")
    assert resolve_notify(None, section).slack.url.reveal() == f"{URL}/environment"
    assert resolve_notify({"slack": {"url": f"{URL}/argument"}}, section).slack.url.reveal() == f"{URL}/argument"
    assert resolve_notify({"slack": f"{URL}/short"}, section).slack.url.reveal() == f"{URL}/short"
    assert resolve_notify({}, section).burst == 3


def test_environment_alone_configures_channels(monkeypatch):
    given = {
        "LARK_URL": URL, "LARK_SECRET": "s1", "LARK_STYLE": "text", "DISCORD_URL": URL, "WEBHOOK_URL": URL,
        "WEBHOOK_TEMPLATE": '{"text": "{title}"}', "EMAIL_HOST": "smtp.x.org", "EMAIL_TO": "a@x.org, b@x.org",
        "EMAIL_USER": "me@x.org", "EMAIL_PASSWORD": "p", "EMAIL_PORT": "2525", "ON": "error,alert",
        "MILESTONES": "train_loss < 0.5; step >= 10", "MIN_SEVERITY": "critical", "PER_MINUTE": "2.5",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(f"TACHO_NOTIFY_{name}", value)
    found = resolve_notify()
    assert [channel.name for channel in open_channels(found)] == ["lark", "discord", "webhook", "email"]
    assert (found.lark.secret.reveal(), found.lark.style) == ("s1", "text")
    assert (found.email.to, found.email.port, found.email.sender) == (("a@x.org", "b@x.org"), 2525, "me@x.org")
    assert found.on == ("error", "alert")
    assert found.milestones == ("train_loss < 0.5", "step >= 10")
    assert (found.min_severity, found.per_minute, found.webhook.template) == ("critical", 2.5, {"text": "{title}"})
    monkeypatch.setenv("TACHO_NOTIFY_ENABLED", "off")
    assert open_channels(resolve_notify()) == []


def test_false_overrides_all_other_settings(monkeypatch):
    monkeypatch.setenv("TACHO_NOTIFY_SLACK_URL", URL)
    assert open_channels(resolve_notify(False)) == []
    assert open_channels(resolve_notify(None, False)) == []
    assert len(open_channels(resolve_notify(True))) == 1


def test_no_channel_is_opened_by_default():
    assert open_channels(resolve_notify()) == []
    assert open_channels(resolve_notify({"slack": {"url": ""}, "lark": None, "milestones": ["a < 1"]})) == []


def test_yaml_key_on_parsed_as_true_is_accepted():
    section = yaml.safe_load("on: [error]\nslack: {url: 'https://x.org/y'}")
    assert True in section
    assert resolve_notify(None, section).on == ("error",)


def test_value_may_refer_to_environment_variable(monkeypatch):
    monkeypatch.setenv("MY_HOOK", URL)
    assert resolve_notify({"slack": {"url": {"env": "MY_HOOK"}}}).slack.url.reveal() == URL
    with pytest.raises(ConfigError, match="notify.slack.url: the environment variable 'NO_HOOK' is not set"):
        resolve_notify({"slack": {"url": {"env": "NO_HOOK"}}})


MAIL = {"host": "smtp.x.org", "to": "a@x.org", "sender": "t@x.org"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slak": URL}, "unknown key notify.slak; did you mean 'slack'?"),
        ({"slack": {"ulr": URL}}, "unknown key notify.slack.ulr; did you mean 'url'?"),
        (
            {"slack": {"url": "hooks.example.org/canary"}},
            "notify.slack.url: expected an address that starts with https://",
        ),
        ({"slack": {"url": "file:///etc/canary"}}, "notify.slack.url: expected an address that starts with https://"),
        ({"slack": {"url": "https:///canary"}}, "notify.slack.url: expected an address with a host name"),
        ({"slack": {"url": "https://x.org:canary/"}}, "notify.slack.url: not a valid address"),
        ({"slack": {"url": "https://[canary/"}}, "notify.slack.url: not a valid address"),
        ({"slack": {"url": "https://me:canary@x.org/"}}, "notify.slack.url: a user name or password before"),
        ({"slack": {"url": "https://x.org/canary\nHost: y"}}, "notify.slack.url: contains characters"),
        ({"slack": {"url": 7}}, "notify.slack.url: expected a string, got int"),
        ({"slack": 7}, "notify.slack: expected a section with url"),
        (
            {"lark": {"secret": "canary"}},
            "notify.lark.secret: has no effect without lark.url; set notify.lark.url or",
        ),
        ({"lark": {"url": URL, "secret": "can\nary"}}, "notify.lark.secret: contains a line break"),
        ({"lark": {"url": URL, "style": "crad"}}, "notify.lark.style: expected one of card, text, got 'crad'; did"),
        ({"webhook": {"url": URL, "template": "{canary"}}, "notify.webhook.template: not valid JSON"),
        ({"webhook": {"url": URL, "template": {"a": "{rnu}"}}}, "unknown placeholder {rnu}; did you mean 'run'?"),
        ({"webhook": {"url": URL, "template": {"a": "{run.x}"}}}, "unknown placeholder {run.x}"),
        ({"webhook": {"url": URL, "template": {"a": object()}}}, "expected JSON values, got object"),
        ({"milestones": ["train_loss ~ 0.5"]}, "notify.milestones: 'train_loss ~ 0.5' is not a milestone"),
        ({"milestones": 5}, "notify.milestones: expected a list of strings, got 5"),
        ({"on": ["finish"]}, "notify.on: unknown event 'finish'"),
        ({"min_severity": URL}, "notify.min_severity: expected one of info, warning, critical, got [masked]"),
        ({"burst": 0}, "notify.burst: expected `int` >= 1, got 0"),
        ({"timeout_s": True}, "notify.timeout_s: expected `float`, got True"),
        ({"dashboard_url": "runs.x.org"}, "notify.dashboard_url: expected an address that starts with"),
        (
            {"dashboard_url": "https://runs.x.org/?token=canary"},
            "notify.dashboard_url: expected an address without",
        ),
        ({"email": {"to": "a@x.org"}}, "notify.email.to: has no effect without email.host"),
        (
            {"email": {"host": "smtp.x.org"}},
            "notify.email has no recipients: set notify.email.to or TACHO_NOTIFY_EMAIL_TO",
        ),
        ({"email": {**MAIL, "to": ["a@x.org", "nobody"]}}, "notify.email: 'nobody' is not an e-mail address"),
        ({"email": {**MAIL, "to": ["a@x.org\nBcc: b@x.org"]}}, "is not an e-mail address"),
        ({"email": {**MAIL, "sender": None}}, "notify.email has no sender"),
        ({"email": {**MAIL, "user": "me"}}, "notify.email has a user but no password"),
        ({"email": {**MAIL, "password": "canary"}}, "notify.email has a password but no user"),
        ({"email": {**MAIL, "host": "https://x/canary"}}, "notify.email.host: expected the host name of a mail server"),
        (URL, "notify: expected a section such as"),
    ],
)
def test_invalid_settings_are_rejected_without_secrets(logs, given, message):
    with pytest.raises(ConfigError) as failure:
        tachograph.init("x", log_dir=str(logs), notify=given)
    assert message in str(failure.value)
    assert "canary" not in str(failure.value)
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__ or failure.value.__context__ is None
    assert not logs.exists()


def test_errors_name_the_source(monkeypatch):
    with pytest.raises(ConfigError, match=re.escape("telemetry.notify.slack.url: expected an address")):
        tachograph.init_from_config({"telemetry": {"notify": {"slack": "canary"}}})
    with pytest.raises(ConfigError, match="unknown key telemetry.notfy; did you mean 'notify'"):
        tachograph.init_from_config({"telemetry": {"notfy": {}}})
    monkeypatch.setenv("TACHO_NOTIFY_SLACK_URL", "canary")
    with pytest.raises(ConfigError, match="environment variable TACHO_NOTIFY_SLACK_URL: expected an address"):
        tachograph.init("x")


def test_invalid_config_file_is_not_quoted(tmp_path):
    (tmp_path / "bad.yaml").write_text("telemetry:\n  notify:\n    slack: {url: 'https://x.org/canary-path}\n")
    with pytest.raises(ConfigError, match="is not valid YAML at line") as failure:
        tachograph.init_from_config(tmp_path / "bad.yaml")
    assert "canary" not in str(failure.value)
    assert failure.value.__suppress_context__


def test_secrets_are_not_in_repr():
    given = {"lark": {"url": URL, "secret": "canary-1"}, "webhook": {"url": URL, "authorization": "canary-2"}}
    found = resolve_notify({**given, "email": {**MAIL, "user": "me", "password": "canary-3"}})
    texts = [repr(found), str(found), f"{found.lark.url} {found.lark.secret!r}", repr(open_channels(found))]
    assert "canary" not in "".join(texts)


def test_insecure_settings_are_warned_about():
    found = resolve_notify({"lark": URL, "webhook": {"url": URL, "secret": "s"}})
    assert config_warnings(found) == [
        "notify.lark has no secret, so its messages are not signed: set notify.lark.secret or TACHO_NOTIFY_LARK_SECRET"
    ]
    mail = resolve_notify({"email": {**MAIL, "user": "me", "password": "p", "security": "plain"}})
    assert "unencrypted" in config_warnings(mail)[0]


def test_all_settings_are_documented():
    page = (Path(__file__).parents[3] / "docs" / "notifications.md").read_text(encoding="utf-8")
    for row in notify_table():
        assert f"| `{row.name}` | `{row.env}` |" in page
    for name in (*EVENTS, *PLACEHOLDERS):
        assert f"| `{name}` |" in page
    known = set(Message.__struct_fields__) - {"key"} | {"id", "text"}
    assert known == set(PLACEHOLDERS)


def test_documented_example_is_valid(monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "notifications.md").read_text(encoding="utf-8")
    example = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0].replace("…", "x"))
    monkeypatch.setenv("LARK_SECRET", "s")
    monkeypatch.setenv("SMTP_PASSWORD", "p")
    found = resolve_notify(None, example["telemetry"]["notify"])
    assert [channel.name for channel in open_channels(found)] == ["lark", "email"]
    assert len(found.milestones) == 3


def test_table_lists_every_setting():
    rows = {row.name: row for row in notify_table()}
    own = [name for name in NotifySettings.__struct_fields__ if name not in CHANNELS]
    inner = [f"{channel}.{name}" for channel in CHANNELS for name in CHANNELS[channel].__struct_fields__]
    assert list(rows) == own + inner
    assert all(row.doc.endswith(".") for row in rows.values())
    assert rows["lark.secret"].env == "TACHO_NOTIFY_LARK_SECRET"
    secrets = {name for name, row in rows.items() if row.is_secret}
    assert {"url", "secret", "password", "authorization"} == {name.partition(".")[2] for name in secrets}
