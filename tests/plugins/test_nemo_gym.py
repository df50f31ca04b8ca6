"""NeMo Gym: discovery, routing, data, rewards and rollouts, against real HTTP servers with every kind of fault."""

from __future__ import annotations

import json
import threading
import time
import types

import pytest

pytest.importorskip("pydantic")

from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import PluginConfig, PluginReport, PluginSession, TrainingSetup
from tachograph.plugins.nemo_gym import NemoGymOptions, NemoGymPlugin
from tachograph.plugins.nemo_gym._client import GymClient, GymError, run_all
from tachograph.plugins.nemo_gym._data import GymDataError, prompt_ids, prompt_of, read_rows
from tachograph.plugins.nemo_gym._rollouts import parse_reward, parse_rollout, run_request
from tachograph.plugins.nemo_gym._servers import GymServers, RoutingError, parse_servers
from tests.conftest import HANG_S, reserve_port
from tests.gym_server import Fault, running_gym, text_of, turns
from tests.train.conftest import make_tokenizer, write_rows

CFG = {"rl": "grpo", "seed": 1, "val_set_size": 0.0, "base_model": "tiny"}


def row(text="add", **fields):
    return {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **fields}


def set_up(gym, rows, path, *, cfg=CFG, **options):
    """Return a plugin that has found its servers, with a batch of these rows."""
    write_rows(path, rows)
    plugin = NemoGymPlugin()
    plugin.options = NemoGymOptions(
        nemo_gym_head_port=gym.head.port,
        **{"nemo_gym_datasets": [{"path": str(path), "server_name": "math"}], "nemo_gym_max_retries": 1, **options},
    )
    config = PluginConfig({"shuffle": False, **cfg})
    train, _ = plugin.load_datasets(config)
    plugin.check_setup(config, TrainingSetup(None, make_tokenizer(), train, 1, None))
    plugin.begin_batch(list(train), is_training=True)
    return plugin


def texts(*contents):
    return [[{"role": "assistant", "content": content}] for content in contents]


# Discovery and routing -----------------------------------------------------------------------------------------------

YAML = """
math: {resources_servers: {math_server: {host: 0.0.0.0, port: 12001}}}
math_agent: {responses_api_agents: {simple: {host: 10.0.0.7, port: 12002, resources_server: {name: math}}}}
code: {resources_servers: {code: {host: localhost, port: 12003}}}
broken: {resources_servers: {broken: {host: localhost, port: 'no'}}}
head_server: {host: 127.0.0.1, port: 11000}
text: just a text
"""


def test_head_server_is_decoded_twice():
    for text in (json.dumps(YAML), YAML, json.dumps(json.dumps(YAML))):
        servers = parse_servers(text, "gym.local")
        assert {name: (server.host, server.port) for name, server in servers.resources.items()} == {
            "math": ("gym.local", 12001),
            "code": ("localhost", 12003),
        }
        assert servers.agents["math_agent"][2:] == ("10.0.0.7", 12002, "math")


def test_head_server_cannot_run_code(tmp_path):
    command = f"!!python/object/apply:os.system ['touch {tmp_path}/executed']"
    for text in (command, f"math: {command}", "[" * 500, "a: [", "null", '"text"', "[1]", "{}", "a: b", "\x00"):
        with pytest.raises(GymError, match="global_config_dict_yaml"):
            parse_servers(json.dumps(text), "localhost")
    assert not list(tmp_path.iterdir())


