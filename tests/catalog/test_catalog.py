"""The runs of log folders as rows."""

from __future__ import annotations

import json
import math
import os
import shutil

import msgspec
import numpy as np
import pytest

import tachograph
from tachograph.catalog import (
    Catalog,
    QueryError,
    annotate,
    default_results,
    describe_fields,
    known_fields,
    parse_query,
    sort_rows,
)
from tachograph.catalog._columns import ColumnFactsCache
from tachograph.catalog._index import _VERSION as INDEX_VERSION
from tachograph.exceptions import RunNotFoundError
from tachograph.journal import RunFolder, this_process
from tachograph.store import Store
from tests.store import END, START, append, files_opened, step, write


def make_run(folder, *, number=0, lr=1e-3, losses=(1.0, 0.5, 0.25), **start):
    config = {"optimizer": {"lr": lr}, "layers": [1, 2], "seed": number}
    first = {**START, "run_id": f"id{number}", "time": 1_000.0 + number, "config": config, "tags": ["base"], **start}
    return write(folder, [first, *(step(i, loss=loss, sec_per_step=0.5) for i, loss in enumerate(losses)), END])


def names(rows):
    return [row.id for row in rows]


def test_rows_have_facts_config_and_aggregates(tmp_path):
    git = {"commit": "abc", "branch": "main", "dirty": True}
    losses = [3.0, math.nan, 1.0, 2.0, math.inf, 4.0]
    facts = {"host": "node1", "gpus": ["H200", "H200"], "world_size": 2, "git": git, "command": ["train.py", "--lr"]}
    make_run(tmp_path / "a", losses=losses, project="nets", group="sweep", **facts)
    (row,) = Catalog(tmp_path).rows(is_full=True)
    wanted = {
        "name": "a", "state": "finished", "project": "nets", "group": "sweep", "tags": ["base"], "steps": 6,
        "host": "node1", "gpus": 2, "gpu": "H200", "world_size": 2, "command": "train.py --lr", "git.commit": "abc",
        "git.dirty": True, "config.optimizer.lr": 1e-3, "config.layers": "[1,2]", "config.seed": 0,
        "loss.last": 4.0, "loss.first": 3.0, "loss.min": 1.0, "loss.max": 4.0, "loss.mean": 2.5, "loss.median": 2.5,
        "loss.at_min": 2, "loss.at_max": 5, "loss.nonfinite": 2, "loss.tail": 4.0, "loss": 4.0, "step_time": 0.5,
        "started": 1_000.0, "ended": 1e6, "attempts": 1, "checkpoints": 0, "alerts": 0, "archived": False,
        "folder": str(tmp_path), "run_id": "id0", "size": row.folder.journal.stat().st_size,
        "config.nothing": None, "nothing.min": None, "goodput": None, "note": None,
    }  # fmt: skip
    assert {field: row.get(field) for field in wanted} == wanted
    assert {field for field in wanted if wanted[field] is not None} - {"loss"} <= set(known_fields([row]))


def test_loss_is_found_under_its_usual_names(tmp_path):
    write(tmp_path / "a", [START, *(step(i, **{"train/loss": 1.0 - i / 10}) for i in range(5)), END])
    (row,) = Catalog(tmp_path).rows(is_full=True)
    assert (row.get("loss"), row.get("loss.max"), row.get("train/loss.max")) == (0.6, 1.0, 1.0)


def test_last_value_shows_that_a_run_ended_with_nan(tmp_path):
    make_run(tmp_path / "a", losses=[1.0, math.nan])
    assert names(Catalog(tmp_path).select("loss.last is nan")) == ["a"]
    # Also from the stored summary.
    assert names(Catalog(tmp_path).select("loss.last is nan loss.max=1")) == ["a"]


def test_aggregates_leave_out_repeated_steps(tmp_path):
    first = [step(i, loss=100.0 + i) for i in range(10)]
    second = [{**START, "resumed": True}, *(step(i, loss=float(i)) for i in range(5, 20))]
    write(tmp_path / "a", [START, *first, *second, END])
    (row,) = Catalog(tmp_path).rows(is_full=True)
    kept = [100.0 + i for i in range(5)] + [float(i) for i in range(5, 20)]
    found = row.metric("loss")
    assert (found.num_points, found.max, found.min, found.first, found.last) == (20, 104.0, 5.0, 100.0, 19.0)
    assert found.mean == pytest.approx(np.mean(kept))
    assert found.tail == pytest.approx(np.mean([18.0, 19.0]))


