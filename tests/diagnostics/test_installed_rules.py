"""Rules of other packages, found through entry points."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tachograph
from tachograph.diagnostics import RULES, Rule, resolve_rules
from tachograph.exceptions import ConfigError
from tests.cli.test_cli import tacho
from tests.conftest import Script, lines_of

DOCS = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text(encoding="utf-8")
QUIET = {"git": False, "console": False, "system_interval_s": 0}

Install = Callable[[str, str], None]


def documented(language: str, text: str) -> str:
    """Return the code block of the documentation page that contains a text."""
    (block,) = [code for code in re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL) if text in code]
    return block


LABEL_LEAK = documented("python", "class LabelLeak(Rule)")
ENTRY_POINT = documented("toml", "tachograph.rules").splitlines()[1].replace('"', "")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a distribution `acme-rules` with one module and one entry point."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(site))
    # The catalog searches installed packages once per process.
    monkeypatch.setattr(RULES, "_names", None)
    monkeypatch.setattr(RULES, "_rules", {})
    monkeypatch.setattr(RULES, "_skipped_names", set())

    def write(source: str, entry_point: str) -> None:
        (site / "acme_rules.py").write_text(source, encoding="utf-8")
        info = site / "acme_rules-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rules\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tachograph.rules]\n{entry_point}\n")

    yield write
    sys.modules.pop("acme_rules", None)


def minimal(**attributes: object) -> str:
    """Return the source of a rule `acme` with some attributes."""
    fields = {"name": "acme", "meaning": "Meaning.", "advice": ("Advice.",)} | attributes
    body = "".join(f"    {name} = {value!r}\n" for name, value in fields.items())
    return f"from tachograph.diagnostics import Rule\nclass Acme(Rule):\n    'Finds nothing.'\n{body}"


def test_documented_rule_is_in_the_command(install: Install) -> None:
    install(LABEL_LEAK, ENTRY_POINT)
    listed = tacho("doctor", "--rules")
    assert "label_leak" in listed and "The loss is suspiciously close to zero." in listed
    explained = tacho("doctor", "--explain", "label_leak")
    assert "label_leak.floor" in explained and "Level of the loss below which the rule fires." in explained


def test_documented_rule_writes_alerts(install: Install, logs: Path) -> None:
    install(LABEL_LEAK, ENTRY_POINT)
    assert list(RULES)[-1] == "label_leak" and len(RULES) == len(list(RULES)) > 29
    with tachograph.init("x", log_dir=logs, **QUIET) as run:
        for step in range(96):
            run.log(train_loss=(0.001 if 32 <= step < 64 else 0.5) * (1 + step % 3), step=step)
    records = [record for record in lines_of(logs / "x") if record.get("rule") == "label_leak"]
    assert [(record["status"], record["global_step"]) for record in records] == [("opened", 47), ("resolved", 79)]
    assert records[0]["title"] == "Loss is only 0.002 at step 47" and records[0]["evidence"]["metric"] == "train_loss"
    assert records[1]["outcome"] == "the loss is back at 1"
    alerts = tachograph.diagnose(logs / "x", rules={"label_leak": {"floor": 1e-9}}).alerts
    assert "label_leak" not in {alert.rule for alert in alerts}


def test_installed_rules_come_after_built_in_ones(install: Install) -> None:
    before = [name for name in RULES if RULES.is_built_in(name)]
    RULES._names = None
    install(minimal(), "acme = acme_rules:Acme")
    assert list(RULES) == [*before, "acme"] == list(resolve_rules(None))
    assert "acme" in RULES and issubclass(RULES["acme"], Rule)
    assert "no_such_rule" not in RULES and RULES.get("no_such_rule") is None


def test_installed_rule_cannot_replace_a_built_in_one(install: Install) -> None:
    install(minimal(name="hang"), "hang = acme_rules:Acme")
    assert RULES["hang"].__module__ == "tachograph.diagnostics.rules.hang"


def test_broken_package_is_skipped_with_one_warning(
    install: Install, logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("import no_such_module", "acme = acme_rules:Acme")
    with caplog.at_level(logging.WARNING, "tachograph"):
        with tachograph.init("x", log_dir=logs, **QUIET) as run:
            run.log(train_loss=1.0, step=0)
        assert "acme" not in resolve_rules({"plateau": False})
        assert "acme" not in list(RULES)
    (warning,) = [record.getMessage() for record in caplog.records if "acme" in record.getMessage()]
    assert warning == (
        "skipped an installed rule: rule 'acme' of package 'acme-rules' cannot be loaded: ModuleNotFoundError: "
        "No module named 'no_such_module'. Turn it off with rules={'acme': False}."
    )


@pytest.mark.parametrize("setting", [True, {"floor": 1}])
def test_naming_a_broken_rule_raises(install: Install, logs: Path, setting: object) -> None:
    install("raise RuntimeError('boom')", "acme = acme_rules:Acme")
    with pytest.raises(ConfigError, match="rule 'acme' of package 'acme-rules' cannot be loaded: RuntimeError: boom"):
        tachograph.init("x", log_dir=logs, rules={"acme": setting})
    assert not logs.exists()


def test_disabled_rule_is_not_imported(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("raise RuntimeError('boom')", "acme = acme_rules:Acme")
    assert "acme" not in resolve_rules({"acme": False})
    assert "acme_rules" not in sys.modules and caplog.records == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("Acme = 3", "rule 'acme' is 3, which is not a subclass of tachograph.diagnostics.Rule"),
        (minimal(name="other"), "rule 'acme' (acme_rules.Acme): `name` must be 'acme', the name of the entry point"),
        (minimal(advice="Do it."), "rule 'acme' (acme_rules.Acme): `meaning` must be a string and `advice` a tuple"),
        (minimal(severity="bad"), "`severity` must be one of info, warning, critical, got 'bad'"),
        (
            minimal(block_signals=("losses",)),
            "rule 'acme' (acme_rules.Acme): unknown signal 'losses'; available: loss,",
        ),
        (minimal(Thresholds=3), "`Thresholds` must be a subclass of tachograph.diagnostics.RuleSettings"),
        (minimal(record_kinds=("step",)), "`record_kinds` must not contain 'step'; use `block_signals`"),
    ],
)
def test_invalid_rule_is_rejected_at_set_up(install: Install, source: str, message: str) -> None:
    install(source, "acme = acme_rules:Acme")
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve_rules({"acme": True})
    assert "acme" not in resolve_rules(None)


def with_threshold(declaration: str) -> str:
    """Return the source of a rule `acme` with one threshold."""
    imports = "from tachograph.diagnostics import RuleSettings\n"
    return f"{imports}{minimal()}    class Thresholds(RuleSettings):\n        {declaration}\n"


def test_threshold_without_default_is_skipped(install: Install) -> None:
    install(with_threshold("floor: float"), "acme = acme_rules:Acme")
    assert "acme" not in resolve_rules(None)
    with pytest.raises(ConfigError, match="^rules.acme: object missing required field `floor`$"):
        resolve_rules({"acme": True})


def test_thresholds_need_no_description(install: Install) -> None:
    install(with_threshold("floor: float = 0.5"), "acme = acme_rules:Acme")
    assert resolve_rules({"acme": {"floor": 2}})["acme"].floor == 2.0
    assert "acme.floor" in tacho("doctor", "--explain", "acme")


@pytest.mark.expects_faults
def test_a_rule_that_cannot_start_costs_only_diagnosis(install: Install, logs: Path) -> None:
    install(minimal() + "    def reset(self): raise OSError('no state')\n", "acme = acme_rules:Acme")
    with tachograph.init("x", log_dir=logs, **QUIET) as run:
        for step in range(20):
            run.log(train_loss=1.0, step=step)
    records = lines_of(logs / "x")
    assert sum(record["event"] == "step" for record in records) == 20
    (error,) = [record for record in records if record["event"] == "telemetry_error"]
    assert error["kind"] == "diagnosis_stopped"
    assert re.fullmatch(r"OSError: no state \(line \d+ of acme_rules\.py, in reset\)", error["reason"])


def test_rules_are_imported_on_first_use(script: Callable[..., Script]) -> None:
    source = """
        import sys
        from tachograph.diagnostics import RULES
        print("tachograph.diagnostics.rules.hang" in sys.modules, len(RULES.names()), RULES["hang"].__name__)
        print("importlib.metadata" in sys.modules)
    """
    assert script(source).ok().split() == ["False", "33", "Hang", "False"]
