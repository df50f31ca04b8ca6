"""The documentation as pages of the dashboard."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin

ROOT = Path(__file__).parents[2]


def test_every_link_of_every_page_leads_somewhere(client):
    found: dict[str, str] = {}
    linked = re.findall(r': "(\w+)"|help/(\w+)', (ROOT / "ui/src/model/help.ts").read_text())
    waiting = ["/help/", *(f"/help/{first or second}" for first, second in linked)]
    targets = []
    while waiting:
        address = waiting.pop()
        if address in found:
            continue
        response = client.get(address)
        assert response.status_code == 200, address
        found[address] = response.text
        for link in re.findall(r'<a href="([^"]+)"', response.text):
            page, _, anchor = urljoin(address, link).partition("#")
            if page.startswith("/help/"):
                waiting.append(page)
                targets.append((page, anchor))
    assert len(found) > 50
    for page, anchor in targets:
        assert not anchor or f'id="{anchor}"' in found[page], f"{page}#{anchor}"


def test_pages_contain_no_markup_of_their_sources(client):
    for page in ("runs", "journal", "plugins/kd", "settings"):
        text = client.get(f"/help/{page}").text
        assert "&lt;!--" not in text
        assert ".md" not in re.sub(r"<code.*?</code>", "", text, flags=re.DOTALL)
        assert "<img" not in text


def test_unknown_pages_and_paths_out_of_the_folder_are_not_found(client):
    for page in ("nothing", "../README", "..%2F..%2Fpyproject", "%00", "runs.md"):
        assert client.get(f"/help/{page}").status_code in {404, 400}, page
    assert client.get("/help", follow_redirects=False).headers["location"] == "help/"
