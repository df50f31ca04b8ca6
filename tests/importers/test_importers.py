"""Which importer reads which path, and how broken ones are handled."""

from __future__ import annotations

import pytest

from tachograph.exceptions import ConfigError
from tachograph.importers import IMPORTERS, Importer, describe, read_log


@pytest.mark.parametrize("name", list(IMPORTERS.built_in))
def test_built_in_importers_implement_the_protocol(name):
    assert isinstance(IMPORTERS.load(name)(), Importer)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("log.csv", "csv"),
        ("LOG.TSV", "csv"),
        ("log.csv.gz", "csv"),
        ("log.jsonl", "jsonl"),
        ("log.ndjson.gz", "jsonl"),
        ("trainer_state.json", "trainer_state"),
        ("events.out.tfevents.1.host", "tensorboard"),
        ("log.txt", None),
        ("csv", None),
    ],
)
def test_describe_by_file_name(tmp_path, name, kind):
    (tmp_path / name).write_text("")
    assert describe(tmp_path / name) == kind


def test_trainer_state_wins_over_tensorboard_files(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "events.out.tfevents.1.host").write_text("")
    assert describe(tmp_path) == "tensorboard"
    for step, loss in ((900, 3.0), (1000, 2.0)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        state = f'{{"log_history": [{{"step": {step}, "loss": {loss}}}]}}'
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert describe(tmp_path) == "trainer_state"
    assert list(read_log(tmp_path)) == [{"event": "step", "global_step": 1000, "loss": 2.0}]


class Broken:
    def detects(self, path):
        return path.suffix == ".broken"

    def read(self, path):
        yield {"step": 1, "loss": 1.0}
        raise KeyError("column")


@pytest.fixture
def installed(monkeypatch):
    """Pretend that packages are installed which provide these importers."""

    def install(**importers):
        def load(name, built_in=IMPORTERS.load):
            if name not in importers:
                return built_in(name)
            if isinstance(importers[name], Exception):
                raise importers[name]
            return importers[name]

        monkeypatch.setattr(IMPORTERS, "names", lambda: [*IMPORTERS.built_in, *importers])
        monkeypatch.setattr(IMPORTERS, "load", load)

    return install


def test_error_of_installed_importer_names_importer_and_file(tmp_path, installed):
    installed(broken=Broken)
    (tmp_path / "log.broken").write_text("")
    records = read_log(tmp_path / "log.broken")
    assert next(records)["loss"] == 1.0
    with pytest.raises(ConfigError, match=r"importer 'broken' cannot read '.*log.broken': KeyError: 'column'"):
        next(records)


def test_importer_that_cannot_be_loaded_is_reported(tmp_path, installed):
    installed(a=ConfigError("importer 'a' of package 'p' cannot be loaded"), broken=Broken)
    (tmp_path / "log.broken").write_text("")
    assert describe(tmp_path / "log.broken") == "broken"
    (tmp_path / "log.other").write_text("")
    assert describe(tmp_path / "log.other") is None
    with pytest.raises(ConfigError, match="is not a known log: .*; importer 'a' of package 'p' cannot be loaded"):
        read_log(tmp_path / "log.other")


def test_built_in_importer_wins_over_installed_one(tmp_path, installed):
    class Greedy(Broken):
        def detects(self, path):
            return True

    installed(greedy=Greedy)
    (tmp_path / "log.csv").write_text("step,loss\n1,2\n")
    assert describe(tmp_path / "log.csv") == "csv"
    assert describe(tmp_path) == "greedy"
