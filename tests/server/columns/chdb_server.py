"""The HTTP interface of ClickHouse in front of chDB, which is a recent ClickHouse inside of a Python process.

Usage: ``python chdb_server.py FOLDER``. Prints the port, and serves until its standard input is closed. Runs one
statement at a time: chDB has one session per process.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from chdb import session

_INSERT = re.compile(r"INSERT INTO (\S+) FORMAT (\w+)\s*\Z")
LOCK = threading.Lock()
_FORMAT = re.compile(r"\s+FORMAT\s+(\w+)\s*\Z")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        query = parse_qs(urlsplit(self.path).query).get("query", [""])[0]
        try:
            with LOCK:
                result = insert(query, body) if query else ask(body.decode())
            status = 200
        except Exception as error:
            result, status = str(error).encode(), 500
        self.send_response(status)
        self.send_header("Content-Length", str(len(result)))
        self.end_headers()
        self.wfile.write(result)

    def log_message(self, *_arguments: object) -> None:
        pass


def ask(sql: str) -> bytes:
    found = _FORMAT.search(sql)
    try:
        answer = chdb.query(_FORMAT.sub("", sql), found[1] if found else "TSV")
    except Exception:
        chdb.query("SELECT 1")  # its answer starts with what the failed query had printed
        raise
    return bytes(answer.bytes()) if answer is not None else b""


def insert(query: str, body: bytes) -> bytes:
    """chDB takes rows from a file."""
    found = _INSERT.match(query)
    if found is None:
        raise ValueError(f"unexpected statement with a body: {query}")
    rows = [line.split("\t")[:2] for line in ask(f"DESCRIBE TABLE {found[1]} FORMAT TSVRaw").decode().splitlines()]
    structure = ", ".join(f"`{name}` {kind}" for name, kind in rows).replace("'", "\\'")
    path = os.path.join(os.getcwd(), "rows.bin")
    with open(path, "wb") as file:
        file.write(body)
    return ask(f"INSERT INTO {found[1]} SELECT * FROM file('{path}', '{found[2]}', '{structure}')")


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    chdb = session.Session(os.path.join(sys.argv[1], "data"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)
