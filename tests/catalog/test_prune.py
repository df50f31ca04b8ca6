"""Pruning: what a policy does, what it leaves alone, and that every reader still understands the result."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import shutil
import signal
import time
import zipfile

import pytest
from click.testing import CliRunner

import tachograph
from tachograph.catalog import (
    Catalog,
    PruneError,
    annotate,
    apply_step,
    disk_usage,
    list_trash,
    make_rule,
    parse_action,
    plan_prune,
    read_annotations,
    read_policy,
    restore_run,
)
from tachograph.catalog._media import list_removable_media, pack_media
from tachograph.catalog._trash import trash_journal
from tachograph.cli._main import main
from tachograph.exceptions import TachographError
from tachograph.journal import (
    Destination,
    JournalFollower,
    RunFolder,
    journal_size,
    open_journal,
    read_records,
    write_destination,
)
from tachograph.journal.artifacts import ArtifactStore, collect_sources
from tachograph.reader import has_media, has_thumbnail, make_thumbnail, open_media
from tests.cli.test_catalog_commands import listed, tacho
from tests.media_files import media, picture, store, table_file
from tests.store import END, START, answers, append, hears, opened, step, write


def values(num_steps, seed=1):
    chance = random.Random(seed)
    found = [1 / (1 + number / 100) + chance.random() for number in range(num_steps)]
    found[num_steps // 3] = 50.0  # a spike of a single step
    found[num_steps // 2] = math.nan
    return found


def make_run(logs, name="a", num_steps=2_000, **start):
    records = [{**START, "run_id": f"id-{name}", **start}]
    for number, loss in enumerate(values(num_steps)):
        records.append(step(number, loss=loss, epoch=number / 1_000, sec_per_step=0.5, nan_inf_detected=loss != loss))
        if number % 500 == 7:
            records += [{"event": "event", "time": 1_000.0 + number, "name": "note"}, b'{"torn']
            records += [{"event": "validation", "time": 1_000.0 + number, "global_step": number, "val_loss": 0.3}]
    folder = write(logs / name, [*records, END])
    folder.csv.write_text("event\n" * 1_000)
    folder.traces.mkdir()
    (folder.traces / "trace-1.json.gz").write_bytes(b"x" * 5_000)
    os.utime(folder.journal, ns=(10**18, 10**18))
    return folder


def act(logs, action, name="a", *, is_forced=False):
    steps = plan_prune(str(logs), [make_rule(f"name={name}", [action])], is_forced=is_forced)
    return [apply_step(str(logs), item, is_forced=is_forced) for item in steps]


def test_last_copy_of_a_picture_is_kept(logs):
    folder = make_run(logs)
    thumbnails = folder.private / "thumbs"
    thumbnails.mkdir(parents=True)
    (thumbnails / f"{'a' * 64}-320.webp").write_bytes(b"x")
    (thumbnails / f"{'b' * 64}-320.webp").write_bytes(b"x")
    (folder.media / "aa").mkdir(parents=True)
    (folder.media / "aa" / f"{'a' * 64}.png").write_bytes(b"x")
    act(logs, "drop_rebuildable")
    assert [path.name[0] for path in thumbnails.iterdir()] == ["b"]


def test_policy_does_each_action_once(logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    for name in ("a", "b", "c"):
        folder = make_run(logs, name)
        opened(folder)
    (logs / "policy.yaml").write_text(
        "- {where: 'name in (a, b)', do: [drop_rebuildable, gzip]}\n- {where: steps>1, do: [gzip, drop_traces]}\n"
        "- where: 'name:c'\n  do: [trash, gzip]\n"
    )
    arguments = ("prune", "--policy", str(logs / "policy.yaml"))
    before = {path: path.stat().st_size for path in logs.rglob("*") if path.is_file() and ".tacho" not in path.parts}
    plan = json.loads(tacho(*arguments, "--json"))["steps"]
    shown = tacho(*arguments)
    assert "Nothing was changed" in shown
    assert "gzip: about" in shown
    after = {path: path.stat().st_size for path in logs.rglob("*") if path.is_file() and ".tacho" not in path.parts}
    assert {path for path in after if OWN not in path.parts} == set(before)
    assert sorted((item["run"], item["action"]) for item in plan) == [
        *(("a", action) for action in ("drop_rebuildable", "drop_traces", "gzip")),
        *(("b", action) for action in ("drop_rebuildable", "drop_traces", "gzip")),
        *(("c", action) for action in ("drop_traces", "gzip", "trash")),
    ]
    done = json.loads(tacho(*arguments, "--yes", "--json"))
    for expected, found in zip(plan, done["steps"], strict=True):
        assert expected["action"] == found["action"]
        assert found["num_files"] > 0
        if found["action"] != "trash":  # its size has changed meanwhile
            assert found["freed_bytes"] == pytest.approx(expected["freed_bytes"], rel=0.2, abs=100)
    assert sorted(listed()) == ["a", "b"]
    assert [run.name for run in list_trash(str(logs))] == ["c"]
    folder = RunFolder(logs / "a")
    assert not folder.csv.exists()
    assert not folder.traces.exists()
    assert folder.compressed_journal.exists()
    notes = read_annotations(folder).values
    assert "gzip freed" in notes["custom.pruned_gzip"]
    assert "drop_traces freed 5000 bytes in 1 file" in notes["custom.pruned_drop_traces"]
    assert "Nothing to do" in tacho(*arguments)


OWN = ".tachograph"


def test_every_command_reads_a_compressed_run(logs, monkeypatch, tmp_path):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    folder = make_run(logs)
    commands = [
        ("ls", "--columns", "state,loss.min,loss.max,loss.at_max,steps,duration,run_id", "--json"),
        ("ls", "loss.max>49", "--json"),
        ("show", "a", "--json"),
        ("tail", "a", "-n", "7", "--json"),
        ("tail", "a", "-e", "validation", "--json"),
        ("export", "a", "--to", "csv"),
        ("doctor", "a", "--json"),
    ]
    before = [tacho(*command) for command in commands]
    shown = tacho("show", "a")
    assert "metrics.jsonl.gz" not in "".join(shown.split())
    journal_bytes = disk_usage(folder)["journal"]
    (freed,) = act(logs, "gzip")
    assert freed.num_bytes > 0
    assert [tacho(*command) for command in commands] == before
    assert "metrics.jsonl.gz" in "".join(tacho("show", "a").split())  # a long path is broken into lines
    used = disk_usage(folder)
    assert used["journal"] == 0 < used["compressed"] < journal_bytes
    assert json.loads(tacho("du", "--json"))["parts"]["compressed"] == used["compressed"]
    assert "compressed" in tacho("du")
    tacho("show", "a", "--rebuild-csv")
    assert len(folder.csv.read_text().splitlines()) > 2_000
    tacho("mv", "a", "b")
    tacho("rm", "b")
    assert json.loads(tacho("du", "--json"))["trash"]["total"] >= used["compressed"]
    tacho("trash", "restore", "b")
    assert len(tachograph.read("b", log_dir=str(logs)).series("loss").steps) == 2_000


def test_server_shows_a_compressed_run(logs):
    from tachograph.store import Store

    make_run(logs)
    store = Store(logs)
    (line,) = store.runs()
    run = store.open("a")
    run.refresh()
    before, version = answers(run), run.version
    act(logs, "gzip")
    run.refresh()
    (found,) = store.runs()
    assert (found.state, found.size_bytes) == (line.state, line.size_bytes)
    assert (answers(run), run.version, run.indexed_share) == (before, version, 1.0)
    fresh = Store(logs).open("a")
    fresh.refresh()
    assert answers(fresh) == before


def test_guards_leave_runs_alone(logs):
    make_run(logs, "pinned", num_steps=100)
    annotate(RunFolder(logs / "pinned"), [{"op": "set", "field": "pinned", "value": True}])
    make_run(logs, "kept", num_steps=100, tags=["keep"])
    make_run(logs, "parent", num_steps=100)
    make_run(logs, "child", num_steps=100, parents=[{"run_id": "id-parent", "how": "resume"}])
    write(logs / "stale", [START, step(0, loss=1.0)])
    rules = [make_rule("has(name)", ["gzip"])]
    with tachograph.init("live", log_dir=str(logs), console=False, system_interval_s=0, git=False):
        skipped = {item.row.id: item.skipped for item in plan_prune(str(logs), rules)}
        forced = {item.row.id: item.skipped for item in plan_prune(str(logs), rules, is_forced=True)}
    assert skipped["child"] == ""
    assert skipped["pinned"] == "it is pinned"
    assert skipped["kept"] == "it has the tag 'keep'"
    assert "parent" in skipped["parent"]
    assert "--force" in skipped["stale"]
    assert "still being recorded" in skipped["live"]
    assert {name for name, reason in forced.items() if reason} == {"live"}


def test_run_whose_sinks_lag_is_not_changed(logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    folder = make_run(logs)
    folder.private.mkdir(exist_ok=True)
    cursor = folder.private / "sink-wandb.json"
    cursor.write_text('{"journal_bytes":1000}')
    for action in ("gzip", "thin:100"):
        out = tacho("prune", "--where", "name=a", "--do", action, "--yes", code=1)
        assert "tacho sync a --sink wandb" in out
    cursor.write_text(json.dumps({"journal_bytes": journal_size(folder.journal)}))
    act(logs, "thin:100")
    assert json.loads(cursor.read_text())["journal_bytes"] == journal_size(folder.journal)


def test_second_prune_leaves(logs, monkeypatch, script):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    make_run(logs)
    running = script(
        "import sys\nfrom tachograph.catalog import prune_lock\n"
        'with prune_lock(sys.argv[1]):\n    print("locked", flush=True)\n    sys.stdin.readline()',
        logs,
    )
    hears(running, "locked")
    assert "another tacho prune" in tacho("prune", "--where", "name=a", "--do", "gzip", "--yes", code=1)
    running.process.communicate("\n")
    tacho("prune", "--where", "name=a", "--do", "gzip", "--yes")


def test_invalid_policies_name_the_rule(tmp_path):
    path = tmp_path / "policy.yaml"
    for text, message in (
        ("- {where: 'steps<<1', do: [gzip]}", "rule 1: "),
        ("- {where: steps<1, do: [zip]}", "unknown action 'zip'"),
        ("- {where: steps<1, do: [thin]}", "thin:100"),
        ("- {where: steps<1, do: ['thin:1']}", "thin:100"),
        ("- {where: steps<1, do: []}", "no action"),
        ("- {where: '', do: [gzip]}", "every run"),
        ("- {where: steps<1, then: [gzip]}", "expected a list"),
        ("[", "not valid YAML"),
    ):
        path.write_text(text)
        with pytest.raises(PruneError, match=message.replace("[", r"\[")):
            read_policy(str(path))
    with pytest.raises(PruneError, match="cannot read"):
        read_policy(str(tmp_path / "missing"))
    path.write_text(json.dumps([{"where": "ended<-90d -tag:keep", "do": ["drop_rebuildable", "gzip"]}]))
    assert [str(action) for action in read_policy(str(path))[0].actions] == ["drop_rebuildable", "gzip"]


def test_misspelled_field_is_an_error_or_a_warning(logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    make_run(logs, num_steps=300)
    assert "did you mean" in tacho("prune", "--where", "val_lossy.min<1", "--do", "gzip", code=1)
    (logs / "policy.yaml").write_text("- {where: later.min<1, do: [trash]}\n- {where: steps>1, do: [gzip]}\n")
    out = tacho("prune", "--policy", str(logs / "policy.yaml"), "--yes")
    assert "no run has the field 'later.min'" in out
    assert "a: gzip: freed" in out


def test_trash_is_emptied_after_the_days_of_the_setting(logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    for name in ("a", "b", "c", "d"):
        make_run(logs, name, num_steps=10)
    tacho("rm", "a")
    (run,) = list_trash(str(logs))
    manifest = logs / OWN / "trash" / f"{run.id}.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "removed": 1_000.0}))
    tacho("rm", "b")
    assert len(list_trash(str(logs))) == 2
    monkeypatch.setenv("TACHO_TRASH_KEEP_DAYS", "30")
    tacho("trash", "list")
    tacho("ls")
    assert len(list_trash(str(logs))) == 2
    tacho("rm", "c")
    assert [run.name for run in list_trash(str(logs))] == ["c", "b"]


# Thinning ------------------------------------------------------------------------------------------------------------


def test_thinned_run_keeps_every_extreme(logs):
    folder = make_run(logs)
    original = folder.journal.read_bytes()
    (before,) = Catalog(logs, uses_index=False).rows(is_full=True)
    others = [record for record in read_records(folder.journal) if record["event"] not in {"step", "start"}]
    (freed,) = act(logs, "thin:100")
    thinned = folder.journal.read_bytes()
    assert freed.num_bytes == len(original) - len(thinned) > 0.9 * len(original)
    records = list(read_records(folder.journal))
    assert [record for record in records if record["event"] not in {"step", "start"}] == others
    assert thinned.count(b'{"torn\n') == 4
    start = records[0]
    assert start["thinned_from"]["bytes"] == len(original)
    assert start["thinned_from"]["window"] == 100
    windows = [record for record in records if record["event"] == "step"]
    assert [record["global_step"] for record in windows] == [0, *range(100, 2_000, 100), 1_999]
    assert sum(record.get("window_steps", 1) for record in windows) == 2_000
    assert sum(record.get("nan_inf_detected", False) for record in windows) == 1

    # The same as `log_every=100` would have written.
    with tachograph.init("b", log_dir=str(logs), log_every=100, console=False, system_interval_s=0, git=False) as run:
        for number, loss in enumerate(values(2_000)):
            run.log(loss=loss, step=number)
    recorded = [record for record in read_records(logs / "b" / "metrics.jsonl") if record["event"] == "step"]
    for mine, theirs in zip(windows, recorded, strict=True):
        for name in ("global_step", "window_steps", "loss", "loss/min", "loss/max", "loss/mean", "loss/nonfinite"):
            expected = theirs.get(name, 1 if name == "window_steps" else None)
            found = mine.get(name, 1 if name == "window_steps" else None)
            assert found == (expected if expected is None else pytest.approx(expected, nan_ok=True)), name

    lines, marks = opened(folder).series("loss")
    drawn = [y for line in lines for y in line.y if y is not None]
    assert (min(drawn), max(drawn)) == (before.get("loss.min"), 50.0)
    assert sum(line.num_points for line in lines) + len(marks) == len(windows)
    (after,) = [row for row in Catalog(logs, uses_index=False).rows(is_full=True) if row.id == "a"]
    for name in ("loss.min", "loss.max", "loss.nonfinite", "loss.last", "val_loss.min", "steps", "duration"):
        assert after.get(name) == before.get(name), name
    assert after.get("loss.at_max") == 700  # the window of step 666

    for metrics in (tachograph.read("a", log_dir=str(logs)).metrics, opened(folder).metrics()):
        assert (metrics["loss"].low, metrics["loss"].high) == (before.get("loss.min"), 50.0)

    # The old journal is in the trash.
    assert restore_run(str(logs), "a") == "a-2"
    assert (logs / "a-2" / "metrics.jsonl").read_bytes() == original


def test_windows_are_thinned_to_longer_windows(logs):
    folder = make_run(logs)
    act(logs, "thin:10")
    first = folder.journal.read_bytes()
    act(logs, "gzip")
    assert act(logs, "thin:10")[0].num_files == 0  # it has such windows already
    rule = make_rule("name=a", ["thin:200", "gzip"])  # also if it is compressed now
    for item in plan_prune(str(logs), [rule]):
        apply_step(str(logs), item)
    assert not folder.journal.exists()
    twice = [record for record in read_records(folder.journal) if record["event"] == "step"]
    start = next(read_records(folder.journal))
    assert start["thinned_from"]["earlier"]["window"] == 10
    other = make_run(logs, "b")
    act(logs, "thin:200", "b")
    once = [record for record in read_records(other.journal) if record["event"] == "step"]
    assert len(once) == len(twice)
    for one, two in zip(once, twice, strict=True):
        assert one == pytest.approx(two, nan_ok=True)
    assert restore_run(str(logs), "a") == "a-2"
    with open_journal(logs / "a-2" / "metrics.jsonl") as file:
        assert file.read() == first


def test_run_without_end_is_not_thinned(logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    write(logs / "a", [START, *(step(number, loss=1.0) for number in range(100))])
    before = (logs / "a" / "metrics.jsonl").read_bytes()
    out = tacho("prune", "--where", "name=a", "--do", "thin:10", "--yes", "--force", code=1)
    assert "no end" in out
    assert (logs / "a" / "metrics.jsonl").read_bytes() == before


def test_follower_of_a_thinned_run_starts_again(logs):
    folder = make_run(logs)
    run = opened(folder)
    follower = JournalFollower(folder.journal)
    follower.poll()
    generation = run.generation
    act(logs, "thin:100")
    run.refresh()
    assert follower.poll()[0]["event"] == "start"
    assert run.generation != generation
    assert answers(run) == answers(opened(folder))


def test_resumed_run_continues_after_thinning(logs):
    folder = make_run(logs)
    act(logs, "thin:100")
    act(logs, "gzip")
    options = {"log_dir": str(logs), "console": False, "system_interval_s": 0, "git": False}
    with tachograph.init("a", resume=True, **options) as run:
        run.log(loss=-1.0, step=2_000)
    assert opened(folder).last_value("loss") == -1.0
    append(folder, [])
    assert len(folder.csv.read_text().splitlines()) > 20


THIN = """
import sys
from tachograph.catalog import apply_step, make_rule, plan_prune
print("ready", flush=True)
sys.stdin.readline()
for action in sys.argv[2:]:
    for step in plan_prune(sys.argv[1], [make_rule("name=a", [action])]):
        apply_step(sys.argv[1], step)
        print(".", flush=True)
