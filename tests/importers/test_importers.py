"""Which importer reads which path, and how broken ones are handled."""

from __future__ import annotations

import gzip
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tachograph.exceptions import ConfigError
from tachograph.importers import IMPORTERS, Importer, describe, import_runs, read_log
from tachograph.importers._json_rows import read_json_rows


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
        ("run-1.wandb", "wandb"),
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
    steps = [(record["global_step"], record["loss"]) for record in read_log(tmp_path)]
    assert steps == [(900, 3.0), (1000, 2.0)]  # the latest checkpoint lacks the first step


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


def test_installed_importer_makes_runs(tmp_path, logs, installed):
    installed(broken=Broken)
    (tmp_path / "log.broken").write_text("")
    (report,) = import_runs("broken", [tmp_path / "log.broken"], str(logs))
    assert (report.run, report.outcome, report.num_rows) == ("log", "created", 1)
    assert [damage.where for damage in report.damage] == ["after row 1"]
    assert "KeyError: 'column'" in report.damage[0].reason


# Files that expand --------------------------------------------------------------------------------------------------

BOMBS = {
    "objects.json.gz": (b"[{}", b",{}            ", b"]"),
    "history.json.gz": (b'{"log_history": [{}', b",{}            ", b"]}"),
    "other.json.gz": (b'{"other": [{}', b",{}", b"]}"),
    "spaces.json.gz": (b"[", b"   ", b"]"),
    "objects.jsonl.gz": (b"{}\n", b"{}            \n", b""),
    "nested.jsonl.gz": (b'{"a": [[]', b",[]", b"]}\n"),
    "rows.csv.gz": (b"a\n", b"1             \n\n", b""),
    "columns.csv.gz": (b"a", b",aa", b"\n"),
}


def test_files_that_expand_do_not_fill_the_memory(tmp_path, script):
    """36 to 200 MB of text in at most 0.4 MB, of which the objects alone would need 800 MB, read with 500 MiB."""
    for name, (head, item, tail) in BOMBS.items():
        (tmp_path / name).write_bytes(
            gzip.compress(head) + gzip.compress(item * 100_000, 9) * 120 + gzip.compress(tail)
        )
    out = script(
        """
        import resource, sys
        from tachograph.exceptions import ConfigError
        from tachograph.importers import read_log
        with open("/proc/self/statm") as file:
            used_bytes = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, [used_bytes + (500 << 20)] * 2)
        for path in sys.argv[1:]:
            try:
                for _ in read_log(path):
                    pass
            except ConfigError as error:
                print(error)
        """,
        *(tmp_path / name for name in BOMBS),
    ).ok()
    for name, message in zip(BOMBS, out.splitlines(), strict=True):
        assert str(tmp_path / name) in message
        assert "expands to more than 200 times its size" in message or "of more than 8 MiB" in message


def test_large_uncompressed_list_is_read_row_by_row(tmp_path, script):
    with open(tmp_path / "big.json", "wb") as file:
        file.write(b"[{}")
        for _ in range(300):
            file.write(b", {}" * 10_000)
        file.write(b"]")
    out = script(
        """
        import resource, sys
        from tachograph.importers.trainer_state import TrainerStateImporter
        from pathlib import Path
        resource.setrlimit(resource.RLIMIT_AS, (150 << 20, 150 << 20))  # its rows alone would need 200 MB
        print(sum(1 for _ in TrainerStateImporter().read(Path(sys.argv[1]))))
        """,
        tmp_path / "big.json",
    ).ok()
    assert out == "3000001\n"


@pytest.mark.slow
def test_compressed_log_of_constant_values_is_read(tmp_path):
    rows = [f'{{"step": {number}, "loss": 0.0, "time": {1_000 + number}}}\n' for number in range(200_000)]
    with gzip.open(tmp_path / "log.jsonl.gz", "wt") as file:
        file.writelines(rows)
    assert sum(1 for _ in read_log(tmp_path / "log.jsonl.gz")) == 200_000


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
    st.sampled_from([1, 2, 7, 1_000]),
    st.sampled_from([None, 2]),
    st.booleans(),
)
@example({"log_history": 1, "a": [1, {}]}, 1, None, False)
@example([12, -3.5e10, True, math.nan, math.inf, -math.inf], 1, None, False)
@example(1e30, 1, None, True)  # "1e"
def test_rows_are_those_of_the_whole_document(content, read_chars, indent, is_cut):
    """However the text is divided into reads, the result is that of `json.loads`."""
    text = json.dumps(content, indent=indent)
    text = text[: len(text) // 2] if is_cut else text

    class Parts(io.StringIO):
        def read(self, size=-1):
            return super().read(min(size, read_chars))

    try:
        whole = json.loads(text)
        rows = whole.get("log_history") if isinstance(whole, dict) else whole
        expected = repr(rows) if isinstance(rows, list) else "has no `log_history`"
    except ValueError:
        expected = "is not valid JSON"
    try:
        assert repr(list(read_json_rows(Parts(text), Path("x"), "log_history"))) == expected
    except ConfigError as error:
        assert expected in str(error)


def test_path_that_cannot_be_read_does_not_keep_others_from_being_imported(tmp_path):
    """Of several paths; the only path raises its error."""
    (tmp_path / "good.csv").write_text("step,loss\n0,1.0\n1,0.5\n")
    paths = [tmp_path / "missing.csv", tmp_path / "good.csv", tmp_path]
    missing, folder, good = import_runs("csv", paths, str(tmp_path / "logs"))
    assert (missing.outcome, missing.source, "does not exist" in str(missing.error)) == ("failed", str(paths[0]), True)
    assert (folder.outcome, folder.source) == ("failed", str(tmp_path))
    assert (good.outcome, good.num_rows) == ("created", 2)
    with pytest.raises(ConfigError, match="does not exist"):
        import_runs("csv", paths[:1], str(tmp_path / "logs"))


def test_step_durations_of_mmengine_are_not_timestamps(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text("".join(f'{{"loss": 1.0, "time": 0.5, "data_time": 0.1, "iter": {at}}}\n' for at in range(3)))
    records = list(read_log(path))
    assert [record["sec_per_step"] for record in records] == [0.5, 0.5, 0.5]
    assert not any("time" in record for record in records)
