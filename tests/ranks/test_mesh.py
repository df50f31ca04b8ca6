"""The position of a rank in the mesh of its job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tachograph._base.mesh import mesh_coordinates
from tachograph.cli._main import main
from tachograph.diagnostics import RuleEngine, resolve_rules
from tachograph.reader import read
from tachograph.records import PhaseTime, RankWindow
from tests.conftest import Script, whole_lines


def test_device_mesh_that_is_made_after_init_is_recorded(script: Callable[..., Script], logs: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    source = """
        import sys
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        import tachograph as tacho

        dist.init_process_group("gloo")
        run = tacho.init("job", log_dir=sys.argv[1], console=False)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        assert list(mesh.get_coordinate()) == [dist.get_rank() // 2, dist.get_rank() % 2]
        run.finish()
        dist.barrier()
    """
    job = {
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    programs = [
        script(source, logs, env={**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}, preload="torch")
        for rank in range(4)
    ]
    for program in programs:
        program.ok()
    views = read("job", logs).ranks
    assert [view.mesh for view in views] == [{"pipeline": rank // 2, "data": rank % 2} for rank in range(4)]
    assert [view.local_rank for view in views] == [0, 1, 2, 3]
    first = whole_lines(logs / "job" / "ranks" / "00001.jsonl")[0]
    assert (first["local_rank"], "mesh" in first) == (1, False)
    shown = CliRunner().invoke(main, ["show", "job", "--log-dir", str(logs), "--ranks"], env={"COLUMNS": "200"})
    assert "pipeline=1 data=0" in shown.output


def module(name: str, monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    stub = ModuleType(name)
    vars(stub).update(members)
    monkeypatch.setitem(sys.modules, name, stub)


def test_mesh_of_megatron_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"data": 2, "tensor_model": 4, "pipeline_model": 2, "expert_model": 1}
    ranks = {"data": 1, "tensor_model": 3, "pipeline_model": 0, "expert_model": 0}
    functions = {f"get_{name}_parallel_world_size": lambda size=size: size for name, size in sizes.items()}
    functions |= {f"get_{name}_parallel_rank": lambda rank=rank: rank for name, rank in ranks.items()}

    def no_group() -> int:
        raise AssertionError("context parallel group is not initialized")

    functions |= {"get_context_parallel_world_size": no_group, "get_context_parallel_rank": no_group}
    is_initialized = [False]
    module(
        "megatron.core.parallel_state",
        monkeypatch,
        model_parallel_is_initialized=lambda: is_initialized[0],
        **functions,
    )
    assert mesh_coordinates() == {}
    is_initialized[0] = True
    assert mesh_coordinates() == {"data": 1, "tensor": 3, "pipeline": 0}


def test_mesh_of_deepspeed_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = SimpleNamespace(
        get_pipe_parallel_world_size=lambda: 2,
        get_pipe_parallel_rank=lambda: 1,
        get_stage_id=lambda: 1,
        get_data_parallel_world_size=lambda: 4,
        get_data_parallel_rank=lambda: 2,
        get_model_parallel_world_size=lambda: 1,
        get_model_parallel_rank=lambda: 0,
    )
    module("torch.distributed", monkeypatch, get_rank=lambda: 6)
    module("deepspeed.utils.groups", monkeypatch, mpu=None, _EXPERT_PARALLEL_GROUP_RANKS={"ep_size_2": range(6, 8)})
    assert mesh_coordinates() == {"expert": 0}
    module("deepspeed.utils.groups", monkeypatch, mpu=grid, _EXPERT_PARALLEL_GROUP_RANKS={"ep_size_2": [5, 6]})
    assert mesh_coordinates() == {"data": 2, "pipeline": 1, "expert": 1}
    # Its state may change in other versions.
    module("deepspeed.utils.groups", monkeypatch, mpu=object(), _EXPERT_PARALLEL_GROUP_RANKS=3)
    assert mesh_coordinates() == {}


def test_stage_that_is_known_later_is_judged_as_a_stage() -> None:
    engine = RuleEngine(resolve_rules(None))

    def observe(rank: int, record: dict[str, Any]) -> list[dict[str, Any]]:
        return engine.observe_rank(rank, record) if rank else engine.observe(record)

    for rank in range(8):
        observe(rank, {"event": "start", "time": 0.0, "world_size": 8, "process": {"host": "node1", "pid": rank}})
        observe(rank, {"event": "event", "name": "rank_mesh", "time": 1.0, "mesh": {"pipeline": rank // 4}})
    rules = set()
    for number in range(12):
        for rank in range(8):
            own_s = 0.13 if rank >= 4 else 0.1
            window = RankWindow(
                last_iteration=16 * number + 15,
                num_iterations=16,
                own=PhaseTime(own_s, 0.001),
                wait=PhaseTime(0.2 - own_s, 0.001),
            )
            alerts = observe(rank, {"event": "rank", "time": 2.0 + number, **window.to_fields()})
            rules |= {alert["rule"] for alert in alerts}
    assert rules == {"unequal_work"}