def test_best_follows_the_direction_of_the_name(tmp_path):
    values = [{"val_loss": 1.0 + i, "top5/accuracy": i / 10, "width": i} for i in range(3)]
    write(tmp_path / "a", [START, *(step(i, **found) for i, found in enumerate(values)), END])
    (row,) = Catalog(tmp_path).rows(is_full=True)
    fields = ("val_loss.best", "val_loss.at_best", "top5/accuracy.best", "top5/accuracy.at_best", "width.best")
    assert [row.get(field) for field in fields] == [1.0, 0, 0.2, 2, None]


def test_default_results_are_measures_of_quality(tmp_path):
    values = {"loss": 1.0, "eval_runtime": 2.0, "eval_samples_per_second": 3.0, "eval_loss": 4.0, "eval_f1": 0.5}
    write(tmp_path / "a", [START, *(step(at, **values) for at in range(3)), END])
    assert default_results(Catalog(tmp_path).rows(is_full=True)) == ["eval_loss.best", "loss.best", "eval_f1.best"]


def test_value_at_a_step_is_the_nearest_one_before(tmp_path):
    first = [step(10 * i, **{"train/loss": 100.0 + i, "recall@20": 0.5}) for i in range(1, 6)]
    second = [{**START, "resumed": True}, *(step(10 * i, **{"train/loss": float(i)}) for i in range(3, 9))]
    write(tmp_path / "a", [START, *first, *second, step(1_000, **{"train/loss": math.nan}), END])
    wanted = {
        "loss@10": 101.0, "train/loss@29": 102.0, "loss@30": 3.0, "loss@79": 7.0, "loss@9": None, "nothing@10": None,
        "recall@20": 0.5, "recall@20@15": 0.5, "loss@10.min": None,
    }  # fmt: skip
    catalog = Catalog(tmp_path)
    (row,) = catalog.select(columns=[*wanted, "loss@10k"])
    assert {field: row.get(field) for field in wanted} == wanted
    assert math.isnan(row.get("loss@10k"))
    assert math.isnan(row.get("loss@10000"))
    assert names(catalog.select("loss@30<4 loss@1M is nan")) == ["a"]
    assert not catalog.unknown_fields(parse_query("loss@5>1 recall@20>0"))
    assert catalog.unknown_fields(parse_query("los@5>1"))


def test_values_at_steps_are_kept_with_the_summary(tmp_path):
    for number in range(20):
        make_run(tmp_path / f"run-{number:02}", number=number)
    catalog = Catalog(tmp_path)
    catalog.select(columns=["loss@1"])
    assert len(catalog.select("loss@1=0.5 loss@2=0.25")) == 20
    for again in (catalog, Catalog(tmp_path)):
        with files_opened(tmp_path) as opened:
            assert len(again.select("loss@1=0.5 loss@2=0.25")) == 20
        assert not [path for path in opened if path.endswith((".jsonl", ".seg"))]
    append(RunFolder(tmp_path / "run-00"), [{**START, "resumed": True}, step(1, loss=9.0), {**END, "time": 2e6}])
    assert names(catalog.select("loss@1=9")) == ["run-00"]


def test_unchanged_runs_are_not_read_again(tmp_path):
    for number in range(20):
        make_run(tmp_path / f"run-{number:02}", number=number)
    catalog = Catalog(tmp_path)
    first = catalog.rows(is_full=True)
    assert names(first) == [f"run-{number:02}" for number in reversed(range(20))]
    with files_opened(tmp_path) as opened:
        again = catalog.rows(is_full=True)
    assert not opened
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_new_process_reads_the_index_and_no_journal(tmp_path):
    for number in range(40):
        make_run(tmp_path / f"run-{number:02}", number=number)
    Catalog(tmp_path).rows(is_full=True)
    with files_opened(tmp_path) as opened:
        rows = Catalog(tmp_path).select("loss.min<0.3")
    assert len(rows) == 40
    assert set(opened) == {str(tmp_path)}  # to read the index
    shutil.rmtree(tmp_path / ".tachograph")
    with files_opened(tmp_path) as opened:
        assert len(Catalog(tmp_path).select("loss.min<0.3")) == 40
    assert not [path for path in opened if path.endswith((".jsonl", ".seg"))]


