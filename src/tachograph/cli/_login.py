"""`tacho login`, `tacho logout` and `tacho whoami`: the access keys of this user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import rich_click as click

from tachograph._base.http import DeliveryError, check_response, get
from tachograph._base.typed import decode_json
from tachograph.cli._format import format_time, grid, json_text, new_console, safe
from tachograph.cli._options import json_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import TachographError
from tachograph.records import mask_text
from tachograph.remote import (
    API_KEY_VARIABLE,
    ServerAddress,
    check_token,
    find_credential,
    parse_server,
    remove_token,
    store_token,
    stored_servers,
)

__all__ = ["choose_server", "login", "logout", "whoami"]

Command = TypeVar("Command", bound=Callable[..., Any])

_TIMEOUT_S = 15.0
_MAX_CHARS = 4096


class LoginError(TachographError):
    """There is no key, or a server rejected it or could not check it; the message contains no key."""


class _KeyFacts(msgspec.Struct):
    """The answer of a server about a key."""

    name: str
    id: str
    scopes: list[str]
    project: str | None
    expires: float | None
    server: str
    """The version of the server."""


def _plain_http_option(command: Command) -> Command:
    return click.option(
        "--allow-plain-http",
        is_flag=True,
        envvar="TACHO_ALLOW_PLAIN_HTTP",
        help="Allow http:// to another machine. Anyone on the network path can then read the key.",
    )(command)


@click.command(context_settings={"allow_extra_args": True})  # click would print a key that is passed as an argument
@click.argument("url")
@click.option("--key-stdin", is_flag=True, help="Read the key from the standard input.")
@click.option("--no-check", is_flag=True, help="Store the key without asking the server whether it is valid.")
@_plain_http_option
@click.option("--key", hidden=True)
@click.pass_context
def login(
    context: click.Context, url: str, key_stdin: bool, no_check: bool, allow_plain_http: bool, key: str | None
) -> None:
    """Store your access key for a server.

    Prompts for the key without showing it, and checks it with the server. A key cannot be an argument: it would be in
    the history of your shell, and visible to every user of the machine.
    """
    if context.args or key is not None:
        raise click.UsageError(
            "a key cannot be an argument: it would be in the history of your shell, and visible to every user of the "
            "machine. Run tacho login URL and enter the key when asked, or pipe it to tacho login URL --key-stdin. "
            "If this was a key, rotate it"
        )
    server = parse_server(url, allow_plain_http=allow_plain_http)
    token = _read_token(server, key_stdin)
    greeting = f"logged in to {server}"
    if not no_check:
        try:
            facts = _fetch_key_facts(server, token)
        except DeliveryError as error:
            raise LoginError(
                f"cannot check the key with {server}: {error}. To store the key without checking it, add --no-check"
            ) from None
        greeting += f" as {safe(facts.name)} ({_scopes(facts)}; {_project(facts)})"
    path = store_token(server, token)
    echo(f"{greeting}; the key is stored in {safe(path)}")
    if os.environ.get(API_KEY_VARIABLE):
        echo(f"{API_KEY_VARIABLE} is set and has precedence over the stored key", err=True)


@click.command()
@click.argument("url", required=False, metavar="[URL]")
def logout(url: str | None) -> None:
    """Remove your stored access key for a server. The key stays valid: revoke it on the server if it leaked."""
    server = choose_server(url, allow_plain_http=True)
    if not remove_token(server):
        servers = ", ".join(stored_servers())
        raise LoginError(f"no key is stored for {server}" + (f"; there are keys for {servers}" if servers else ""))
    echo(f"logged out of {server}; the key itself is still valid until it is revoked on the server")
    if os.environ.get(API_KEY_VARIABLE):
        echo(f"{API_KEY_VARIABLE} is still set and is used for every server", err=True)


@click.command()
@click.argument("url", required=False, metavar="[URL]")
@_plain_http_option
@json_option
def whoami(url: str | None, allow_plain_http: bool, as_json: bool) -> None:
    """Show the key that is used for a server, and its rights."""
    server = choose_server(url, allow_plain_http=allow_plain_http)
    credential = find_credential(server)
    if credential is None:
        raise LoginError(f"no key is stored for {server}: run tacho login {server}, or set {API_KEY_VARIABLE}")
    try:
        facts = _fetch_key_facts(server, credential.token)
    except DeliveryError as error:
        raise LoginError(f"cannot ask {server}: {error}") from None
    if as_json:
        echo(json_text({"url": server.url, "source": credential.source, **msgspec.to_builtins(facts)}))
        return
    expires = format_time(facts.expires, "%Y-%m-%d %H:%M") if facts.expires is not None else "never"
    rows = [
        ("server", f"{server} (version {safe(facts.server, 40)})"),
        ("name", safe(facts.name)),
        ("key", f"id {safe(facts.id, 40)}, from {safe(credential.source)}"),
        ("scopes", _scopes(facts)),
        ("project", safe(facts.project) if facts.project is not None else "all"),
        ("expires", expires),
    ]
    new_console().print(grid(rows))


def _read_token(server: ServerAddress, key_stdin: bool) -> str:
    if sys.stdin.isatty():  # also with --key-stdin: the terminal would show the key
        return check_token(click.prompt(f"Access key for {server}", hide_input=True, err=True), "the key")
    if not key_stdin:
        raise click.UsageError("cannot ask for the key, because the standard input is not a terminal: add --key-stdin")
    return check_token(sys.stdin.read(_MAX_CHARS), "the key in the standard input")


def choose_server(url: str | None, *, allow_plain_http: bool) -> ServerAddress:
    """Return the given server, or the only one with a stored key. Where `login` accepted plain HTTP, it is accepted."""
    servers = stored_servers()
    if url is None:
        if len(servers) != 1:
            reason = f"there are keys for {', '.join(servers)}" if servers else "no key is stored"
            raise click.UsageError(f"pass the URL of the server: {reason}")
        return parse_server(servers[0], allow_plain_http=True)
    server = parse_server(url, allow_plain_http=True)
    return server if server.url in servers else parse_server(url, allow_plain_http=allow_plain_http)


def _fetch_key_facts(server: ServerAddress, token: str) -> _KeyFacts:
    """Return the facts that the server reports about a token.

    Raises:
        LoginError: if it rejects the token, or is not a Tachograph server.
        DeliveryError: if there is no usable answer.
    """
    response = get(f"{server}/api/v1/whoami", {"Authorization": f"Bearer {token}"}, timeout_s=_TIMEOUT_S)
    if response.status == 401:
        raise LoginError(
            f"{server} rejected the key: it is unknown, expired or revoked. Ask an administrator of the server for a "
            "new one (tacho keys create)"
        )
    no_server_message = f"there is no Tachograph server at {server}; check the address"
    if response.status == 404:
        raise LoginError(no_server_message)
    check_response(response, lambda text, max_chars: safe(mask_text(text), max_chars))
    try:
        return decode_json(response.body, _KeyFacts)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise LoginError(no_server_message) from None


def _scopes(facts: _KeyFacts) -> str:
    return safe(", ".join(facts.scopes[:20]))


def _project(facts: _KeyFacts) -> str:
    return f"project {safe(facts.project)}" if facts.project is not None else "all projects"
