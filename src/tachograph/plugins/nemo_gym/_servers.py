"""The servers of a NeMo Gym: found at its head server, and chosen for a row of data.

The head server responds with the config of all servers as YAML, inside a JSON string:

    my_env:                {resources_servers: {my_env: {host: 127.0.0.1, port: 12001}}}
    my_env_simple_agent:   {responses_api_agents: {simple_agent: {host: …, port: …, resources_server: {name: my_env}}}}
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tachograph._base.config import parse_yaml
from tachograph._base.printable import safe
from tachograph.exceptions import did_you_mean
from tachograph.plugins.nemo_gym._client import GymClient, GymError

__all__ = ["GymServer", "GymServers", "RoutingError", "find_servers", "parse_servers"]

_CONFIG_PATH = "/global_config_dict_yaml"
_KINDS = {"resources_servers": "resources", "responses_api_agents": "agent"}
_ANY_ADDRESS = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - servers that listen on all addresses
_ATTEMPT_S = 10.0
_POLL_S = 0.5


class RoutingError(Exception):
    """No server belongs to a row."""


class GymServer(NamedTuple):
    """A server.

    Attributes:
        name: its name in the config of NeMo Gym.
        kind: `resources` or `agent`.
        host: its host.
        port: its port.
        resources: the resources server of an agent.
    """

    name: str
    kind: str
    host: str
    port: int
    resources: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{safe(self.name)} at http://{safe(host)}:{self.port}"


class GymServers:
    """The resources servers and agents of a NeMo Gym, by name."""

    def __init__(self, servers: list[GymServer]) -> None:
        self.resources = {server.name: server for server in servers if server.kind == "resources"}
        self.agents = {server.name: server for server in servers if server.kind == "agent"}

    def route(self, values: Mapping[str, Any], server_name: str | None, *, multi_turn: bool) -> GymServer:
        """Return the server of a row: the one that its `agent_ref` names, else the one of its dataset.

        Args:
            values: the row.
            server_name: the server of its dataset.
            multi_turn: whether an agent is needed, or else a resources server.

        Raises:
            RoutingError: if there is none.
        """
        reference = values.get("agent_ref")
        row_name = reference.get("name") if isinstance(reference, Mapping) else None
        names = [str(name) for name in (row_name, server_name) if name]
        if not names:
            raise RoutingError("it names no server: set server_name of the dataset, or agent_ref.name of the row")
        problem = ""
        for name in names:
            try:
                return self._agent(name) if multi_turn else self._resources_server(name)
            except RoutingError as error:
                problem = problem or str(error)
        raise RoutingError(problem)

    def _resources_server(self, name: str) -> GymServer:
        agent = self.agents.get(name)
        server = self.resources.get(name) or self.resources.get(agent.resources if agent is not None else "")
        if server is None:
            raise self._unknown(name, [*self.resources, *self.agents])
        return server

    def _agent(self, name: str) -> GymServer:
        if name in self.agents:
            return self.agents[name]
        if name not in self.resources:
            raise self._unknown(name, [*self.agents, *self.resources])
        agents = [agent for agent in self.agents.values() if agent.resources == name]
        if len(agents) == 1:
            return agents[0]
        if agents:
            names = ", ".join(sorted(safe(agent.name) for agent in agents))
            raise RoutingError(f"server {name!r} has several agents ({names}): name one of them")
        raise RoutingError(
            f"server {name!r} has no agent, which several turns need: add one to the config of `ng_run`, or set "
            "`nemo_gym_multi_turn: false`"
        )

    @staticmethod
    def _unknown(name: str, names: list[str]) -> RoutingError:
        safe_names = sorted({safe(entry) for entry in names})
        listing = ", ".join(safe_names[:20]) or "none"
        hint = did_you_mean(safe(name), safe_names) or "."
        return RoutingError(f"the head server knows no server {safe(name)!r}{hint} Available: {listing}")


def find_servers(client: GymClient, host: str, port: int, *, wait_s: float) -> GymServers:
    """Return the servers that the head server lists.

    Args:
        client: sends the request.
        host: the host of the head server.
        port: its port.
        wait_s: how long to wait for a head server that does not respond yet.

    Raises:
        GymError: if it does not respond, or not with a config.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return parse_servers(client.get(host, port, _CONFIG_PATH, timeout_s=_ATTEMPT_S), host)
        except GymError as error:
            if not (error.may_retry or error.is_timeout) or time.monotonic() >= end_s:
                raise
        time.sleep(_POLL_S)


def parse_servers(text: str, head_host: str) -> GymServers:
    """Return the servers in the response of a head server.

    Args:
        text: YAML, or a JSON string that contains YAML.
        head_host: the host of servers that listen on all addresses.

    Raises:
        GymError: if the text is something else.
    """
    config: Any = text
    for decode in (_decode_json_string, parse_yaml, parse_yaml):
        if isinstance(config, str):
            try:
                config = decode(config)
            except Exception as error:  # noqa: BLE001 - YAML's constructors raise many kinds
                raise GymError(f"{_CONFIG_PATH} is not valid YAML: {safe(error)}") from None
    if not isinstance(config, dict):
        raise GymError(f"{_CONFIG_PATH}: expected a mapping of servers, got {safe(repr(config), 80)}")
    servers = []
    for name, entry in config.items():
        for section, kind in _KINDS.items():
            implementations = entry.get(section) if isinstance(entry, dict) else None
            for settings in implementations.values() if isinstance(implementations, dict) else ():
                server = _server_of(str(name), kind, settings, head_host)
                if server is not None:
                    servers.append(server)
    if not servers:
        raise GymError(f"{_CONFIG_PATH} lists no resources server and no agent with a host and a port")
    return GymServers(servers)


def _decode_json_string(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, (str, dict)) else text


def _server_of(name: str, kind: str, settings: Any, head_host: str) -> GymServer | None:
    if not isinstance(settings, dict):
        return None
    host, port = settings.get("host"), settings.get("port")
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    reference = settings.get("resources_server")
    resources = reference.get("name") if isinstance(reference, dict) else None
    host = head_host if host in _ANY_ADDRESS else host
    return GymServer(name, kind, host.strip("[]"), port, str(resources or ""))