def test_index_keeps_all_values_by_column(tmp_path):
    for number in range(30):
        losses = (math.nan, 0.5) if number == 7 else (1.0, 0.5, number / 10)
        config = {"config": {"only_here": [number]}} if number > 26 else {}
        make_run(tmp_path / f"run-{number:02}", number=number, losses=losses, **config)
    plain = Catalog(tmp_path, uses_index=False).rows(is_full=True)
    fields = known_fields(plain)
    assert {"config.optimizer.lr", "config.only_here", "loss.nonfinite"} <= set(fields)
    first = Catalog(tmp_path)
    first.rows(is_full=True)
    for _ in range(2):
        loaded = Catalog(tmp_path)
        rows = loaded.rows(is_full=True)
        assert known_fields(rows) == fields
        for row, expected in zip(rows, plain, strict=True):
            assert repr([row.get(field) for field in fields]) == repr([expected.get(field) for field in fields])
            assert dict(row.summary.config) == expected.summary.config
        assert describe_fields(rows) == describe_fields(plain)
        # A few new runs make it write the index again, from the one that it has loaded.
        for number in range(30, 50):
            make_run(tmp_path / "later" / f"run-{number}", number=-number)
        loaded.rows(is_full=True)
        shutil.rmtree(tmp_path / "later")
    index = tmp_path / ".tachograph" / "index" / f"v{INDEX_VERSION}.msgpack"
    damaged = bytearray(index.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    index.write_bytes(damaged)
    with files_opened(tmp_path) as opened:
        assert len(Catalog(tmp_path).rows()) == 30
    assert [path for path in opened if path.endswith("run-03")]  # its summary instead


def test_answers_are_kept_until_a_run_changes(tmp_path):
    for number in range(5):
        make_run(tmp_path / f"run-{number}", number=number)
    catalog = Catalog(tmp_path)
    found = catalog.select("loss.min<1", columns=["loss"])
    assert catalog.select("loss.min<1", columns=["loss"]) is found
    ordered = catalog.in_order(found, "-config.seed")
    assert names(ordered) == [f"run-{number}" for number in (4, 3, 2, 1, 0)]
    assert catalog.in_order(found, "-config.seed") is ordered
    assert names(catalog.in_order(found, "config.seed", ["run-3"])) == ["run-3", "run-0", "run-1", "run-2", "run-4"]
    assert catalog.fields() is catalog.fields()
    annotate(RunFolder(tmp_path / "run-1"), [{"op": "set", "field": "archived", "value": True}])
    assert names(catalog.select("loss.min<1")) == ["run-4", "run-3", "run-2", "run-0"]
    started = catalog.rows()[0].get("started")
    assert names(catalog.select("started>-1h", now=started + 3_599)) == ["run-4"]
    assert names(catalog.select("started>-1h", now=started + 3_601)) == []


def test_facts_of_columns_follow_runs_that_change(tmp_path):
    fields = ["loss.min", "config.seed", "note", "started", "result", "tags", "loss@1"]
    for number in range(6):
        make_run(tmp_path / f"r{number}", number=number, losses=(3.0, 2.0 + number, 1.0 + number))
    catalog = Catalog(tmp_path)

    def check():
        for expression in ("", "config.seed>1", "loss.min<3"):
            rows = catalog.select(expression, columns=fields)
            facts = catalog.column_facts.get(rows, fields)
            assert facts == catalog.column_facts.get(rows, fields) == ColumnFactsCache().get(rows, fields)
        return dict(zip(fields, facts, strict=True))

    assert check()["loss.min"].best == "r0"
    annotate(RunFolder(tmp_path / "r1"), [{"field": "note", "value": "look here"}])
    assert (check()["note"].differs, check()["note"].kind) == (True, "text")
    make_run(tmp_path / "r1", number=1, losses=(3.0, 0.5, 0.25, 0.125))
    make_run(tmp_path / "r6", number=-1, losses=(3.0, 0.75))
    assert (check()["loss.min"].low, check()["loss.min"].best) == (0.125, "r1")
    shutil.rmtree(tmp_path / "r1")
    assert (check()["loss.min"].low, check()["loss.min"].best) == (0.75, "r6")


def test_many_runs_are_not_looked_at_for_each_page(tmp_path):
    for number in range(1_000):
        write(tmp_path / f"run-{number:04}", [START, END])
    catalog, other = Catalog(tmp_path), Catalog(tmp_path)
    assert len(catalog.rows(max_age_s=3_600)) == len(other.rows(max_age_s=3_600)) == 1_000
    write(tmp_path / "new", [START, END])
    assert len(catalog.rows(max_age_s=3_600)) == 1_000
    assert len(catalog.rows()) == 1_001
    other.outdate()
    assert len(other.rows(max_age_s=3_600)) == 1_001
    with files_opened(tmp_path) as opened:
        assert len(Store(tmp_path, known_overview=catalog.known_overview).runs()) == 1_001
    assert not [path for path in opened if path.endswith(".jsonl")]
    append(RunFolder(tmp_path / "new"), [{**START, "time": 3e6}, END])
    assert len(Store(tmp_path, known_overview=catalog.known_overview).runs()) == 1_001


def test_new_and_changed_runs_are_found(tmp_path):
    folder = make_run(tmp_path / "a")
    catalog = Catalog(tmp_path)
    assert catalog.rows(is_full=True)[0].get("loss.min") == 0.25
    append(folder, [{**START, "resumed": True, "time": 2e6}, step(3, loss=0.125), {**END, "time": 3e6}])
    make_run(tmp_path / "b", number=1)
    rows = catalog.rows(is_full=True)
    assert {row.id: row.get("loss.min") for row in rows} == {"a": 0.125, "b": 0.25}
    assert {row.id: row.get("attempts") for row in rows} == {"a": 2, "b": 1}
    shutil.rmtree(tmp_path / "b")
    assert names(catalog.rows()) == ["a"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"version":1}', b"\xff\xfe", b"[" * 10_000])
def test_damaged_caches_are_ignored(tmp_path, content):
    for number in range(20):
        make_run(tmp_path / f"run-{number:02}", number=number)
    Catalog(tmp_path).rows(is_full=True)
    index = tmp_path / ".tachograph" / "index" / f"v{INDEX_VERSION}.msgpack"
    assert index.stat().st_size > 1_000
    index.write_bytes(content)
    for number in range(20):
        (tmp_path / f"run-{number:02}" / ".tacho" / "summary.json").write_bytes(content)
    assert len(Catalog(tmp_path).select("loss.min=0.25")) == 20


def test_summary_file_is_json_for_people(tmp_path):
    folder = make_run(tmp_path / "a", losses=[1.0, math.nan])
    Catalog(tmp_path).rows(is_full=True)
    found = json.loads((folder.private / "summary.json").read_text())
    assert found["config"]["optimizer.lr"] == 1e-3
    assert found["journal"][0] == folder.journal.stat().st_size


def test_project_and_group_come_from_settings(logs, monkeypatch):
    monkeypatch.setenv("TACHO_PROJECT", "nets")
    quiet = {"log_dir": str(logs), "console": False, "system_interval_s": 0, "git": False}
    with tachograph.init("a", group="sweep", job_type="eval", **quiet):
        pass
    with tachograph.init("b", project="other", **quiet):
        pass
    with tachograph.init("c", facts={"project": "from code", "notes": "from code"}, **quiet):
        pass
    monkeypatch.delenv("TACHO_PROJECT")
    with tachograph.init("a", resume=True, **quiet):
        pass
    rows = Catalog(logs).rows(is_full=True)
    found = {row.id: [row.get(field) for field in ("project", "group", "job_type", "note")] for row in rows}
    assert found == {
        "a": ["nets", "sweep", "eval", None],
        "b": ["other", None, None, None],
        "c": ["from code", None, None, "from code"],
    }
    assert names(Catalog(logs).select("project:nets group:sweep")) == ["a"]


def test_running_run_is_summarised_without_a_stored_summary(logs):
    with tachograph.init("live", log_dir=str(logs), console=False, system_interval_s=0, git=False) as run:
        run.log(loss=2.0, step=0)
        run.log(loss=1.0, step=1)
        assert run.flush(timeout_s=60)
        catalog = Catalog(logs)
        (row,) = catalog.select("loss.min<=1")
        assert row.get("state") == "running"
        assert row.get("ended") is None
        assert not (row.folder.private / "summary.json").exists()
    (row,) = catalog.select("state:finished loss.min<=1")
    assert (row.folder.private / "summary.json").exists()


def test_running_run_keeps_its_values_until_they_are_computed_again(tmp_path):
    process = msgspec.to_builtins(this_process())
    folder = write(tmp_path / "run", [{**START, "process": process}, step(0, loss=0.5)])
    catalog = Catalog(tmp_path)
    assert [row.get("result") for row in catalog.select("", columns=["result"])] == [0.5]
    for number in range(1, 4):  # it grows between requests that have no time to read it
        append(folder, [step(number, loss=0.25)])
        (row,) = catalog.select("", columns=["result"], max_s=0.0)
        assert [row.get("result"), row.get("steps")] == [0.5, number + 1]


def test_state_of_a_dead_process_needs_no_change_of_files(tmp_path):
    here = msgspec.to_builtins(this_process())
    write(
        tmp_path / "gone", [{**START, "process": {**here, "pid_started": here["pid_started"] + 1}}, step(0, loss=1.0)]
    )
    write(tmp_path / "here", [{**START, "process": here}, step(0, loss=1.0)])
    catalog = Catalog(tmp_path)
    for _ in range(2):
        assert {row.id: row.get("state") for row in catalog.rows()} == {"gone": "crashed", "here": "running"}


def test_nested_and_several_log_folders_are_listed(tmp_path):
    make_run(tmp_path / "one" / "a", number=3)
    make_run(tmp_path / "one" / "sweep" / "deep" / "b", number=2)
    make_run(tmp_path / "one" / ".hidden" / "c")
    make_run(tmp_path / "one" / "a" / "inside-a-run")
    make_run(tmp_path / "two" / "d", number=1)
    os.symlink(tmp_path / "one", tmp_path / "one" / "loop")
    catalog = Catalog(tmp_path / "one", tmp_path / "two")
    assert names(catalog.rows()) == ["a", "sweep/deep/b", "d"]
    assert names(catalog.select(f'folder="{tmp_path / "two"}"')) == ["d"]
    assert catalog.row("sweep/deep/b").get("started") == 1_002.0


def test_rows_never_leave_the_log_folder(tmp_path):
    make_run(tmp_path / "outside")
    make_run(tmp_path / "logs" / "inside")
    os.symlink(tmp_path / "outside", tmp_path / "logs" / "link")
    catalog = Catalog(tmp_path / "logs")
    assert names(catalog.rows()) == ["inside"]
    for name in ("../outside", "link", "inside/../../outside", "", ".", "/etc", "inside\0", "insid"):
        with pytest.raises(RunNotFoundError):
            catalog.row(name)
    with pytest.raises(RunNotFoundError, match="'inside'"):
        catalog.row("insid")


def test_read_only_folder_is_listed_but_not_annotated(open_folder, tmp_path, script):
    make_run(tmp_path / "own" / "a")
    make_run(open_folder / "logs" / "a")
    for path in (open_folder / "logs" / "a", open_folder / "logs"):
        path.chmod(0o555)
    code = """
        import os, sys
        from tachograph.catalog import AnnotationError, Catalog, annotate

        def read_and_annotate(log_dir):
            (row,) = Catalog(log_dir).select("loss.min=0.25")
            try:
                annotate(row.folder, [{"op": "set", "field": "note", "value": "x"}])
            except AnnotationError as error:
                print(row.id, error)

        read_and_annotate(sys.argv[2])  # imports everything, because another user may not be able to
        if os.geteuid() == 0:
            os.setuid(65534)
        read_and_annotate(sys.argv[1])
    """
    try:
        out = script(code, open_folder / "logs", tmp_path / "own").ok()
    finally:
        for path in (open_folder / "logs", open_folder / "logs" / "a"):
            path.chmod(0o755)
    assert out.startswith("a cannot annotate 'a'")
    assert "copy the run to a folder of your own" in out


def test_archived_runs_are_left_out_unless_asked_for(tmp_path):
    for number, name in enumerate("abc"):
        make_run(tmp_path / name, number=number)
    annotate(RunFolder(tmp_path / "b"), [{"op": "set", "field": "archived", "value": True}])
    catalog = Catalog(tmp_path)
    assert names(catalog.select()) == ["c", "a"]
    assert names(catalog.select(archived=True)) == ["b"]
    assert names(catalog.select(archived=None)) == ["c", "b", "a"]
    assert names(catalog.select("archived=true")) == ["b"]


def test_annotations_appear_in_the_next_listing(tmp_path):
    folder = make_run(tmp_path / "a")
    catalog = Catalog(tmp_path)
    catalog.rows()
    for number in range(3):
        annotate(folder, [{"op": "set", "field": "note", "value": f"note {number}"}])
        assert catalog.rows()[0].get("note") == f"note {number}"
    annotate(
        folder, [{"op": "add", "field": "tags", "value": "paper"}, {"op": "remove", "field": "tags", "value": "base"}]
    )
    assert names(catalog.select("tag:paper -tag:base")) == ["a"]
    annotate(
        folder, [{"op": "set", "field": "project", "value": "p"}, {"op": "set", "field": "custom.fid", "value": 3.5}]
    )
    assert names(catalog.select("project:p custom.fid<4")) == ["a"]


def test_sort_puts_missing_values_last(tmp_path):
    for number, losses in enumerate([(3.0,), (1.0,), (2.0,), (math.nan,)]):
        make_run(tmp_path / f"r{number}", number=number, losses=losses)
    write(tmp_path / "r4", [START, END])
    rows = Catalog(tmp_path).rows(is_full=True)
    assert names(sort_rows(rows, "loss.last"))[:3] == ["r1", "r2", "r0"]
    assert names(sort_rows(rows, "loss.last", is_descending=True))[:3] == ["r0", "r2", "r1"]


def test_invalid_expression_is_refused(tmp_path):
    with pytest.raises(QueryError):
        Catalog(tmp_path).select("steps >")


def test_full_summaries_stop_at_the_time_limit(tmp_path):
    for number in range(5):
        make_run(tmp_path / f"r{number}", number=number)
    catalog = Catalog(tmp_path)
    assert [row.summary.is_full for row in catalog.rows(is_full=True, max_s=0.0)] == [False] * 5
    assert all(row.summary.is_full for row in catalog.rows(is_full=True))


def test_result_is_the_main_validation_metric(tmp_path):
    cases = {  # the metrics of two steps, and the result
        "hf": ([{"train_loss": 3.0, "eval_loss": 2.0}, {"eval_loss": 2.5, "eval_accuracy": 0.9}], "eval_loss", 2.0),
        "lightning": ([{"train_loss_step": 3.0, "val/loss": 2.0}, {"val/loss": 1.5}], "val/loss", 1.5),
        "fairseq": ([{"loss": 3.0, "valid_loss": 2.0}, {"valid_loss": 2.1}], "valid_loss", 2.0),
        "keras": ([{"loss": 3.0, "val_accuracy": 0.5}, {"val_accuracy": 0.4}], "val_accuracy", 0.5),
        "rl": (
            [{"train/loss": 3.0, "rollout/ep_rew_mean": 5.0}, {"rollout/ep_rew_mean": 9.0}],
            "rollout/ep_rew_mean",
            9.0,
        ),
        "cleanrl": ([{"losses/value_loss": 3.0, "episodic_return": 5.0}, {}], "episodic_return", 5.0),
        "test set": ([{"train_loss": 3.0, "test_loss": 5.0}, {"test_loss": 4.0, "test_acc": 0.5}], "test_loss", 4.0),
        "test accuracy": ([{"train_loss": 3.0, "Test Accuracy": 0.5}, {"Test Accuracy": 0.4}], "Test Accuracy", 0.5),
        "gan": ([{"loss_D": 3.0, "loss_G": -5.0}, {"loss_D": 2.0, "loss_G": 4.0}], "loss_G", 4.0),
        "plain": ([{"train_loss": 3.0}, {"train_loss": 2.0}], "train_loss", 2.0),
        "none": ([{"speed": 3.0}, {"speed": 2.0}], None, None),
    }
    for name, (steps, _, _) in cases.items():
        write(tmp_path / name, [START, *(step(number, **values) for number, values in enumerate(steps)), END])
    catalog = Catalog(str(tmp_path))
    rows = {row.name: row for row in catalog.select("", columns=["result", "result_metric"])}
    found = {name: (row.get("result_metric"), row.get("result")) for name, row in rows.items()}
    assert found == {name: (metric, result) for name, (_, metric, result) in cases.items()}
