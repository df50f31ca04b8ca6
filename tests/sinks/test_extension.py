"""The example package adds its sink and its importer through entry points, without being installed by pip."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conftest import lines_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "extension"


@pytest.fixture
def environment(tmp_path):
    """Put the source and the metadata that pip would generate on the path of a subprocess."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))
    path = os.pathsep.join([str(EXAMPLE / "src"), str(info.parent), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path}


def test_example_sink_is_used_by_name(logs, tmp_path, script, environment):
    script(
        """
        import sys, tachograph
        logs, path = sys.argv[1:]
        with tachograph.init("x", log_dir=logs, sinks=[{"textfile": {"path": path}}], git=False) as run:
            for step in range(5):
                run.log(train_loss=1.0 / (step + 1), step=step)
        """,
        logs,
        tmp_path / "metrics.prom",
        env=environment,
    ).ok()
    assert 'tachograph_train_loss{run="x"} 0.2\n' in (tmp_path / "metrics.prom").read_text()
    assert (logs / "x" / ".tacho" / "sink-textfile.json").exists()
    assert not [record for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]


def test_example_sink_is_configured_by_environment(logs, tmp_path, script, environment):
    script(
        """
        import sys, tachograph
        tachograph.init("x", log_dir=sys.argv[1], git=False, system_interval_s=0).finish()
        """,
        logs,
        env={**environment, "TACHO_SINKS": f'[{{"textfile": {{"path": "{tmp_path}/metrics.prom"}}}}]'},
    ).ok()
    assert (tmp_path / "metrics.prom").exists()


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        ("['textfile']", "sink 'textfile' needs the option 'path'"),
        ("[{'textfile': {'path': 'x.txt'}}]", "sink 'textfile': path must end in .prom, got 'x.txt'"),
        ("[{'textfile': {'pth': 'x.prom'}}]", "sink 'textfile' has no option 'pth'; did you mean 'path'?"),
        ("['textfil']", "unknown sink 'textfil'; did you mean 'textfile'? Available: "),
    ],
)
def test_wrong_use_of_example_sink_fails_at_setup(logs, script, environment, sinks, message):
    code, _, err = script(
        f"import sys, tachograph\ntachograph.init('x', log_dir=sys.argv[1], sinks={sinks})", logs, env=environment
    ).wait()
    assert code == 1
    assert message in err.strip().splitlines()[-1]
    assert not logs.exists()


def test_example_importer_is_used_by_read_log(tmp_path, script, environment):
    (tmp_path / "old.logfmt").write_text("step=0 loss=1.5 note=warm-up\nstep=10 loss=0.5\n")
    script(
        """
        import sys, tachograph
        from tachograph.importers import describe, read_log
        assert describe(sys.argv[1]) == "logfmt"
        assert list(read_log(sys.argv[1])) == [
            {"event": "step", "global_step": 0, "loss": 1.5}, {"event": "step", "global_step": 10, "loss": 0.5}
        ]
        assert tachograph.diagnose(sys.argv[1]).signals == {"loss": "loss"}
        """,
        tmp_path / "old.logfmt",
        env=environment,
    ).ok()


def test_documentation_shows_the_example():
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    for module in ("textfile", "logfmt"):
        code = (EXAMPLE / "src" / "tachograph_example" / f"{module}.py").read_text(encoding="utf-8")
        body = re.sub(r'\A""".*?"""\n\nfrom __future__ import annotations\n\n', "", code, flags=re.DOTALL)
        assert body in page
    project = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    for group in ("sinks", "importers"):
        block = re.search(rf'\[project.entry-points."tachograph.{group}"\]\n.*\n', project)[0]
        assert block in page