"""


def test_kill_while_thinning_loses_nothing(logs, script):
    folder = make_run(logs)
    original = folder.journal.read_bytes()
    chance = random.Random(5)
    for _ in range(5):
        running = script(THIN, logs, "gzip", "thin:10", "gzip", "thin:100", "gzip")
        hears(running, "ready")
        running.process.stdin.write("\n")
        running.process.stdin.flush()
        for _ in range(chance.randrange(5)):
            running.process.stdout.readline()
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        (row,) = Catalog(logs, uses_index=False).rows(is_full=True)
        assert (row.get("loss.max"), row.get("loss.nonfinite"), row.get("state")) == (50.0, 1, "finished")
        kept = [folder.path, *(logs / OWN / "trash" / run.id for run in list_trash(str(logs)))]
        contents = []
        for path in kept:
            with open_journal(path / "metrics.jsonl") as file:
                contents.append(file.read())
        assert original in contents


def test_thinning_killed_before_the_swap_leaves_no_copy(logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    folder = make_run(logs)
    original = folder.journal.read_bytes()
    for clean_up in (("trash", "list"), ("prune", "--where", "name=a", "--do", "drop_traces", "--yes")):
        trash_journal(str(logs), "a", folder.journal)  # the last step before the swap
        assert folder.journal.stat().st_nlink == 2
        assert list_trash(str(logs)) == []  # the run is still in its place
        tacho(*clean_up)
        assert folder.journal.stat().st_nlink == 1
        assert os.listdir(logs / OWN / "trash") == []
    act(logs, "thin:100")
    tacho("trash", "list")
    assert restore_run(str(logs), "a") == "a-2"
    assert (logs / "a-2" / "metrics.jsonl").read_bytes() == original


def test_parse_action():
    assert str(parse_action("thin:100")) == "thin:100"
    assert str(parse_action(" gzip ")) == "gzip"
    text = "drop_media:kind=video+audio:older=30d:larger=1.5MB:all"
    assert str(parse_action(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drop_media:kind=film", "unknown kind 'film'; expected image"),
        ("drop_media:older=30", "invalid age '30'"),
        ("drop_media:older=-3d", "invalid age"),
        ("drop_media:larger=big", "invalid size 'big'"),
        ("drop_media:newest", "unknown option 'newest'"),
        ("gzip:all", "unknown action 'gzip:all'"),
        ("thin_media:kind=video", "only pictures can be thinned"),
    ],
)
def test_invalid_media_options_are_explained(text, message):
    with pytest.raises(TachographError, match=message):
        parse_action(text)


def make_media_run(logs):
    """Return a run with pictures at steps 0 to 9, of which those at 3 are also in a table, and its folder."""
    run = logs / "a"
    pictures = [store(run, picture(400, 300, (25 * number, 9, 9)), "png") for number in range(10)]
    table = table_file(run, [{"p": {"media": "image", **pictures[3]}}])
    damaged = store(run, b"no picture", "png")
    write(
        run,
        [
            {**START, "run_name": "a"},
            *(media("samples", "image", number, item) for number, item in enumerate(pictures)),
            media("table", "table", 5, table),
            *(media("odd", "image", number, damaged if number == 1 else pictures[4 * number]) for number in range(3)),
            END,
        ],
    )
    return RunFolder(run), [item["sha256"] for item in pictures]


def names_of_files(folder):
    return {path.name.partition(".")[0] for path in folder.media.rglob("*") if path.is_file()}


def test_media_are_thinned_to_thumbnails(logs):
    folder, hashes = make_media_run(logs)
    (estimate,) = [item.freed for item in plan_prune(str(logs), [make_rule("name=a", ["thin_media"])])]
    (freed,) = act(logs, "thin_media")
    assert (freed.num_files, estimate.num_files) == (6, 7)  # a damaged one has no thumbnail and stays
    kept = {hashes[0], hashes[3], hashes[8], hashes[9]}  # both ends of each name, and the picture in the table
    assert names_of_files(folder) & set(hashes) == kept
    assert len(names_of_files(folder)) == 6  # the table and the damaged one, too
    for sha256 in set(hashes) - kept:
        assert make_thumbnail(folder, sha256, io.BytesIO(), 320)[:4] == b"RIFF"
    act(logs, "drop_rebuildable")
    assert has_thumbnail(folder, hashes[1])  # the last copy


def test_media_are_dropped_except_both_ends(logs):
    folder, hashes = make_media_run(logs)
    act(logs, "pack_media")
    (freed,) = act(logs, "drop_media")
    assert freed.num_files == 7
    assert {number for number, sha256 in enumerate(hashes) if has_media(folder, sha256, "png")} == {0, 3, 8, 9}
    items = list(tachograph.read(folder.path).media.items("samples", step=1))
    assert items[0].open() is None and "missing" in items[0].problem
    assert next(iter(tachograph.read(folder.path).media.items("table"))).rows()[0]["p"]["sha256"] == hashes[3]


def test_packed_media_are_read_and_packed_again(logs):
    folder, hashes = make_media_run(logs)
    wrong = "f" * 64
    (folder.media / "ff").mkdir(exist_ok=True)
    (folder.media / "ff" / f"{wrong}.png").write_bytes(b"not this content")
    (folder.media / "notes.txt").write_text("of the user")
    assert "packed 12 files" in tacho("compact", "a", "--log-dir", str(logs))
    assert sorted(path.name for path in folder.media.rglob("*") if path.is_file()) == [f"{wrong}.png", "notes.txt"]
    with zipfile.ZipFile(folder.path / "media.zip") as archive:
        assert archive.testzip() is None and len(archive.infolist()) == 12
    read = list(tachograph.read(folder.path).media.items("samples"))
    assert [(item.path, item.problem) for item in read] == [(None, None)] * 10
    for number, item in enumerate(read):
        with item.open() as file:
            assert file.read() == picture(400, 300, (25 * number, 9, 9))
            file.seek(-4, os.SEEK_END)
            assert file.read() == b"\xaeB`\x82"
    assert disk_usage(folder)["media"] > 10_000
    more = store(folder.path, picture(9, 9), "png")  # of a resumed run
    assert "packed 1 file" in tacho("compact", "a", "--log-dir", str(logs))
    assert has_media(folder, more["sha256"], "png") and has_media(folder, hashes[0], "png")
    assert "packed 0 files" in tacho("compact", "a", "--log-dir", str(logs))


def test_packing_stops_at_a_run_that_was_resumed(logs):
    folder, _ = make_media_run(logs)
    assert pack_media(folder, publishing=lambda: contextlib.nullcontext(False)) == 0
    assert len(names_of_files(folder)) == 12 and sorted(os.listdir(folder.path)) == ["media", "metrics.jsonl"]


@pytest.mark.parametrize("moment", ["unlink", "rename"])
def test_killed_packing_loses_no_file(logs, moment, monkeypatch):
    folder, hashes = make_media_run(logs)
    pid = os.fork()
    if pid == 0:
        kill = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        if moment == "unlink":
            monkeypatch.setattr("tachograph.catalog._media.media_path", kill)
        pack_media(folder, publishing=kill if moment == "rename" else lambda: contextlib.nullcontext(True))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert all(has_media(folder, sha256, "png") for sha256 in hashes)
    assert pack_media(folder, publishing=lambda: contextlib.nullcontext(True)) == 12
    assert all(has_media(folder, sha256, "png") for sha256 in hashes) and names_of_files(folder) == set()


def test_hostile_archive_names_no_other_file(logs):
    folder, hashes = make_media_run(logs)
    shutil.rmtree(folder.media)
    secret = logs / "secret.png"
    secret.write_bytes(picture())
    pack = folder.path / "media.zip"
    with zipfile.ZipFile(pack, "w") as archive:
        archive.writestr(f"{hashes[0][:2]}/{hashes[0]}.png", b"x" * 1_000, zipfile.ZIP_DEFLATED)
        archive.writestr(f"../{hashes[1][:2]}/{hashes[1]}.png", b"x")
        archive.writestr("../../secret.png", b"x")
        archive.writestr(f"{hashes[2][:2]}/{hashes[2]}.png", b"whole")
    assert [has_media(folder, sha256, "png") for sha256 in hashes[:3]] == [False, False, True]
    data = pack.read_bytes()
    pack.write_bytes(data.replace(b"PK\x03\x04", b"PK\x03\x05"))  # headers that are none
    assert open_media(folder, hashes[2], "png") is None
    for length in (0, 10, len(data) - 30, len(data) - 1):
        pack.write_bytes(data[:length])
        assert open_media(folder, hashes[2], "png") is None, length
    pack.unlink()
    pack.symlink_to(secret)
    assert open_media(folder, hashes[2], "png") is None


def test_what_is_not_sent_yet_stays(logs):
    folder, _ = make_media_run(logs)
    files = names_of_files(folder)
    write_destination(folder, Destination(server="https://tacho.example.org", mode="offline"))
    for action in ("thin_media", "drop_media", "trash", "thin:100", "drop_traces"):
        (item,) = plan_prune(str(logs), [make_rule("name=a", [action])])
        assert (item.action, "were not sent to its server yet: tacho sync a" in item.skipped) == (None, True)
        with pytest.raises(TachographError, match="not sent to its server"):
            parse_action(action).apply(str(logs), folder, "a")
    assert names_of_files(folder) == files
    assert act(logs, "drop_rebuildable") is not None
    # The server has all records, and the media that the first half of them names.
    size = folder.journal.stat().st_size
    state = {"server": "https://tacho.example.org", "have": {"0": size}, "media_offset": size // 2}
    folder.private.mkdir(exist_ok=True)
    (folder.private / "server.json").write_text(json.dumps(state))
    (item,) = plan_prune(str(logs), [make_rule("name=a", ["drop_media"])])
    assert item.action is None
    (folder.private / "server.json").write_text(json.dumps({**state, "media_offset": size}))
    (freed,) = act(logs, "drop_media")
    assert freed.num_files == 7


def test_media_option_is_short_for_the_actions(logs):
    folder, hashes = make_media_run(logs)
    result = CliRunner().invoke(main, ["prune", "--media", "thin", "--log-dir", str(logs)])
    assert (result.exit_code, "thin_media" in result.output) == (0, True)
    result = CliRunner().invoke(main, ["prune", "--media", "thin", "--yes", "--log-dir", str(logs)])
    assert (result.exit_code, has_thumbnail(folder, hashes[1])) == (0, True)
    result = CliRunner().invoke(main, ["prune", "--media", "thin", "--policy", "x.yaml", "--log-dir", str(logs)])
    assert (result.exit_code, "policy" in result.output) == (2, True)


def make_mixed_run(logs):
    """Return a run with a picture, a video and a table at each of four steps, the last of them logged just now."""
    run = logs / "mixed"
    records, hashes = [], {"image": [], "video": [], "table": [], "cell": []}
    for number in range(4):
        at = {"time": time.time() if number == 3 else 1_000.0}
        still = store(run, picture(20, 20, (60 * number, 1, 1)), "png")
        clip = store(run, bytes([number]) * 1_000 * (number + 1), "mp4")
        cell = store(run, picture(20, 20, (60 * number, 1, 2)), "png")
        table = table_file(run, [{"number": number, "p": {"media": "image", **cell}}])
        for kind, item in (("image", still), ("video", clip), ("table", table)):
            records.append(media(f"{kind}s", kind, number, item, **at))
            hashes[kind].append(item["sha256"])
        hashes["cell"].append(cell["sha256"])
    write(run, [{**START, "run_name": "mixed"}, *records, END])
    return RunFolder(run), hashes


def test_media_are_dropped_by_kind_age_and_size(logs):
    folder, hashes = make_mixed_run(logs)

    def plan(option):
        steps = plan_prune(str(logs), [make_rule("name=mixed", [f"drop_media{option}"])])
        removable = {
            file.sha256
            for step in steps
            for file in list_removable_media(folder, is_thinned=False, media_filter=step.action.media_filter)
        }
        assert sum(step.freed.num_files for step in steps) == len(removable)
        return {
            kind: [number for number, each in enumerate(known) if each in removable] for kind, known in hashes.items()
        }

    nothing = {"image": [], "video": [], "table": [], "cell": []}
    assert plan("") == {**nothing, "image": [1, 2], "video": [1, 2]}
    assert plan(":kind=video") == {**nothing, "video": [1, 2]}
    assert plan(":kind=video:all") == {**nothing, "video": [0, 1, 2, 3]}
    assert plan(":kind=video:all:older=1d") == {**nothing, "video": [0, 1, 2]}
    assert plan(":larger=2kB:all") == {**nothing, "video": [1, 2, 3]}
    assert plan(":kind=table+image") == {**nothing, "image": [1, 2], "table": [1, 2], "cell": [1, 2]}
    journal = folder.journal.read_bytes()
    (freed,) = act(logs, "drop_media:kind=video+table:all:older=1d", "mixed")
    assert freed.num_files == 9
    assert folder.journal.read_bytes() == journal  # the records stay
    remaining = names_of_files(folder)
    assert {kind: [n for n, each in enumerate(known) if each in remaining] for kind, known in hashes.items()} == {
        "image": [0, 1, 2, 3],
        "video": [3],
        "table": [3],
        "cell": [3],
    }
    assert "missing" in next(iter(tachograph.read(folder.path).media.items("videos"))).problem
    assert "drop_media:kind=video+table" in read_annotations(folder).values["custom.pruned_drop_media"]


def test_media_options_select_files(logs):
    folder, hashes = make_mixed_run(logs)
    drop = ["prune", "--media", "drop", "--log-dir", str(logs), "--kind", "video,audio", "--all-steps"]
    plan = CliRunner().invoke(main, [*drop, "--older-than", "1d", "--larger-than", "2kB", "--dry-run", "--json"])
    (step,) = json.loads(plan.output)["steps"]
    assert (step["num_files"], step["freed_bytes"]) == (2, 5_000)
    assert step["action"] == "drop_media:kind=video+audio:older=1d:larger=2kB:all"
    assert len(names_of_files(folder)) == 16
    plan = CliRunner().invoke(main, [*drop, "--dry-run"])
    assert [line.split() for line in plan.output.splitlines() if line.startswith("mixed")] == [
        ["mixed", "drop_media:kind=video+audio:all", "4", "10.0", "kB"]
    ]
    result = CliRunner().invoke(main, [*drop, "--yes"])
    assert (result.exit_code, "freed 10" in result.output) == (0, True)
    assert not names_of_files(folder) & set(hashes["video"])
    result = CliRunner().invoke(main, ["prune", "--kind", "video", "--log-dir", str(logs)])
    assert (result.exit_code, "need --media" in result.output) == (2, True)


def test_prune_and_du_count_artifacts(logs):
    make_media_run(logs)
    store = ArtifactStore(logs)
    store.add("model", collect_sources({"a": b"x" * 2_000}))
    project = ArtifactStore(logs / "project")
    project.add("model", collect_sources({"a": b"y" * 3_000}))
    usage = json.loads(CliRunner().invoke(main, ["du", "--json", "--log-dir", str(logs)]).output)
    assert usage["artifacts"] == {"num_files": 2, "num_bytes": 5_000}
    store.remove("model", "v0")
    result = CliRunner().invoke(main, ["prune", "--media", "drop", "--log-dir", str(logs)])
    assert "tacho artifact gc" in result.output