def test_row_is_routed_by_agent_ref_then_server_name():
    servers: GymServers = parse_servers(YAML, "localhost")
    agent = {"agent_ref": {"type": "responses_api_agents", "name": "math_agent"}}
    for values, server_name, multi_turn, expected in (
        ({}, "math", False, "math"),
        ({"agent_ref": {"name": "code"}}, "math", False, "code"),
        (agent, "code", False, "math"),
        (agent, None, True, "math_agent"),
        ({}, "math", True, "math_agent"),
        ({"agent_ref": {"name": "unknown"}}, "code", False, "code"),
        ({"agent_ref": None}, "math_agent", False, "math"),
    ):
        assert servers.route(values, server_name, multi_turn=multi_turn).name == expected
    for values, server_name, multi_turn, message in (
        ({}, None, False, "names no server: set server_name of the dataset, or agent_ref.name"),
        ({}, "maths", False, "knows no server 'maths'; did you mean 'math'? Available: code, math, math_agent"),
        ({}, "code", True, "server 'code' has no agent.*nemo_gym_multi_turn: false"),
        ({"agent_ref": {"name": "\x1b[2J"}}, None, False, r"knows no server '\\\\x1b\[2J'"),
    ):
        with pytest.raises(RoutingError, match=message.replace("?", r"\?")):
            servers.route(values, server_name, multi_turn=multi_turn)


# Data ----------------------------------------------------------------------------------------------------------------


def test_all_messages_of_a_row_stay():
    call = {"type": "function_call", "name": "f", "arguments": '{"a": 1}', "call_id": "c"}
    items = [
        {"role": "system", "content": "be exact"},
        {
            "role": "developer",
            "content": [{"type": "input_text", "text": "be "}, {"type": "input_text", "text": "brief"}],
        },
        {"type": "message", "role": "user", "content": "hi"},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "2"},
        {"type": "reasoning", "summary": []},
    ]
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    values = {"responses_create_params": {"input": items, "instructions": "you add", "tools": [tool]}}
    prompt = prompt_of(values, is_multi_turn=False)
    assert [(message["role"], message["content"]) for message in prompt.messages] == [
        ("system", "you add"),
        ("system", "be exact"),
        ("developer", "be brief"),
        ("user", "hi"),
        ("assistant", ""),
        ("tool", "2"),
    ]
    assert prompt.messages[4]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert prompt.tools == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    ]
    assert prompt_of({"responses_create_params": {"input": "hi"}}, is_multi_turn=False).is_plain


