"""Finds out which user of this machine owns the other end of a loopback connection.

Both ends of a loopback connection are sockets of the same kernel, so the kernel can be asked for the other one: a
`sock_diag` request over netlink names the two addresses and ports of the connection and returns the state, the owner
and the inode of exactly that socket. Unlike a search through `/proc/net/tcp`, its cost does not depend on how many
sockets the machine has.

The result decides about access, so every doubt means *unknown* (None):

- The client may have closed its end, perhaps deliberately right after its request. The kernel then reports owner 0 for
  the rest of the socket. Only an established socket with an inode counts.
- The addresses could be reused by another process between the accept and the request. That is impossible while our own
  end is established, so our end is checked last.
- A peer in another network namespace or behind a proxy is not found, or the proxy is found instead of the client.
- The kernel reports users outside of our user namespace as the overflow user. If we are that user, we cannot tell.
- Other systems than Linux, and sandboxes without netlink, have no such request.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Protocol

__all__ = ["PEER_UID", "find_peer_uid", "is_peer_known"]

PEER_UID = "tachograph.peer_uid"
"""The key in the state of a request: the uid of the process that sent it, or None if it is unknown."""

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_TCP_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_PORTS = struct.Struct("!HH")
_REST_OF_ID = struct.Struct("=III")  # interface, cookie
_REPLY = struct.Struct("=BBBB")  # family, state, timer, retransmits
_COUNTERS = struct.Struct("=IIIII")  # expires, receive queue, send queue, uid, inode
_TIMEOUT_S = 1.0
_OVERFLOW_UID = 65_534


class ConnectedSocket(Protocol):
    """The part of a socket that asyncio's transports expose, too."""

    def getsockname(self) -> tuple[str, int]:
        """Return our address."""
        ...

    def getpeername(self) -> tuple[str, int]:
        """Return the other end's address."""
        ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Return a socket option."""
        ...


def find_peer_uid(connection: ConnectedSocket) -> int | None:
    """Return the uid of the process at the other end of an accepted loopback connection; None if it is unknown."""
    try:
        peer, peer_port = connection.getpeername()[:2]
        address, port = connection.getsockname()[:2]
        client, server = _unmap(peer), _unmap(address)
        if not client.is_loopback or client.version != server.version:
            return None
        uid = _query_owner(client, peer_port, server, port)
        is_established = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_ESTABLISHED
        is_ambiguous = uid == os.geteuid() == _overflow_uid()
        return uid if is_established and not is_ambiguous else None
    except (OSError, ValueError, AttributeError, struct.error):
        return None


def is_peer_known() -> bool:
    """Return whether this system can name the owner of a connection, by asking about one of our own."""
    try:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.enter_context(socket.create_connection(listener.getsockname()[:2], timeout=_TIMEOUT_S))
            server_end = stack.enter_context(listener.accept()[0])
            return find_peer_uid(server_end) == os.geteuid()
    except (OSError, AttributeError):  # Windows has no geteuid
        return False


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _unmap(text: str) -> Address:
    """Parse an address; an IPv4 address in the form of an IPv6 address becomes an IPv4 address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    ipv4_address = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return ipv4_address or address


def _query_owner(source: Address, source_port: int, target: Address, target_port: int) -> int | None:
    """Ask the kernel for the owner of the established socket with these two ends."""
    family = socket.AF_INET if source.version == 4 else socket.AF_INET6
    ports = _PORTS.pack(source_port, target_port)
    request = (
        _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES)
        + ports
        + source.packed.ljust(16, b"\0")
        + target.packed.ljust(16, b"\0")
        + _REST_OF_ID.pack(0, _NO_COOKIE, _NO_COOKIE)
    )
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        netlink.sendto(header + request, (0, 0))
        reply, (sender, _groups) = netlink.recvfrom(65_536)
    _, reply_type, _, _, _ = _HEADER.unpack_from(reply)
    if sender != 0 or reply_type != _SOCK_DIAG_BY_FAMILY:  # only the kernel has port id 0
        return None
    _, state, _, _ = _REPLY.unpack_from(reply, _HEADER.size)
    ports_at = _HEADER.size + _REPLY.size
    *_, uid, inode = _COUNTERS.unpack_from(reply, ports_at + _PORTS.size + 32 + _REST_OF_ID.size)
    # Without an established socket the kernel returns a listening one with the same port, if there is one.
    is_found = state == _TCP_ESTABLISHED and reply[ports_at : ports_at + _PORTS.size] == ports
    return uid if is_found and inode else None


def _overflow_uid() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _OVERFLOW_UID
