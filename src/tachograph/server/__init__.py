"""The dashboard's server: the HTTP API over a log folder, and the built user interface."""

from tachograph.server._access import Access
from tachograph.server._app import create_app
from tachograph.server._serve import create_server, serve
from tachograph.server._team import TeamServer, TlsFiles, check_readiness, create_team_server, serve_team
from tachograph.server._team_access import ProxyTrust
from tachograph.server._token import write_login_page

__all__ = [
    "Access",
    "ProxyTrust",
    "TeamServer",
    "TlsFiles",
    "check_readiness",
    "create_app",
    "create_server",
    "create_team_server",
    "serve",
    "serve_team",
    "write_login_page",
]
