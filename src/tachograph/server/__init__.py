"""The dashboard's server: the HTTP API over a log folder, and the built user interface."""

from tachograph.server._access import Access
from tachograph.server._app import create_app
from tachograph.server._serve import create_server, serve

__all__ = ["Access", "create_app", "create_server", "serve"]
