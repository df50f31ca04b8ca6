"""The documentation as pages of the dashboard: `/help/` lists them, `/help/runs` is one of them.

The pages are the Markdown files of the documentation, which are part of the package. They are rendered when they are
asked for. A request names a page of that list, so no path can escape the folder.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tachograph.server._errors import ApiError

__all__ = ["send_help"]

_PACKAGE = Path(__file__).parent
_FOLDERS = (_PACKAGE / "help", _PACKAGE.parents[2] / "docs")
"""Where the pages are: in an installed package, and in a checkout."""
_CONTENTS = re.compile(r"^## Documentation\n.*", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n?", re.DOTALL | re.MULTILINE)
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Tachograph</title>
<link rel="icon" href="{root}favicon.svg">
<link rel="stylesheet" href="{root}help.css">
<header><a href="{root}">Dashboard</a> <a href="{root}help/">All pages</a></header>
<main>
{content}
</main>
</html>
"""


async def send_help(request: Request) -> Response:
    """Return a page of the documentation."""
    name = request.path_params["page"]
    page = await run_in_threadpool(_render, name)
    if page is None:
        raise ApiError(404, "not_found", f"no page {name[:200]!r} in the documentation; see /help/")
    return HTMLResponse(page, headers={"Cache-Control": "no-cache"})


@functools.lru_cache(maxsize=1)
def _pages() -> dict[str, Path]:
    """Return the files by the names of their pages; the empty name is the list of all pages."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if folder is None:
        return {}
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.md")}
    return {**pages, "": pages.pop("README", folder.parent / "README.md")}


@functools.lru_cache(maxsize=256)
def _render(name: str) -> str | None:
    from markdown_it import MarkdownIt  # only help pages need it

    path = _pages().get(name)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    if name == "":
        contents = _CONTENTS.search(text)
        text = contents[0].replace("](docs/", "](") if contents else text
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(_COMMENT.sub("", text))
    title = "Documentation"
    anchor_counts: dict[str, int] = {}
    for token, inside in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and inside is not None:
            if token.tag == "h1":
                title = inside.content
            token.attrSet("id", _anchor(inside.content, anchor_counts))
        elif token.type == "inline":
            token.children = list(_resolve_links(token.children or [], name))
    root = "../" * (1 + name.count("/"))
    content = markdown.renderer.render(tokens, markdown.options, {})
    return _PAGE.format(title=escape(title), root=root, content=content)


def _anchor(heading: str, anchor_counts: dict[str, int]) -> str:
    """Return the anchor of a heading as GitHub computes it."""
    anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    number = anchor_counts[anchor] = anchor_counts.get(anchor, -1) + 1
    return f"{anchor}-{number}" if number else anchor


def _resolve_links(tokens: list[Any], name: str) -> Iterator[Any]:
    """Yield inline tokens with links to other pages, and without pictures and links to missing pages."""
    is_dropped = False
    for token in tokens:
        if token.type == "link_open":
            target = str(token.attrGet("href"))
            page, _, anchor = target.partition("#")
            is_outside = "://" in target or target.startswith("mailto:")
            page_name = posixpath.normpath(posixpath.join(posixpath.dirname(name), page)).removesuffix(".md")
            is_dropped = not is_outside and page != "" and page_name not in _pages()
            if is_dropped:
                continue
            if is_outside:
                token.attrSet("rel", "noopener noreferrer")
            elif page:
                token.attrSet("href", page.removesuffix(".md") + (f"#{anchor}" if anchor else ""))
        elif token.type == "link_close" and is_dropped:
            is_dropped = False
            continue
        if token.type != "image":
            yield token
