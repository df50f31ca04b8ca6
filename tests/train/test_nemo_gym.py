"""Training with NeMo Gym: `tacho train` with GRPO against servers of the tests."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import transformers
import yaml

from tachograph.exceptions import ConfigError, PluginError
from tachograph.reader import read
from tachograph.train import load
from tests.conftest import reserve_port
from tests.gym_server import Fault, running_gym, text_of, turns, verify
from tests.train.conftest import BASE, make_tokenizer, write_rows

pytestmark = pytest.mark.filterwarnings("ignore")

SINGLE_TURN = """
base_model: ./model
rl: grpo
chat_template: tokenizer_default
trl:
  use_vllm: true
  vllm_mode: colocate
  vllm_enable_sleep_mode: false
  num_generations: 8
  max_completion_length: 128
  temperature: 0.9
  reward_funcs:
    - axolotl.integrations.nemo_gym.rewards.reward_nemo_gym_verify
plugins:
  - axolotl.integrations.nemo_gym.NemoGymPlugin
nemo_gym_enabled: true
nemo_gym_auto_start: false
nemo_gym_head_port: 11000
nemo_gym_datasets:
  - path: ./gym.jsonl
    server_name: math
datasets:
  - path: ./gym.jsonl
    type: chat_template
    field_messages: responses_create_params.input
    message_field_content: content
    message_field_role: role
vllm:
  gpu_memory_utilization: 0.3
  max_model_len: 512
  tensor_parallel_size: 1
learning_rate: 1e-5
micro_batch_size: 4
gradient_accumulation_steps: 2
max_steps: 50
output_dir: ./out
"""
MULTI_TURN = """
base_model: ./model
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]
sequence_len: 2048
rl: grpo
chat_template: tokenizer_default
trl:
  use_vllm: true
  vllm_mode: server
  vllm_server_host: localhost
  vllm_server_port: 8000
  vllm_lora_sync: true
  vllm_sync_interval: 5
  use_data_producer: true
  async_prefetch: true
  num_generations: 4
  max_completion_length: 512
  temperature: 0.8
  reward_funcs:
    - axolotl.integrations.nemo_gym.rewards.reward_env
plugins:
  - axolotl.integrations.nemo_gym.NemoGymPlugin
nemo_gym_enabled: true
nemo_gym_auto_start: false
nemo_gym_head_port: 11000
nemo_gym_multi_turn: true
nemo_gym_verify_timeout: 120
nemo_gym_datasets:
  - path: ./gym.jsonl
    server_name: math
datasets:
  - path: ./gym.jsonl
    type: chat_template
    field_messages: responses_create_params.input
    message_field_content: content
    message_field_role: role
vllm:
  gpu_memory_utilization: 0.85
  max_model_len: 2048
  tensor_parallel_size: 1
