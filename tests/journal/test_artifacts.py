"""Artifacts: files by content, versions, aliases, lineage; killed processes, several writers and hostile paths."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import tachograph
from tachograph.catalog import Catalog, ancestors_of
from tachograph.cli._main import main
from tachograph.exceptions import ArtifactError
from tachograph.journal.artifacts import ArtifactStore, check_artifact_path, collect_sources
from tests.conftest import HANG_S, lines_of, wait_for


@pytest.fixture
def store(logs) -> ArtifactStore:
    return ArtifactStore(logs)


def add(store, name="model", files=None, **options):
    return store.add(name, collect_sources(files or {"a": b"1"}), **options)


def stored_files(logs: Path) -> list[Path]:
    return sorted((logs / ".tachograph" / "artifacts" / "files").glob("*/*"))


def events(folder, name):
    return [record for record in lines_of(folder) if record["event"] == "event" and record["name"] == name]


# The store -----------------------------------------------------------------------------------------------------------


def test_equal_files_are_one_version_and_one_file(store, logs, tmp_path):
    (tmp_path / "data" / "part").mkdir(parents=True)
    for name, text in {"a.txt": "same", "part/b.txt": "same", "part/c.txt": "other"}.items():
        (tmp_path / "data" / name).write_text(text)
    first = store.add("data", collect_sources(tmp_path / "data"), type="dataset", aliases=["best"])
    assert [file.path for file in first.files] == ["a.txt", "part/b.txt", "part/c.txt"]
    assert (str(first), first.aliases, first.type, first.size_bytes) == ("data:v0", ["best", "latest"], "dataset", 13)
    assert len(stored_files(logs)) == 2 and all(len(path.name) == 64 for path in stored_files(logs))
    (tmp_path / "data" / "a.txt").write_text("changed")  # the copy is not
    assert Path(store.find("data").download(tmp_path / "out"), "a.txt").read_text() == "same"
    second = store.add("data", collect_sources(tmp_path / "data"), aliases=["best"])
    assert [str(store.find(f"data:{alias}")) for alias in ("v0", "v1", "best", "latest")] == [
        "data:v0", "data:v1", "data:v1", "data:v1",
    ]  # fmt: skip
    (tmp_path / "data" / "a.txt").write_text("same")
    again = store.add("data", collect_sources(tmp_path / "data"))
    assert (again.version, again.digest, again.aliases) == ("v0", first.digest, ["latest"])
    assert second.digest != first.digest and [str(each) for each in store.versions("data")] == ["data:v0", "data:v1"]


def test_metadata_is_masked_and_keeps_nan(store, logs):
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
    version = add(store, metadata={"loss": float("nan"), "api_key": secret, "shape": (1, 2), "depth": 3})
    assert (str(version.metadata["loss"]), version.metadata["shape"], version.metadata["depth"]) == ("nan", [1, 2], 3)
    text = (logs / ".tachograph" / "artifacts" / "names" / "model" / "v0.json").read_text()
    assert secret not in text and json.loads(text)["metadata"]["loss"] == "NaN"


def test_references_to_anything_but_files_are_rejected(store, logs, tmp_path):
    """A log folder of somebody else may refer to a device without an end, or to a pipe that nobody writes to."""
    version = add(store)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "data").write_text("changed")
    manifest = logs / ".tachograph" / "artifacts" / "names" / "model" / "v0.json"
    values = json.loads(manifest.read_bytes())
    for url, problem in {
        "/dev/zero": "not a regular file",
        str(tmp_path / "pipe"): "not a regular file",
        str(tmp_path): "not a regular file",
        "/proc/self/mem": "which was changed",
        str(tmp_path / "data"): "which was changed; log it again",
        str(tmp_path / "missing"): "cannot read",
    }.items():
        values["files"] = [{"path": "a", "size_bytes": 1, "sha256": "b" * 64, "url": url}]
        manifest.write_text(json.dumps(values))
        version = store.find("model:v0")
        for action in (version.verify, lambda version=version: version.download(tmp_path / "out")):
            with pytest.raises(ArtifactError, match=problem):
                action()
    assert list((tmp_path / "out").iterdir()) == []


def test_changed_and_missing_contents_are_noticed(store, logs, tmp_path):
    version = add(store, files={"a/b": b"content"})
    (path,) = stored_files(logs)
    path.chmod(0o644)
    path.write_bytes(b"CONTENT")
    for action in (version.verify, lambda: version.download(tmp_path / "out")):
        with pytest.raises(ArtifactError, match="the content of 'a/b' was changed"):
            action()
    assert list((tmp_path / "out").rglob("b")) == []
    path.unlink()
    with pytest.raises(ArtifactError, match=r"cannot be read: No such file.*log the same files again"):
        version.verify()
    add(store, files={"a/b": b"content"})
    version.verify()


def test_download_replaces_what_differs_and_follows_no_link(store, tmp_path):
    version = add(store, files={"a": b"1", "d/b": b"2"})
    out = tmp_path / "out"
    (out / "d").mkdir(parents=True)
    (out / "a").write_bytes(b"x")
    (out / "other").write_bytes(b"stays")
    inode = os.stat(out).st_ino
    assert version.download(out) == str(out)
    assert [(out / name).read_bytes() for name in ("a", "d/b", "other")] == [b"1", b"2", b"stays"]
    before = (out / "a").stat()
    version.download(out)
    assert ((out / "a").stat().st_mtime_ns, os.stat(out).st_ino) == (before.st_mtime_ns, inode)
    (out / "d" / "b").unlink()
    (out / "d").rmdir()
    (out / "d").symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match="is a symbolic link"):
        version.download(out)
    assert not (tmp_path / "b").exists()


def test_a_file_cannot_be_the_folder_of_another_one(store, tmp_path):
    file = tmp_path / "file"
    file.write_text("1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").write_text("2")
    for files in (
        {"a": file, "a/b": file},
        {"x/a/b/c": b"1", "x/a": b"2"},
        {"a": tmp_path / "folder", "a/b/c": b""},
    ):
        with pytest.raises(ArtifactError, match=r"'(x/)?a(/b)?' would be a file and, because of '.*', a folder"):
            collect_sources(files)
    with pytest.raises(ArtifactError, match="would be a file"):
        store.add("model", [*collect_sources({"a": b"1"}), *collect_sources({"a/b": b"2"})])
    store.add("model", collect_sources({"a": b"1", "a.b": b"2", "ab/c": b"3", "b/a": b"4"})).download(tmp_path / "out")
    assert (tmp_path / "out" / "b" / "a").read_bytes() == b"4"


def test_tricks_with_paths_are_rejected(store, logs, tmp_path):
    for path in ("", "..", "../a", "a/../../b", "/etc/passwd", "a//b", "a\\b", "C:/a", "a\0b", "./a", "a/", "x" * 300):
        with pytest.raises(ArtifactError, match="in an artifact"):
            check_artifact_path(path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("a")
    (folder / "inside").symlink_to(folder / "a")
    assert sorted(file.path for file in collect_sources(folder)) == ["a", "inside"]
    (tmp_path / "secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(ArtifactError, match=r"is a link to .*secret', outside of the folder"):
        collect_sources(folder)
    os.mkfifo(tmp_path / "pipe")
    for files, text in [
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path / "missing", "cannot read .*missing': No such file"),
        ([tmp_path / "secret", tmp_path / "secret"], "two files would be 'secret'"),
        ([], "no files"),
        (3, "expected a path"),
    ]:
        with pytest.raises(ArtifactError, match=text):
            collect_sources(files)
    for name in ("", "../a", "a/b", ".hidden", "a:b", 3):
        with pytest.raises(ArtifactError, match="artifact"):
            add(store, name=name)
    for alias in ("v3", "a/b", "", "a:b", 3):
        with pytest.raises(ArtifactError, match="alias"):
            add(store, aliases=[alias])
    # A list of files that another program changed.
    version = add(store)
    manifest = logs / ".tachograph" / "artifacts" / "names" / "model" / f"{version.version}.json"
    for file, text in [
        ({"path": "../../escaped", "size_bytes": 1, "sha256": version.files[0].sha256}, "must be relative"),
        ({"path": "a", "size_bytes": 1, "sha256": "../../../../../../../etc/passwd"}, "not a SHA-256"),
    ]:
        content = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**content, "files": [file]}))
        with pytest.raises(ArtifactError, match=text):
            store.find("model").download(tmp_path / "out")


def test_few_files_are_open_while_they_wait(store, tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(200):
        (tmp_path / "data" / str(number)).write_text(str(number))
    before = len(os.listdir("/proc/self/fd"))
    sources = [collect_sources(tmp_path / "data") for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) <= before + 128
    assert [len(store.add("data", files).files) for files in sources] == [200] * 3
    del sources
    assert len(os.listdir("/proc/self/fd")) <= before


def test_error_names_what_there_is(store):
    with pytest.raises(ArtifactError, match="no artifact 'model' in .*there are none"):
        store.find("model")
    add(store, aliases=["best"])
    for reference, text in [
        ("modle", "did you mean 'model'"),
        ("model:v7", "has no version 'v7'; it has v0, best, latest"),
        ("model:", "nothing after the colon; write model:latest"),
    ]:
        with pytest.raises(ArtifactError, match=text):
            store.find(reference)


def test_version_without_index_is_complete(store, logs):
    """A process was killed after it wrote a version and before it wrote the index."""
    add(store, aliases=["best"])
    index = logs / ".tachograph" / "artifacts" / "names" / "model" / "index.json"
    before = index.read_bytes()
    add(store, files={"a": b"2"}, aliases=["best"])
    index.write_bytes(before)
    assert (store.find("model").version, store.find("model:best").version) == ("v1", "v1")
    assert add(store, files={"a": b"2"}).version == "v1"
    assert add(store, files={"a": b"3"}).version == "v2"
    index.write_bytes(b"{")
    assert (store.find("model").version, store.find("model:best").version) == ("v2", "v1")


def test_garbage_is_only_what_no_version_has(store, logs):
    for number in range(3):
        add(store, files={"shared": b"0", "own": str(number).encode()})
    store.remove("model", "v2")
    assert (store.find("model").version, len(stored_files(logs))) == ("v1", 4 - 1)  # "0" is one of the numbers
    add(store, "other", files={"a": b"2"})
    assert store.collect_garbage().num_files == 0
    store.remove("other", "v0")
    staging = logs / ".tachograph" / "artifacts" / "staging"
    staging.mkdir()
    (staging / "leftover").write_bytes(b"12345")
    assert store.collect_garbage(is_dry_run=True) == store.collect_garbage() == (2, 6)
    for version in store.versions("model"):
        version.verify()
    assert add(store, files={"a": b"new"}).version == "v3"  # a number is not used again
    with open(logs / ".tachograph" / "artifacts" / "in-use.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as a process that is storing files
        with pytest.raises(ArtifactError, match="repeat the command later"):
            store.collect_garbage()
    (logs / ".tachograph" / "artifacts" / "names" / "model" / "v0.json").write_text("{")
    with pytest.raises(ArtifactError, match="tacho artifact rm model:v0"):
        store.collect_garbage()
    store.remove("model", "v0")
    store.collect_garbage()


WRITER = """
    import sys
    from tachograph.journal.artifacts import ArtifactStore, collect_sources
    store, who = ArtifactStore(sys.argv[1]), sys.argv[2]
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[3])):
        with open(f"{sys.argv[1]}-{who}", "w") as file:
            file.write(f"{who} {number} " * 50_000)
        sources = collect_sources({"a": file.name, "same": b"same"})
        print(store.add("model", sources, aliases=[who]).version, flush=True)
    """


def test_processes_that_log_one_name_get_different_versions(store, logs, script):
    writers = [script(WRITER, logs, who, 5, preload="tachograph") for who in "abc"]
    for writer in writers:
        writer.process.stdout.readline()
    for writer in writers:
        writer.process.stdin.write("\n")
        writer.process.stdin.flush()
    versions = [line for writer in writers for line in writer.ok().split()]
    assert sorted(versions) == sorted(f"v{number}" for number in range(15))
    for version in store.versions("model"):
        version.verify()
    assert {alias for version in store.versions("model") for alias in version.aliases} == {"a", "b", "c", "latest"}


@pytest.mark.parametrize("num_kills", [5, pytest.param(60, marks=pytest.mark.long)])
def test_version_is_complete_or_absent_after_kill(store, logs, script, num_kills):
    seen: set[str] = set()
    for attempt in range(num_kills):
        writer = script(WRITER, logs, f"w{attempt}", 10_000, preload="tachograph").process
        writer.stdin.write("\n")
        writer.stdin.flush()
        writer.stdout.readline()
        versions = {writer.stdout.readline().strip()}
        time.sleep(random.random() * 0.05)
        os.kill(writer.pid, signal.SIGKILL)
        versions |= set(writer.stdout.read().split())
        writer.wait(HANG_S)
        seen |= versions - {""}
        stored_versions = store.versions("model")
        assert seen <= {version.version for version in stored_versions}
        for version in stored_versions[-3:]:
            version.verify()
        assert store.find("model").version == stored_versions[-1].version
    store.collect_garbage()
    for version in store.versions("model"):
        version.verify()
    assert os.listdir(logs / ".tachograph" / "artifacts" / "staging") == []


# Runs ----------------------------------------------------------------------------------------------------------------


def test_lineage_runs_through_artifacts(logs, tmp_path):
    (tmp_path / "model.pt").write_bytes(os.urandom(3_000_000))
    content = (tmp_path / "model.pt").read_bytes()
    with tachograph.init("train", log_dir=str(logs)) as run:
        pending = run.log_artifact(
            "model", tmp_path / "model.pt", type="model", aliases=["best"], metadata={"lr": 0.1}, step=7
        )
        (tmp_path / "model.pt").unlink()  # the file is open
        assert run.use_artifact("model:best").version == "v0"  # waits for what this run logged
        version = pending.wait(HANG_S)
        assert (str(version), version.run_name, version.run_id, pending.is_done) == ("model:v0", "train", run.id, True)
    with tachograph.init("evaluate", log_dir=str(logs)) as run:
        for _ in range(2):
            model = run.use_artifact("model")
        assert Path(model.download(tmp_path / "out"), "model.pt").read_bytes() == content
    (record,) = events(logs / "train", "artifact")
    assert {key: record[key] for key in ("artifact", "version", "type", "aliases", "num_files", "global_step")} == {
        "artifact": "model", "version": "v0", "type": "model", "aliases": ["latest", "best"], "num_files": 1,
        "global_step": 7,
    }  # fmt: skip
    assert (record["metadata"], record["digest"]) == ({"lr": 0.1}, version.digest)
    assert [each["version"] for each in events(logs / "evaluate", "artifact_used")] == ["v0", "v0"]
    rows = Catalog(str(logs)).rows(is_full=True)
    (parent,) = ancestors_of(next(row for row in rows if row.id == "evaluate"), rows)
    assert (parent.run, parent.how) == ("train", "artifact")
    assert [str(each) for each in tachograph.list_artifacts(logs, run="train")] == ["model:v0"]
    assert tachograph.find_artifact("model:best", logs).digest == version.digest


def test_log_artifact_never_raises(logs, tmp_path, caplog):
    (tmp_path / "a").write_text("a")
    run = tachograph.init("x", log_dir=str(logs))
    cases = {
        "missing": (tmp_path / "missing", {}, "No such file"),
        "a/b": (tmp_path / "a", {}, "path separator"),
        "alias": (tmp_path / "a", {"aliases": ["v1"]}, "form of a version"),
        "number": (7, {}, "expected a path"),
    }
    for name, (files, options, text) in cases.items():
        pending = run.log_artifact(name, files, **options)
        with pytest.raises(ArtifactError, match=text):
            pending.wait(HANG_S)
    with pytest.raises(ArtifactError, match="no artifact 'missing'"):
        run.use_artifact("missing")
    run.finish()
    with pytest.raises(ArtifactError, match="has finished"):
        run.log_artifact("late", tmp_path / "a").wait()
    errors = [record for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]
    assert [(record["kind"], record["field"]) for record in errors] == [("artifact_not_stored", name) for name in cases]
    assert caplog.text.count("is not stored") == len(cases) + 1
    with tachograph.init("off", log_dir=str(logs), enabled=False) as run:
        assert run.log_artifact("m", tmp_path / "a").wait().version == ""
    assert tachograph.list_artifacts(logs) == []


def test_file_that_changes_before_it_is_stored_is_rejected(logs, tmp_path):
    path = tmp_path / "model.pt"
    path.write_text("first")
    (logs / ".tachograph" / "artifacts").mkdir(parents=True)
    with (
        open(logs / ".tachograph" / "artifacts" / "in-use.lock", "wb") as lock,
        tachograph.init("x", log_dir=str(logs), exit_timeout_s=0.2) as run,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # storing waits
        changed_file = run.log_artifact("changed", path)
        path.write_text("second")
        in_time = run.log_artifact("late", path)
        run.finish()
        with pytest.raises(ArtifactError, match="not stored within 0"):
            in_time.wait(0)
        fcntl.flock(lock, fcntl.LOCK_UN)
        with pytest.raises(ArtifactError, match="was changed before it was stored"):
            changed_file.wait(HANG_S)
        assert in_time.wait(HANG_S).run_name == "x"  # the process still lives
        assert run.finish(timeout_s=HANG_S)  # only waits for the journal
    errors = {
        record["field"]: record["reason"] for record in lines_of(logs / "x") if record["event"] == "telemetry_error"
    }
    assert errors.keys() == {"changed", "late"} and "half of exit_timeout_s" in errors["late"]


def test_finish_waits_for_artifacts(logs, tmp_path, script):
    (tmp_path / "big").write_bytes(os.urandom(20_000_000))
    source = """
        import sys, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], exit_timeout_s=600)
        run.log_artifact("big", sys.argv[2])
        """
    script(source, logs, tmp_path / "big", preload="tachograph").ok()
    tachograph.find_artifact("big", logs).verify()
    assert [record["version"] for record in events(logs / "x", "artifact")] == ["v0"]


# The command ---------------------------------------------------------------------------------------------------------


def tacho(logs, *arguments, code=0):
    result = CliRunner().invoke(main, ["artifact", *map(str, arguments), "--log-dir", str(logs)])
    assert result.exit_code == code, result.output
    return result.output


def test_command_lists_each_file_on_one_line(store, logs):
    long_path = "/".join(["folder"] * 60)
    add(store, files={long_path: b"4"})
    assert long_path in [line.split()[0] for line in tacho(logs, "ls", "model", "--files").splitlines()]


def test_command_lists_downloads_verifies_and_removes(store, logs, tmp_path):
    assert "no artifacts" in tacho(logs, "ls")
    add(store, run_name="train", aliases=["best"], type="model")
    add(store, files={"a": b"2", "d/b": b"3"}, metadata={"x": float("inf")})
    assert [line.split()[0] for line in tacho(logs, "ls").splitlines()] == ["artifact", "model:v0", "model:v1"]
    assert "d/b" in tacho(logs, "ls", "model", "--files") and "model:v1" not in tacho(logs, "ls", "model:best")
    (listed,) = json.loads(tacho(logs, "ls", "--run", "train", "--json"))
    assert (listed["version"], listed["aliases"], listed["files"][0]["path"]) == ("v0", ["best"], "a")
    assert tacho(logs, "get", "model:best", tmp_path / "out").endswith(f"{tmp_path / 'out'}\n")
    assert json.loads(tacho(logs, "get", "model", tmp_path / "out", "--json"))["size_bytes"] == 2
    assert (tmp_path / "out" / "d" / "b").read_bytes() == b"3"
    assert "2 versions verified, 0 problems" in tacho(logs, "verify")
    assert "pass --force" in tacho(logs, "rm", "model:v0", "-y", code=1)
    assert "such as model:v0" in tacho(logs, "rm", "model", "-y", code=1)
    tacho(logs, "rm", "model:v0", "--force", "-y")
    assert "would delete 1 file, 1 B" in tacho(logs, "gc", "--dry-run")
    assert json.loads(tacho(logs, "gc", "--json")) == {"num_files": 1, "num_bytes": 1, "is_dry_run": False}
    path = stored_files(logs)[0]
    path.chmod(0o644)
    path.write_bytes(b"X")
    problems = json.loads(tacho(logs, "verify", "model", "--json", code=1))["problems"]
    assert list(problems) == ["model:v1"] and "was changed" in problems["model:v1"]
    assert "no artifact 'nothing'" in tacho(logs, "get", "nothing", code=1)


# Hugging Face --------------------------------------------------------------------------------------------------------

TRAINER = """
    import os, sys
    import tachograph.wandb as facade
    sys.modules["wandb"] = facade
    os.environ["WANDB_LOG_MODEL"] = sys.argv[1]
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    from transformers.integrations import WandbCallback
    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
    arguments = TrainingArguments(
        "out", max_steps=2, save_steps=1, save_total_limit=1, per_device_train_batch_size=2, report_to=[],
        use_cpu=True, disable_tqdm=True,
    )
    Trainer(LlamaForCausalLM(LlamaConfig(**sizes)), arguments, train_dataset=data, callbacks=[WandbCallback()]).train()
    """


@pytest.mark.slow
@pytest.mark.xdist_group("frameworks")
def test_trainer_logs_its_model(logs, tmp_path, script):
    pytest.importorskip("transformers")
    expected = {
        "end": {"base_model": 1, "final_model": 5},
        "checkpoint": {"base_model": 1, "checkpoint_global_step_1": 8, "checkpoint_global_step_2": 8, "final_model": 5},
    }
    for mode, num_files in expected.items():
        log_dir = tmp_path / mode
        script(TRAINER, mode, preload="frameworks", env={"TACHO_LOG_DIR": str(log_dir)}, cwd=tmp_path).ok()
        versions = wait_for(lambda log_dir=log_dir: tachograph.list_artifacts(log_dir))
        assert {
            alias: len(version.files) for version in versions for alias in version.aliases if alias in num_files
        } == (num_files)
        for version in versions:
            version.verify()
        assert "latest" in versions[-1].aliases
