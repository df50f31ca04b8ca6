"""The dashboard's server: the HTTP API over a log folder, and the built user interface.

`tachograph.server.team` adds keys and receiving runs; `tachograph.server.columns` is ClickHouse behind a team's server.
"""

from tachograph.server._access import Access
from tachograph.server._app import create_app
from tachograph.server._identity import SCOPES, Scope
from tachograph.server._serve import create_server, serve
from tachograph.server._token import write_login_page

__all__ = ["SCOPES", "Access", "Scope", "create_app", "create_server", "serve", "write_login_page"]