learning_rate: 5e-6
micro_batch_size: 1
gradient_accumulation_steps: 4
max_steps: 30
gradient_checkpointing: true
bf16: true
output_dir: ./out
use_wandb: true
wandb_project: nemo-gym-rl
"""
# The test has neither vLLM nor a network, and no time for all steps.
CHANGES = ("trl.use_vllm=false", "max_steps=2", "use_wandb=false", "trl.max_completion_length=6", "save_strategy=no")


def rows(count=8, **fields):
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "add"}]
    return [{"responses_create_params": {"input": messages}, "number": number, **fields} for number in range(count)]


def options(gym, **changes):
    trl = {"num_generations": 2, "max_completion_length": 4, **changes.pop("trl", {})}
    return {
        "rl": "grpo",
        "datasets": None,
        "trl": trl,
        "plugins": ["nemo_gym"],
        "nemo_gym_head_port": gym.head.port,
        "nemo_gym_datasets": [{"path": "gym.jsonl", "server_name": "math"}],
        "nemo_gym_max_retries": 0,
        **changes,
    }


def load_block(text, gym, *changes):
    Path("block.yaml").write_text(text)
    quiet = [f"telemetry={yaml.safe_dump(BASE['telemetry'], default_flow_style=True).strip()}"]
    return load("block.yaml", [f"nemo_gym_head_port={gym.head.port}", *CHANGES, *quiet, *changes])


def weights(folder):
    return dict(transformers.AutoModelForCausalLM.from_pretrained(folder).named_parameters())


def values(run, name):
    return [float(value) for value in run.series(name).values]


def unchanged(before, after):
    return [name for name, value in weights(before).items() if torch.equal(value, weights(after)[name])]


def test_published_config_trains_with_one_turn(workspace):
    write_rows("gym.jsonl", rows())
    with running_gym({"math": verify}) as gym:
        job = load_block(SINGLE_TURN, gym)
        result = job.run()
        bodies = gym.servers["math"].bodies("/verify")
    assert len(bodies) == 16  # eight completions in each of two steps
    rewards = [len(text_of(body)) / 100 for body in bodies]
    run = read(result.run_dir)
    for name in ("plugin/nemo_gym/math/reward_mean", "rewards/reward_nemo_gym_verify/mean"):
        assert sum(values(run, name)) / 2 == pytest.approx(sum(rewards) / 16, rel=1e-5)
    assert values(run, "plugin/nemo_gym/math/failures") == [0.0, 0.0]
    assert values(run, "plugin/nemo_gym/active") == [1.0, 1.0]
    assert all("plugin/nemo_gym/math/" + name in run.metrics for name in ("verify_ms_p50", "verify_ms_p95"))
    assert any("vllm has no effect" in warning for warning in job.warnings)
    (event,) = (record for record in run.records("event") if record.get("name") == "plugin")
    assert event["changes"]["servers connected"]["names"] == [f"math at http://127.0.0.1:{gym.servers['math'].port}"]
    assert "reward function reward_nemo_gym_verify" in event["contributes"]
    assert len(unchanged("model", "out")) < len(weights("model"))


def test_published_config_trains_with_several_turns(workspace):
    write_rows("gym.jsonl", rows())
    tokenizer = make_tokenizer()
    prompt, call, result_ids, last = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("hello", "ab", "12345", "c")
    )

    def run_agent(path, body):
        if path != "/run":
            return {}
        return turns((prompt, call), (result_ids, [*last, tokenizer.eos_token_id]), reward=body["number"] % 2)

    with running_gym({"math": lambda path, body: {}}, {"math_simple_agent": ("math", run_agent)}) as gym:
        job = load_block(MULTI_TURN, gym, "trl.max_completion_length=20")
        result = job.run()
        bodies = gym.servers["math_simple_agent"].bodies("/run")
    run = read(result.run_dir)
    assert len(bodies) == 8
    assert {body["responses_create_params"]["temperature"] for body in bodies} == {0.8}
    assert values(run, "completions/mean_length") == [4.0, 4.0]  # tokens of the model only
    assert values(run, "plugin/nemo_gym/math_simple_agent/num_turns") == [2.0, 2.0]
    expected = sum(body["number"] % 2 for body in bodies) / 8
    assert sum(values(run, "rewards/reward_env/mean")) / 2 == pytest.approx(expected)
    assert math.isfinite(result.metrics["train_loss"])
    assert [warning.partition(" ")[0] for warning in job.warnings if warning.startswith("trl.")] == [
        f"trl.{name}" for name in ("vllm_lora_sync", "vllm_sync_interval", "use_data_producer", "async_prefetch")
    ]


def test_mask_reaches_the_loss(make_job, monkeypatch):
    """Only tokens that the model generated are trained on, also if prompts are the same."""
    from trl import GRPOTrainer

    write_rows("gym.jsonl", rows())
    batches = []
    compute_loss = GRPOTrainer.compute_loss

    def record(trainer, model, inputs, *arguments, **kwargs):
        batches.append(inputs)
        return compute_loss(trainer, model, inputs, *arguments, **kwargs)

    def run_agent(path, body):
        if path != "/run":
            return {}
        return turns(([10, 11], [12, 13]), ([14] * 3, [20 + body["number"]]), reward=body["number"])

    monkeypatch.setattr(GRPOTrainer, "compute_loss", record)
    with running_gym({"math": lambda path, body: {}}, {"agent": ("math", run_agent)}) as gym:
        trl = {"max_completion_length": 16}
        make_job(**options(gym, nemo_gym_multi_turn=True, trl=trl, micro_batch_size=4, max_steps=1)).run()
        numbers = [body["number"] for body in gym.servers["agent"].bodies("/run")]
    (batch,) = batches
    assert batch["tool_mask"].tolist() == [[1, 1, 0, 0, 0, 1]] * 4
    assert batch["completion_ids"][:, :5].tolist() == [[12, 13, 14, 14, 14]] * 4
    assert sorted(batch["completion_ids"][:, 5].tolist()) == sorted(20 + number for number in numbers)
    assert batch["prompt_ids"].tolist() == [[10, 11]] * 4


def test_prompts_have_tools_and_all_messages(make_job, monkeypatch):
    from trl import GRPOTrainer

    tool = {"type": "function", "name": "sum", "strict": True, "parameters": {"type": "object"}}
    data = rows()
    for row in data[1:]:
        row["responses_create_params"] = {**row["responses_create_params"], "tools": [tool]}
    write_rows("gym.jsonl", data)
    template = (
        "{% for tool in tools or [] %}{{ tool.function.name + ';' }}{% endfor %}{% for message in messages %}"
        "{% if message.role in ('system', 'user') %}{{ message.role + ':' + message.content + ';' }}{% endif %}"
        "{% endfor %}"
    )
    prompts = set()
    generate = GRPOTrainer._generate_single_turn

    def record(trainer, prompt_ids, *arguments, **kwargs):
        prompts.update(trainer.processing_class.decode(ids).replace(" ", "") for ids in prompt_ids)
        return generate(trainer, prompt_ids, *arguments, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", record)
    with running_gym({"math": verify}) as gym:
        make_job(
            **options(gym, chat_template="jinja", chat_template_jinja=template, micro_batch_size=16, max_steps=1)
        ).run()
        bodies = gym.servers["math"].bodies("/verify")
    assert prompts == {"sum;system:bebrief;user:add;", "system:bebrief;user:add;"}
    assert bodies[0]["responses_create_params"]["input"][0]["role"] == "developer"


def test_missing_rewards_leave_the_model_unchanged(make_job, caplog):
    """A group without rewards adds nothing to the gradient, with one turn and with several."""
    write_rows("gym.jsonl", rows())
    broken = Fault(status=400)
    for multi_turn in (False, True):
        with running_gym({"math": lambda path, body: broken}, {"agent": ("math", lambda path, body: broken)}) as gym:
            changes = {"nemo_gym_multi_turn": multi_turn, "nemo_gym_max_failed_batches": 9, "weight_decay": 0.0}
            result = make_job(**options(gym, **changes)).run()
        run = read(result.run_dir)
        assert len(unchanged("model", "out")) == len(weights("model"))
        assert values(run, "plugin/nemo_gym/missing_rewards") == [2.0, 2.0]
        assert values(run, "plugin/nemo_gym/groups_without_reward") == [1.0, 1.0]
        server = "agent" if multi_turn else "math"
        assert values(run, f"plugin/nemo_gym/{server}/failures") == [2.0, 2.0]
        assert f"plugin/nemo_gym/{server}/reward_mean" not in run.metrics
        assert values(run, "plugin/nemo_gym/active") == [0.0, 0.0]
        assert result.metrics["train_loss"] == 0.0
        assert "All reward functions returned None" not in caplog.text  # TRL would print the whole row
        assert ("model server are not updated" in caplog.text) == multi_turn


def test_half_of_the_rewards_train_the_model(make_job):
    """The other half is missing: it does not count in the mean of its group, and has no advantage."""
    write_rows("gym.jsonl", rows())
    number = iter(range(1000))

    def respond(path, body):
        if path != "/verify":
            return {}
        place = next(number)
        return Fault(status=400) if place % 2 else {"reward": float(place % 4)}

    Path("my_rewards.py").write_text("def one(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    with running_gym({"math": respond}) as gym:
        trl = {"num_generations": 4, "reward_funcs": ["my_rewards.one"], "reward_weights": [1.0, 2.0]}
        job = make_job(**options(gym, trl=trl, micro_batch_size=4, nemo_gym_max_concurrency=1))
        result = job.run()
    run = read(result.run_dir)
    # The requests of a batch are sent in order: the rewards are 0, missing, 2, missing. The other function gives 1.
    assert values(run, "rewards/reward_nemo_gym_verify/mean") == [1.0, 1.0]
    assert values(run, "rewards/one/mean") == [1.0, 1.0]
    assert values(run, "reward") == [3.0, 3.0]
    assert values(run, "plugin/nemo_gym/missing_rewards") == [2.0, 2.0]
    completions = run.completions()
    assert completions
    assert len(unchanged("model", "out")) < len(weights("model"))


def test_dead_server_stops_training_and_is_named(make_job):
    write_rows("gym.jsonl", rows())
    with running_gym({"math": lambda path, body: Fault(b"full", status=503)}) as gym:
        job = make_job(**options(gym, max_steps=9, nemo_gym_max_failed_batches=2))
        with pytest.raises(PluginError, match="server math at http.* rewarded nothing in 2 batches.*status 503: full"):
            job.run()
        assert len(gym.servers["math"].bodies("/verify")) == 4


def test_evaluation_has_metrics_of_its_own(make_job):
    write_rows("gym.jsonl", rows())
    with running_gym({"math": verify}) as gym:
        trl = {"num_generations_eval": 2}
        result = make_job(**options(gym, trl=trl, val_set_size=2, eval_strategy="steps", eval_steps=1)).run()
    run = read(result.run_dir)
    assert "plugin/nemo_gym/eval/math/reward_mean" in run.metrics
    assert values(run, "plugin/nemo_gym/missing_rewards") == [0.0, 0.0]


def test_errors_come_before_the_model_is_loaded(make_job):
    write_rows("gym.jsonl", rows())
    write_rows("other.jsonl", rows())
    named_by_row = rows(2, agent_ref={"name": "mathh"})
    write_rows("rows.jsonl", named_by_row)
    long_row = rows(1)
    long_row[0]["responses_create_params"]["input"][1]["content"] = "x" * 300
    write_rows("long.jsonl", long_row)
    with running_gym({"math": verify}, {"agent": ("code", lambda path, body: {})}) as gym:
        gym.config["off"] = {"resources_servers": {"off": {"host": "127.0.0.1", "port": reserve_port()}}}
        for changes, message in (
            ({"nemo_gym_head_port": reserve_port()}, "head server of NeMo Gym at 127.0.0.1:"),
            ({"nemo_gym_head_port": gym.servers["math"].port}, "global_config_dict_yaml lists no resources server"),
            (
                {"nemo_gym_datasets": [{"path": "gym.jsonl", "server_name": "mth"}]},
                "line 1: the head server knows no server 'mth'; did you mean 'math'?",
            ),
            (
                {"nemo_gym_datasets": [{"path": "rows.jsonl"}], "shuffle": False},
                "rows.jsonl, line 1: the head server knows no server 'mathh'; did you mean 'math'?",
            ),
            ({"nemo_gym_datasets": [{"path": "gym.jsonl"}]}, "it names no server: set server_name of the dataset"),
            ({"nemo_gym_datasets": [{"path": "gym.jsonl", "server_name": "off"}]}, "does not accept connections"),
            ({"nemo_gym_datasets": [{"path": "long.jsonl", "server_name": "math"}]}, "do not fit the model's 256"),
            ({"nemo_gym_datasets": [{"path": "none.jsonl"}]}, "nemo_gym_datasets[0].path='none.jsonl': no such file"),
            ({"nemo_gym_multi_turn": True}, "server 'math' has no agent"),
            ({"datasets": [{"path": "other.jsonl"}]}, "datasets[0].path='other.jsonl' would not be used"),
            ({"test_datasets": [{"path": "gym.jsonl"}]}, "test_datasets would not be used"),
            ({"val_set_size": 8}, "val_set_size=8 leaves 8 of 8 rows for evaluation"),
            ({"rl": None, "trl": None}, "it rewards the completions of GRPO: use `tacho train` with `rl: grpo`"),
            (
                {"trl": {"reward_funcs": ["axolotl.integrations.nemo_gym.rewards.reward_env"], "num_generations": 2}},
                "bring reward_nemo_gym_verify: name that one",
            ),
            (
                {"trl": {"reward_weights": [1, 2], "num_generations": 2}},
                "one number for each of 1 reward_funcs, the last for reward_nemo_gym_verify of a plugin",
            ),
            ({"trl": {"use_vllm": True, "num_generations": 2}}, "trl.use_vllm needs vllm, which is not installed"),
            ({"nemo_gym_auto_start": True}, "Start them with `ng_run"),
        ):
            with pytest.raises(ConfigError) as raised:
                make_job(**{**options(gym), **changes}).check()
            assert message in str(raised.value), (message, str(raised.value))
            if "server of NeMo" not in message:
                assert not gym.servers["math"].bodies("/verify")
    assert not Path("out").exists()


def test_unreachable_optional_gym_is_dropped(make_job):
    """The data and the rewards of the config are used then."""
    write_rows("gym.jsonl", rows())
    write_rows("prompts.jsonl", [{"prompt": f"add {number}"} for number in range(4)])
    Path("my_rewards.py").write_text("def one(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    job = make_job(
        rl="grpo",
        plugins=[{"name": "nemo_gym", "optional": True}],
        datasets=[{"path": "prompts.jsonl"}],
        trl={"num_generations": 2, "max_completion_length": 4, "reward_funcs": ["my_rewards.one"]},
        nemo_gym_head_port=reserve_port(),
        nemo_gym_datasets=[{"path": "prompts.jsonl", "server_name": "math"}],
    )
    checked_job = job.check()
    assert len(checked_job.data.train) == 4 and len(checked_job.rewards) == 1
    assert any("optional plugin nemo_gym is not used" in warning for warning in job.warnings)


def test_plan_names_the_servers(make_job):
    write_rows("gym.jsonl", rows())
    with running_gym({"math": verify}) as gym:
        plan = make_job(**options(gym, nemo_gym_config_paths=["x.yaml"])).plan()
    lines = " ".join(plan.plugins["nemo_gym"])
    assert f"NeMo Gym at 127.0.0.1:{gym.head.port} (/verify)" in lines and "8 rows" in lines and "no effect" in lines