def test_template_gets_tools_and_all_messages():
    values = {
        "responses_create_params": {
            "input": [{"role": "developer", "content": "brief"}, {"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "name": "add"}],
        }
    }
    prompt = prompt_of(values, is_multi_turn=False)
    head = "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    loop = "{% for m in messages %}{% if m.role in roles %}{{ m.role + ':' + m.content + ';' }}{% endif %}{% endfor %}"
    for roles, expected in (
        ("developer,user", "add;developer:brief;user:hi;"),
        ("system,user", "add;system:brief;user:hi;"),
    ):
        template = head + loop.replace("roles", repr(roles.split(",")))
        tokenizer = make_tokenizer(template)
        assert tokenizer.decode(prompt_ids(tokenizer, prompt)).replace(" ", "") == expected
    tokenizer = make_tokenizer(head + loop.replace("roles", "['user']"))
    with pytest.raises(ValueError, match="leaves out the message of the role 'system'"):
        prompt_ids(tokenizer, prompt)
    with pytest.raises(ValueError, match="the chat template fails: TemplateError: no"):
        prompt_ids(make_tokenizer("{{ raise_exception('no') }}"), prompt)


def test_rows_have_a_seeded_order(tmp_path):
    from tachograph.plugins.nemo_gym import GymDataset

    for name in ("a", "b"):
        write_rows(tmp_path / f"{name}.jsonl", [row(number=f"{name}{number}") for number in range(10)])
    datasets = [GymDataset(path="a.jsonl", max_samples=4), GymDataset(path=str(tmp_path / "b.jsonl"))]

    def order(seed, is_shuffled=True):
        rows = read_rows(datasets, str(tmp_path), seed=seed, is_shuffled=is_shuffled)
        return [entry.values["number"] for entry in rows]

    assert order(1) == order(1) != order(2)
    assert len(order(1)) == 14 and sum(name.startswith("a") for name in order(1)) == 4
    assert order(1, is_shuffled=False) == [f"a{n}" for n in range(4)] + [f"b{n}" for n in range(10)]


def test_bad_rows_are_named_with_file_and_line(tmp_path):
    from tachograph.plugins.nemo_gym import GymDataset

    path = tmp_path / "gym.jsonl"
    for line, message in (
        ("{", "line 2: invalid JSON"),
        ('{"a": NaN}', "line 2: invalid JSON: NaN is not valid JSON"),
        ("[1]", "line 2: expected a JSON object, got a list"),
        ('{"question": 1}', "line 2: 'responses_create_params' is missing (it has 'question')"),
        (json.dumps({"responses_create_params": {"input": []}}), "line 2: 'responses_create_params.input': expected a"),
        (json.dumps(row(None)), "item 1: 'content' must be a text"),
        (json.dumps({"responses_create_params": {"input": [{"role": "bot"}]}}), "item 1: unknown role 'bot'"),
    ):
        path.write_text(json.dumps(row()) + f"\n{line}\n")
        with pytest.raises(GymDataError) as raised:
            read_rows([GymDataset(path=str(path))], "", seed=1, is_shuffled=True)
        assert message in str(raised.value)
    path.write_text("\n")
    for name, message in (("gym.jsonl", "the file has no rows"), ("none.jsonl", "no such file; looked for")):
        with pytest.raises(GymDataError, match=message):
            read_rows([GymDataset(path=name)], str(tmp_path), seed=1, is_shuffled=True)


# Rewards -------------------------------------------------------------------------------------------------------------


def reward_by_row(path, body):
    return {"reward": body["answer"] + len(text_of(body)) / 10} if path == "/verify" else {}


def test_rewards_belong_to_their_rows(tmp_path):
    """Rows with the same prompt have different rewards, and each goes to its server."""
    rows = [row("same", answer=n, agent_ref={"name": "code"} if n == 2 else None) for n in range(4)]
    with running_gym({"math": reward_by_row, "code": reward_by_row}) as gym:
        plugin = set_up(gym, rows, tmp_path / "gym.jsonl", nemo_gym_model_name="policy")
        assert plugin.reward_nemo_gym_verify(texts("", "a", "ab", "abc")) == [0.0, 1.1, 2.2, 3.3]
        bodies = gym.servers["math"].bodies("/verify")
        assert sorted(body["answer"] for body in bodies) == [0, 1, 3]
        assert [body["answer"] for body in gym.servers["code"].bodies("/verify")] == [2]
    body = next(entry for entry in bodies if entry["answer"] == 3)
    assert body["responses_create_params"] == rows[3]["responses_create_params"]
    response = body["response"]
    assert (response["object"], response["model"]) == ("response", "policy")
    assert response["output"][0]["role"] == "assistant" and response["output"][0]["content"][0]["text"] == "abc"
    metrics = plugin.report.drain()
    assert metrics["code/reward_mean"] == 2.2
    assert metrics["math/nonzero_share"] == pytest.approx(2 / 3)
    assert metrics["math/failures"] == metrics["math/timeouts"] == metrics["math/retries"] == 0
    assert metrics["math/verify_ms_p50"] <= metrics["math/verify_ms_p95"]


def test_tool_calls_are_sent_as_function_calls(tmp_path):
    with running_gym({"math": lambda path, body: {"reward": 1}}) as gym:
        plugin = set_up(gym, [row()], tmp_path / "gym.jsonl")
        call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
        plugin.reward_nemo_gym_verify([[{"role": "assistant", "content": "", "tool_calls": [call]}]])
        (body,) = gym.servers["math"].bodies("/verify")
    (item,) = body["response"]["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "add", '{"a": 1}')


FAULTS = {
    # the response of the server: (failures, timeouts, retries), and a part of the message
    "500": (Fault(b"\x1b[2Jno", status=500), (1, 0, 1), r"status 500: \x1b[2Jno"),
    "503": (Fault(status=503, headers=(("Retry-After", "0"),)), (1, 0, 1), "status 503"),
    "dropped": (Fault(is_dropped=True), (1, 0, 1), "cannot connect: RemoteDisconnected"),
    "422": (Fault(b"bad field", status=422), (1, 0, 0), "status 422: bad field"),
    "redirect": (Fault(status=307, headers=(("Location", "http://127.0.0.1:1/"),)), (1, 0, 0), "redirects are not"),
    "silent": (Fault(is_silent=True), (1, 1, 0), "no response within"),
    "endless": (Fault(is_endless=True), (1, 0, 0), "longer than 0.25 MiB"),
    "incomplete": (Fault(b'{"reward": 1}', content_length=99), (1, 0, 0), "incomplete"),
    "no JSON": (Fault(b"<html>\x1b"), (1, 0, 0), r"not valid JSON: '<html>\\x1b'"),
    "deep JSON": (Fault(b"[" * 100_000), (1, 0, 0), "not valid JSON"),
    "list": ([1.0], (1, 0, 0), "expected a JSON object"),
    "null": ({"reward": None}, (1, 0, 0), "no reward: expected a number, got None"),
    "none": ({}, (1, 0, 0), "no reward"),
    "text": ({"reward": "1"}, (1, 0, 0), "no reward: expected a number, got '1'"),
    "bool": ({"reward": True}, (1, 0, 0), "no reward"),
    "NaN": (Fault(b'{"reward": NaN}'), (1, 0, 0), "no reward: expected a number, got nan"),
    "infinite": (Fault(b'{"reward": 1e999}'), (1, 0, 0), "no reward: expected a number, got inf"),
    "many digits": (Fault(b'{"reward": 1' + b"0" * 400 + b"}"), (1, 0, 0), "no reward"),
}


def test_every_fault_is_a_missing_reward(tmp_path, caplog):
    """The other requests of the batch are rewarded."""

    def respond(path, body):
        name = (body or {}).get("fault")
        return FAULTS[name][0] if name else {"reward": 0.5}

    rows = [row(fault="500"), row(), row()]
    with running_gym({"math": respond}) as gym:
        plugin = set_up(
            gym,
            rows,
            tmp_path / "gym.jsonl",
            nemo_gym_verify_timeout=HANG_S,
            nemo_gym_max_response_mb=0.25,
        )
        for name, (_, counts, message) in FAULTS.items():
            batch = [
                {"nemo_gym_row": json.dumps({**values, "fault": name if number == 0 else ""})}
                for number, values in enumerate(rows)
            ]
            plugin.begin_batch([{**entry, "nemo_gym_server_name": "math"} for entry in batch], is_training=True)
            # Only the request that never ends has a short limit, so that a slow machine does not fail the others.
            plugin.options.nemo_gym_verify_timeout = 0.3 if name == "silent" else HANG_S
            if name == "silent":
                plugin.begin_batch([{**batch[0], "nemo_gym_server_name": "math"}], is_training=True)
                assert plugin.reward_nemo_gym_verify(texts("x")) == [None]
            else:
                assert plugin.reward_nemo_gym_verify(texts("x", "y", "z")) == [None, 0.5, 0.5], name
            metrics = plugin.report.drain()
            assert tuple(metrics[f"math/{key}"] for key in ("failures", "timeouts", "retries")) == counts, name
            assert metrics.get("math/reward_mean") == (None if name == "silent" else 0.5)
            warnings = [record.getMessage() for record in caplog.records]
            assert any(message in text and "math at http://127.0.0.1:" in text for text in warnings), (name, warnings)
            assert not any("\x1b" in text for text in warnings)
            caplog.clear()
            plugin._printed_problems.clear()


def test_requests_run_at_the_same_time_up_to_the_limit(tmp_path):
    barrier = threading.Barrier(3)

    def respond(path, body):
        if path == "/verify":
            barrier.wait(HANG_S)
        return {"reward": 1.0}

    with running_gym({"math": respond}) as gym:
        plugin = set_up(
            gym, [row()] * 9, tmp_path / "gym.jsonl", nemo_gym_max_concurrency=3, nemo_gym_verify_timeout=HANG_S
        )
        assert plugin.reward_nemo_gym_verify(texts(*"abcdefghi")) == [1.0] * 9
        assert gym.servers["math"].max_active == 3


def test_batch_ends_at_its_deadline(tmp_path):
    """Also if each request stays below its own limit, which holds for every single read."""
    for fault in (Fault(is_silent=True), Fault(is_dripping=True)):
        with running_gym({"math": lambda path, body, fault=fault: fault if path == "/verify" else {}}) as gym:
            limits = {"nemo_gym_max_concurrency": 2, "nemo_gym_batch_timeout": 0.3, "nemo_gym_verify_timeout": 3600}
            plugin = set_up(gym, [row()] * 8, tmp_path / "gym.jsonl", **limits)
            assert plugin.reward_nemo_gym_verify(texts(*"abcdefgh")) == [None] * 8
            assert plugin.report.drain()["math/timeouts"] == 8


def test_slow_response_is_a_reward(tmp_path):
    slow = Fault(b'{"reward": 0.25}', delay_s=0.3)
    with running_gym({"math": lambda path, body: slow if path == "/verify" else {}}) as gym:
        plugin = set_up(gym, [row()], tmp_path / "gym.jsonl", nemo_gym_verify_timeout=HANG_S)
        assert plugin.reward_nemo_gym_verify(texts("a")) == [0.25]
        metrics = plugin.report.drain()
    assert metrics["math/verify_ms_p50"] >= 300 and metrics["math/failures"] == 0


def test_bugs_are_raised_and_not_counted_as_missing():
    def fail():
        raise KeyError("bug")

    with pytest.raises(KeyError, match="bug"):
        run_all([fail], max_concurrency=1, deadline_s=time.monotonic() + HANG_S)
    assert run_all([], max_concurrency=1, deadline_s=0) == []


def test_dead_server_stops_training(tmp_path):
    is_dead = threading.Event()

    def respond(path, body):
        return Fault(b"down", status=500) if is_dead.is_set() else {"reward": 1.0}

    with running_gym({"math": respond, "code": respond}) as gym:
        plugin = set_up(
            gym, [row(), row()], tmp_path / "gym.jsonl", nemo_gym_max_failed_batches=2, nemo_gym_max_retries=0
        )
        is_dead.set()
        assert plugin.reward_nemo_gym_verify(texts("a", "b")) == [None, None]
        is_dead.clear()
        assert plugin.reward_nemo_gym_verify(texts("a", "b")) == [1.0, 1.0]
        is_dead.set()
        assert plugin.reward_nemo_gym_verify(texts("a", "b")) == [None, None]
        problem = "rewarded nothing in 2 batches in a row; the last error of /verify is: status 500: down"
        with pytest.raises(PluginError, match=rf"nemo_gym: the server math at http://127.0.0.1:\d+ {problem}"):
            plugin.reward_nemo_gym_verify(texts("a", "b"))


def test_connection_refused_is_repeated():
    port = reserve_port()
    with pytest.raises(GymError, match="cannot connect: Connection refused") as raised:
        GymClient(max_retries=2, retry_s=0.01).post(
            "127.0.0.1", port, "/verify", {}, timeout_s=HANG_S, deadline_s=time.monotonic() + HANG_S
        )
    assert raised.value.num_retries == 2
    assert not GymClient().is_listening("127.0.0.1", port, timeout_s=HANG_S)


# Rollouts ------------------------------------------------------------------------------------------------------------


def test_mask_is_aligned_with_tokens():
    rollout = parse_rollout(turns(([1, 2, 3], [4, 5]), ([6, 7], [8]), ([9], [10, 11]), reward=0.25), vocab_size=20)
    assert rollout.prompt_ids == [1, 2, 3]
    assert rollout.completion_ids == [4, 5, 6, 7, 8, 9, 10, 11]
    assert rollout.env_mask == [1, 1, 0, 0, 1, 0, 1, 1]
    assert rollout.logprobs == [-0.54, -0.55, 0.0, 0.0, -0.58, 0.0, -0.6, -0.61]
    assert (rollout.num_turns, rollout.reward) == (3, 0.25)
    short = rollout.truncate(4)
    assert (short.completion_ids, short.env_mask, short.logprobs[:2]) == ([4, 5, 6, 7], [1, 1, 0, 0], [-0.54, -0.55])


def change(response, item, **fields):
    response["response"]["output"][item].update(fields)
    return response


def test_items_of_one_turn_count_once():
    response = turns(([1, 2], [3, 4]))
    response["response"]["output"].insert(0, {"type": "reasoning", "summary": []})
    response["response"]["output"].append(dict(response["response"]["output"][1], type="function_call"))
    response["response"]["output"].append({"type": "function_call_output", "output": "x"})
    rollout = parse_rollout(response, vocab_size=9)
    assert (rollout.completion_ids, rollout.num_turns) == ([3, 4], 1)


def test_invalid_rollouts_are_missing():
    two_turns = (([1], [2]), ([3], [4]))
    for response, message in (
        ({"reward": 1.0}, "no list 'response.output'"),
        ({"reward": 1.0, "response": {"output": {}}}, "no list"),
        ({"reward": 1.0, "response": {"output": [{"type": "message"}]}}, "return_token_id_information: true"),
        (turns(([1], [2]), reward=None), "no reward"),
        (change(turns(([1], [2, 3])), 0, generation_log_probs=[-1.0]), "1 generation_log_probs for 2 tokens"),
        (change(turns(([1], [2])), 0, generation_log_probs=None), "no generation_log_probs for 1 tokens"),
        (change(turns(([1], [2])), 0, generation_log_probs=[float("nan")]), "not all finite"),
        (change(turns(([1], [2])), 0, generation_token_ids="2"), "expected a list of token ids"),
        (change(turns(([1], [2])), 0, generation_token_ids=[2.0]), "expected a list of token ids"),
        (change(turns(([1], [2])), 0, generation_token_ids=[True]), "expected a list of token ids"),
        (change(turns(([1], [2])), 0, prompt_token_ids=[]), "prompt_token_ids is empty"),
        (turns(([1], [20])), "the ids 20 to 20 do not fit the trained model, which has 20 tokens"),
        (turns(([-1], [2])), "the ids -1 to -1 do not fit"),
        (change(turns(*two_turns), 2, prompt_token_ids=[1, 9, 3]), "does not begin with the 2 tokens before it"),
        (turns(*two_turns), "2 turns, more than nemo_gym_max_turns=1"),
    ):
        with pytest.raises(GymError, match=message):
            parse_rollout(response, vocab_size=20, max_turns=1 if message.startswith("2 turns") else None)


def test_row_decides_on_its_sampling():
    values = {"responses_create_params": {"input": [], "temperature": 0.1, "top_p": None}, "id": 3}
    assert run_request(values, {"temperature": 0.9, "top_p": 0.5}) == {
        "responses_create_params": {"temperature": 0.1, "top_p": 0.5, "input": []},
        "id": 3,
    }


def test_agents_generate_one_rollout_per_prompt(tmp_path):
    """Rows with the same prompt get their own rollouts; the missing one has a masked token and no reward."""

    def run(path, body):
        if path != "/run":
            return {}
        number = body["number"]
        return Fault(status=400) if number == 1 else turns(([1, 2], [3 + number]), ([5], [6]), reward=number)

    rows = [row("same", number=number) for number in range(3)]
    tokenizer = make_tokenizer()
    config = types.SimpleNamespace(get_text_config=lambda: types.SimpleNamespace(vocab_size=50))
    trainer = types.SimpleNamespace(
        args=types.SimpleNamespace(temperature=0.8, top_p=1.0, max_completion_length=3),
        accelerator=types.SimpleNamespace(unwrap_model=lambda model: model),
        model=types.SimpleNamespace(config=config),
        processing_class=tokenizer,
    )
    with running_gym({"math": lambda path, body: {}}, {"math_agent": ("math", run)}) as gym:
        plugin = set_up(gym, rows, tmp_path / "gym.jsonl", nemo_gym_multi_turn=True)
        output = plugin.generate([[]] * 3, trainer)
        bodies = gym.servers["math_agent"].bodies("/run")
    eos = tokenizer.eos_token_id
    assert output == {
        "prompt_ids": [[1, 2], [eos], [1, 2]],
        "completion_ids": [[3, 5, 6], [eos], [5, 5, 6]],
        "logprobs": [[-0.53, 0.0, -0.56], [0.0], [-0.55, 0.0, -0.56]],
        "env_mask": [[1, 0, 1], [0], [1, 0, 1]],
        "num_turns": [2, 0, 2],
        "env_reward": [0.0, None, 2.0],
    }
    assert plugin.reward_env(texts("", "", ""), env_reward=output["env_reward"]) == [0.0, None, 2.0]
    assert {body["responses_create_params"]["temperature"] for body in bodies} == {0.8}
    metrics = plugin.report.drain()
    assert metrics["math_agent/num_turns"] == 2 and metrics["math_agent/failures"] == 1
    assert metrics["math_agent/reward_mean"] == 1.0 and metrics["math_agent/nonzero_share"] == 0.5
    assert metrics["math_agent/truncated_share"] == 0 and "math_agent/run_ms_p95" in metrics
    with pytest.raises(PluginError, match="asks for 2 completions of a batch of 3 rows"):
        plugin.generate([[]] * 2, trainer)


def test_missing_reward_removes_the_others():
    """TRL would add up the rewards that are left, as if the missing one were 0."""
    torch = pytest.importorskip("torch")
    plugin = NemoGymPlugin()
    nan = float("nan")
    rewards = torch.tensor([[1.0, 2.0], [1.0, nan], [nan, nan], [3.0, nan]])
    trainer = types.SimpleNamespace(
        reward_funcs=[print, plugin.reward_nemo_gym_verify],
        num_generations=2,
        num_generations_eval=4,
        model=types.SimpleNamespace(training=True),
    )
    expected = torch.tensor([[1.0, 2.0], [nan, nan], [nan, nan], [nan, nan]])
    assert torch.equal(plugin.leave_out_missing(trainer, rewards).nan_to_num(-1), expected.nan_to_num(-1))
    assert plugin.report.drain() == {"missing_rewards": 3.0, "groups_without_reward": 1.0}


# Set-up --------------------------------------------------------------------------------------------------------------


def test_nothing_is_cloned_or_started():
    data = {"nemo_gym_datasets": [{"path": "x.jsonl"}]}
    for options, message in (
        ({**data, "nemo_gym_auto_clone": True}, "no code is downloaded here. Clone and install NeMo Gym yourself"),
        ({**data, "nemo_gym_auto_start": True}, "no servers are started here. Start them with `ng_run"),
        ({}, "nemo_gym_datasets is missing"),
        ({"nemo_gym_datasets": [{"path": "x", "server": "y"}]}, "server"),
        ({**data, "nemo_gym_max_turns": 3}, "nemo_gym_max_turns has no effect without `nemo_gym_multi_turn: true`"),
        ({**data, "nemo_gym_head_port": 0}, "nemo_gym_head_port=0"),
    ):
        with pytest.raises(ConfigError) as raised:
            PluginSession.open(["nemo_gym"], options)
        assert message in str(raised.value)
    session = PluginSession.open(["nemo_gym"], {**data, "nemo_gym_auto_clone": False, "nemo_gym_auto_start": False})
    session.close()
    session = PluginSession.open(["nemo_gym"], {"nemo_gym_enabled": False})
    assert session.off == {"nemo_gym": "nemo_gym_enabled is false"}


def test_report_has_percentiles():
    report = PluginReport("x")
    for value in range(100, 0, -1):
        report.sample("ms", float(value))
    report.sample("one", 3.0)
    assert report.drain() == {"ms_p50": 50.0, "ms_p95": 95.0, "one_p50": 3.0, "one_p95": 3.0}
    assert report.drain() == {}


def test_reward_is_a_finite_number():
    assert parse_reward({"reward": -2}) == -2.0
