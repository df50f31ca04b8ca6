"""The dashboard's server: the HTTP API over a log folder, and the built user interface."""

from tachograph.server._access import Access
from tachograph.server._app import create_app
from tachograph.server._serve import create_server, serve
from tachograph.server._token import write_login_page

__all__ = ["Access", "create_app", "create_server", "serve", "write_login_page"]
