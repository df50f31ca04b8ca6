"""ClickHouse for tests and benchmarks: Debian's server 18.16 and chDB, a recent one; and ZooKeeper for replicas.

`make tools` downloads the programs. Each server listens on loopback, on free ports, and has a folder of its own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.conftest import reserve_port

PROGRAMS = Path(__file__).parents[3] / ".tools" / "clickhouse"
_CHDB_SERVER = Path(__file__).with_name("chdb_server.py")
_START_S = 240.0
_ZOOKEEPER_HELLO = struct.pack(">iiqiqi16s", 44, 0, 0, 30_000, 0, 16, bytes(16))

_CONFIG = """<yandex>
  <logger><level>warning</level><log>{folder}/server.log</log><errorlog>{folder}/errors.log</errorlog></logger>
  <http_port>{http}</http_port><tcp_port>{tcp}</tcp_port><interserver_http_port>{interserver}</interserver_http_port>
  <interserver_http_host>127.0.0.1</interserver_http_host><listen_host>127.0.0.1</listen_host>
  <path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path><users_config>users.xml</users_config>
  <default_profile>default</default_profile><default_database>default</default_database>
  <mark_cache_size>67108864</mark_cache_size>
  {more}
</yandex>"""
_USERS = """<yandex>
  <profiles><default><max_memory_usage>2000000000</max_memory_usage><log_queries>0</log_queries>
    <max_memory_usage_for_all_queries>2000000000</max_memory_usage_for_all_queries></default></profiles>
  <users>
    <default><password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>
      <quota>default</quota></default>
    <guarded><password>s3cret pass</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>
      <quota>default</quota></guarded>
  </users>
  <quotas><default><interval><duration>3600</duration><queries>0</queries><errors>0</errors><result_rows>0</result_rows>
    <read_rows>0</read_rows><execution_time>0</execution_time></interval></default></quotas>
</yandex>"""


def missing_server() -> str:
    """Return why Debian's ClickHouse cannot be started; empty if it can."""
    return "" if (PROGRAMS / ".complete").exists() else "ClickHouse is not downloaded: run `make tools` on Debian"


def missing_chdb() -> str:
    return "" if importlib.util.find_spec("chdb") else "chdb is not installed: run `pip install chdb-core`"


def missing_zookeeper() -> str:
    if missing_server():
        return missing_server()
    return "" if _java() else "no Java runtime: ZooKeeper cannot be started"


def _java() -> str | None:
    own = next(PROGRAMS.glob("usr/lib/jvm/*/bin/java"), None)
    return shutil.which("java") or (str(own) if own else None)


class ClickHouseServer:
    """Debian's ClickHouse server 18.16."""

    def __init__(self, folder: Path, more: str = "", ports: list[int] | None = None) -> None:
        """Start a server.

        Args:
            folder: its configuration, data and logs.
            more: XML to add to its configuration.
            ports: for HTTP, for the native protocol and between servers; free ones by default.
        """
        self.folder = folder
        self.port, self.tcp_port, interserver = ports or [reserve_port() for _ in range(3)]
        folder.mkdir(parents=True, exist_ok=True)
        values = {"folder": folder, "http": self.port, "tcp": self.tcp_port, "interserver": interserver, "more": more}
        (folder / "config.xml").write_text(_CONFIG.format(**values))
        (folder / "users.xml").write_text(_USERS)
        self.start()

    @property
    def url(self) -> str:
        return f"clickhouse://127.0.0.1:{self.port}"

    def start(self) -> None:
        libraries = ":".join(str(PROGRAMS / path / "x86_64-linux-gnu") for path in ("usr/lib", "lib"))
        self._process = subprocess.Popen(
            [PROGRAMS / "usr/sbin/clickhouse-server", f"--config-file={self.folder / 'config.xml'}"],
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait_for_answer(self.port, self._process, self.folder / "errors.log")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill it as a power cut would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    close = kill


class ChdbServer:
    """chDB behind the HTTP interface of ClickHouse."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, _CHDB_SERVER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        _wait_for_answer(self.port, self._process, folder / "errors.log")

    @property
    def url(self) -> str:
        return f"clickhouse://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class ZooKeeper:
    """Debian's ZooKeeper, which coordinates replicas."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.port = reserve_port()
        (folder / "zoo.cfg").write_text(
            f"tickTime=500\ndataDir={folder}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
        )
        jars = [
            path
            for path in (PROGRAMS / "usr/share/java").glob("*.jar")
            if not path.name.startswith("slf4j-") or path.name in {"slf4j-api.jar", "slf4j-nop.jar"}
        ]
        command: list[Any] = [
            _java(),
            "-Xmx256m",
            "-Dzookeeper.admin.enableServer=false",
            "-Dzookeeper.jmx.log4j.disable=true",
        ]
        self._process = subprocess.Popen(
            [*command, "-cp", ":".join(map(str, jars)), "org.apache.zookeeper.server.ZooKeeperServerMain", "zoo.cfg"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                    connection.sendall(_ZOOKEEPER_HELLO)
                    if connection.recv(4):  # it accepts connections before it answers them
                        return
            except OSError:
                pass
            _check_running(self._process, deadline_s, folder / "errors.log")

    @property
    def config(self) -> str:
        """What a ClickHouse server needs to know of it."""
        return f"<zookeeper><node><host>127.0.0.1</host><port>{self.port}</port></node></zookeeper>"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _wait_for_answer(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=b"SELECT 1", timeout=30):
                return
        except OSError:
            _check_running(process, deadline_s, log)


def _check_running(process: subprocess.Popen[bytes], deadline_s: float, log: Path) -> None:
    code = process.poll()
    if code is not None or time.monotonic() > deadline_s:
        said = log.read_text(errors="replace")[-2_000:] if log.exists() else ""
        process.kill()
        process.wait()
        raise RuntimeError(f"the server did not start (exit code {code}): {said}")
    time.sleep(0.05)
