"""The media page: galleries, the viewer, tables and histograms; and files that try to attack the dashboard."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tachograph.journal import Heartbeat, this_process
from tests.browser.conftest import wait_for_fit
from tests.conftest import wait_for
from tests.media_files import histograms, image, media, picture, png_bomb, points, store, table_file
from tests.store import END, START, append, step, write

ATTACK = b"""<!doctype html><p id=p>waiting</p><script>
const tries = {
  parent: () => { parent.document.title = 'attacked'; },
  cookie: () => document.cookie,
  storage: () => localStorage.length,
  top: () => { top.location = 'about:blank'; },
};
const results = Object.entries(tries).map(([name, attempt]) => {
  try { attempt(); return name + ' worked'; } catch (error) { return name + ' failed'; }
});
fetch('/api/v1/runs').then(() => 'fetch worked', () => 'fetch failed').then(async (result) => {
  const picture = new Image();
  const loaded = new Promise((resolve) => {
    picture.onload = () => resolve('image worked');
    picture.onerror = () => resolve('image failed');
  });
  picture.src = '/healthz';
  document.getElementById('p').textContent = [...results, result, await loaded, 'origin ' + origin].join(', ');
});
</script>"""
SVG = (
    b"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8' onload='window.attacked = 1'>"
    b"<script>window.attacked = 2; parent.attacked = 3</script><rect width='8' height='8' fill='teal'/></svg>"
)
WEIGHTS = {"exp2": [-2, 2], "counts": list(range(9)), "n": 36}


def samples(run: Path, number: int, **fields: Any) -> dict[str, Any]:
    items = [
        image(run, picture(64, 48, (number % 256, 80 * index, 0)), caption=caption, meta={"seed": index})
        for index, caption in enumerate(["a red fox", "a blue house"])
    ]
    return media("samples", "image", number, *items, **fields)


def test_gallery_follows_one_slider_and_the_address(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    run = logs / "m"
    records = [samples(run, number) for number in range(0, 100, 10)]
    gap = media("samples", "image", 95, num_dropped=2, reason="queue full")
    note = media("note", "text", 40, {"text": "hello"})
    folder = write(run, [START, *(step(i, loss=1.0) for i in range(20)), *records, note, gap])
    page.goto(dashboard().url + "#/run/m")
    page.get_by_role("link", name="media", exact=True).click()
    section = page.locator("[data-media=samples]")
    expect(section.locator("[data-gap]")).to_contain_text("2 dropped at step 95: queue full")
    expect(section.locator("[data-shown-step]")).to_have_text("step 90")
    expect(section.locator("img")).to_have_count(2)
    wait_for(lambda: section.locator("img").first.evaluate("each => each.naturalWidth") == 64, "the thumbnail")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(section.locator("[data-shown-step]")).to_have_text("step 80")
    assert "step=80" in page.url
    page.get_by_label("Step number").fill("45")
    page.get_by_label("Step number").press("Enter")
    expect(section.locator("[data-shown-step]")).to_have_text("step 40")
    expect(section.locator(".earlier")).to_have_count(1)  # grey: no picture at this step
    page.get_by_label("Search captions").fill("FOX")
    expect(section.locator("figure")).to_have_count(1)
    page.get_by_label("Search captions").fill("")
    page.get_by_label("Name").select_option("note")
    expect(page.locator("[data-media]")).to_have_count(1)
    assert "media=note" in page.url
    page.reload()
    expect(page.locator("[data-media=note]")).to_contain_text("hello")
    expect(page.get_by_text("1 at 1 step", exact=True)).to_be_visible()

    page.get_by_label("Name").select_option("")
    page.get_by_role("button", name="Latest").click()
    append(folder, [samples(run, 100)])
    expect(section.locator("[data-shown-step]")).to_have_text("step 100")  # by itself
    page.get_by_role("button", name="Pictures over steps").click()
    gallery = page.locator("[data-gallery=samples]")
    expect(gallery.get_by_label("samples 1, step 100")).to_be_visible()
    expect(gallery.get_by_text("step 100 ⚠ 2 dropped")).to_be_visible()
    page.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(page)


def test_runs_are_compared_prompt_by_prompt(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    prompts = ["fox", "house"]
    folders = {}
    for run_number, (name, steps, num_prompts) in enumerate([("a", [0, 10, 20], 2), ("b", [0, 15, 40], 1)]):
        run = logs / name
        records = [
            media(
                "samples",
                "image",
                number,
                *(
                    image(run, picture(64, 48, (number, 80 * index, 90 * run_number)), caption=prompts[index])
                    for index in range(num_prompts)
                ),
            )
            for number in steps
        ]
        records += [media(f"note-{name}", "text", 0, {"text": "hello"})]
        losses = [step(number, val_loss=abs(number - 12.0)) for number in range(41)]
        folders[name] = write(run, [{**START, "run_name": name}, *losses, *records])
    write(logs / "c", [{**START, "run_name": "c"}, step(1, loss=1.0), END])
    page.goto(dashboard().url + "#/compare/media?run=a&run=b&run=c")
    grid = page.locator("[data-media-grid=samples]")
    shown_steps = grid.locator("[data-shown-step]")
    expect(shown_steps).to_have_text(["step 20", "step 40"])  # the nearest to the latest one
    expect(grid.locator("[data-run=b][data-prompt='1'] [data-gap]")).to_have_text("not in this run")
    expect(grid.locator("[data-run=c][data-prompt='0'] [data-gap]")).to_have_text("no samples")
    page.get_by_label("Step number").fill("10")
    page.get_by_label("Step number").press("Enter")
    expect(shown_steps).to_have_text(["step 10", "step 15"])
    page.get_by_label("Step of each run").select_option("same")
    expect(shown_steps).to_have_text(["step 10"])
    expect(grid.locator("[data-run=b][data-prompt='0'] [data-gap]")).to_have_text("not at this step")
    page.get_by_label("Step of each run").select_option("best")
    page.get_by_label("Metric").select_option("val_loss")
    expect(shown_steps).to_have_text(["step 10", "step 15"])
    expect(grid.locator(".run[data-run=a]")).to_contain_text("lowest val_loss 2")

    grid.get_by_label("Open samples 0 of a, step 10").click()
    viewer = page.locator("[data-viewer]")
    viewer.get_by_label("Compare").select_option("difference")
    expect(viewer.get_by_label("Other run")).to_have_value("b")
    expect(viewer.locator(".difference img")).to_have_attribute("alt", "b, step 15")
    viewer.get_by_label("Zoom").select_option("2")
    page.reload()  # the address holds name, rule, metric, picture and zoom
    expect(viewer.get_by_label("Zoom")).to_have_value("2")
    expect(viewer.locator("img")).to_have_attribute("alt", "fox")
    page.keyboard.press("ArrowDown")
    expect(viewer.get_by_label("Run", exact=True)).to_have_value("b")
    expect(viewer).to_contain_text("step 15")
    page.keyboard.press("Escape")
    expect(viewer).to_have_count(0)

    page.get_by_label("Step of each run").select_option("nearest")
    page.get_by_role("button", name="Latest").click()
    append(folders["a"], [media("samples", "image", 50, image(logs / "a", picture(64, 48, "pink"), caption="fox"))])
    expect(shown_steps).to_have_text(["step 50", "step 40"])  # by itself
    page.get_by_role("button", name="Hide a").click()
    expect(shown_steps).to_have_text(["step 40"])
    options = page.get_by_label("Name").locator("option")
    expect(options).to_have_text(["samples · image · 1 of 2 runs", "note-b · text · 1 of 2 runs"])
    page.get_by_role("button", name="Show 1 hidden").click()
    expect(options).to_have_text([re.compile("^samples"), re.compile("^note-a"), re.compile("^note-b")])
    page.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(page)


def test_gallery_of_many_pictures_loads_only_its_view(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    run = logs / "m"
    same = [image(run, picture(8, 8, (index, 0, 0))) for index in range(8)]
    write(run, [START, *(media("samples", "image", number, *same) for number in range(1250)), END])
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(dashboard().url + "#/run/m/media")
    page.get_by_role("button", name="Pictures over steps").click()
    gallery = page.locator("[data-gallery=samples]")
    expect(gallery.get_by_label("samples 7, step 1249")).to_be_visible()
    assert gallery.locator("button").count() < 200
    gallery.evaluate("each => each.scrollLeft = 0")
    expect(gallery.get_by_label("samples 0, step 0")).to_be_visible()
    assert gallery.locator("button").count() < 200
    assert len([url for url in requests if "/items" in url]) < 10


def test_pictures_are_compared_in_the_viewer(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    run = logs / "m"
    mask = Image.new("L", (64, 48), 0)
    mask.paste(1, (0, 0, 32, 48))
    buffer = io.BytesIO()
    mask.save(buffer, "PNG")
    overlay = {
        "masks": {"pred": {**store(run, buffer.getvalue(), "png"), "labels": {"1": "fox"}}},
        "boxes": [
            {"x": 1, "y": 1, "width": 9, "height": 9, "label": "fox", "score": 0.9},
            {"x": 20, "y": 20, "width": 9, "height": 9, "label": "box", "score": 0.2},
        ],
    }
    items = [image(run, picture(64, 48, (colour, 0, 0)), **overlay) for colour in (50, 150, 250)]
    write(run, [START, *(media("s", "image", number, item) for number, item in enumerate(items)), END])
    page.goto(dashboard().url + "#/run/m/media")
    page.get_by_role("button", name="Open s 0").click()
    viewer = page.locator("[data-viewer]")
    expect(viewer.locator("img")).to_have_count(1)
    expect(viewer.locator("svg rect")).to_have_count(2)
    canvas = viewer.locator("canvas")
    colours = "c => [8, 50].map(x => c.getContext('2d', {willReadFrequently: true}).getImageData(x, 8, 1, 1).data[3])"
    wait_for(lambda: canvas.evaluate(colours) == [255, 0], "the mask covers its half")
    viewer.get_by_label("Lowest score").fill("0.5")
    expect(viewer.locator("svg rect")).to_have_count(1)
    classes = viewer.locator("[data-classes]")
    expect(classes.get_by_role("button")).to_have_text(["Hide all", "box", "fox1"])
    classes.get_by_role("button", name="fox").click()
    expect(viewer.locator("svg rect")).to_have_count(0)
    wait_for(lambda: canvas.evaluate(colours) == [0, 0], "the mask without its class")
    viewer.get_by_label("Lowest score").fill("0")
    expect(viewer.locator("svg rect")).to_have_count(1)
    viewer.get_by_label("Previous step").click()
    expect(viewer.locator("svg rect")).to_have_count(1)  # stays hidden at other steps
    viewer.get_by_label("Next step").click()
    classes.get_by_role("button", name="Hide all").click()
    expect(viewer.locator("svg rect")).to_have_count(0)
    classes.get_by_role("button", name="Show all").click()
    expect(viewer.locator("svg rect")).to_have_count(2)
    wait_for(lambda: canvas.evaluate(colours) == [255, 0], "the mask with its class")
    viewer.get_by_label("Zoom").select_option("4")
    assert viewer.locator("img").evaluate("each => [each.clientWidth, getComputedStyle(each).imageRendering]") == [
        256,
        "pixelated",
    ]
    viewer.get_by_label("Compare").select_option("flip")
    viewer.get_by_role("button", name="Flip").click()
    expect(viewer.locator("img")).to_have_count(2)
    page.keyboard.press("Space")
    expect(viewer.locator("img")).to_have_count(1)
    viewer.get_by_label("Compare").select_option("difference")
    expect(viewer.locator(".difference img")).to_have_count(1)
    viewer.get_by_label("Previous step").click()
    expect(viewer).to_contain_text("step 1")
    assert "step=1" in page.url
    page.keyboard.press("Escape")
    expect(viewer).to_have_count(0)


def test_tables_histograms_and_drawings_are_shown(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    run = logs / "m"
    cell = {"media": "image", **image(run, picture(9, 9, "green"))}
    rows = [{"prompt": f"p{i}", "score": "NaN" if i == 2 else i, "picture": cell} for i in range(5)]
    curve = {"label": "cat", "precision": [1, 0.5], "recall": [0, 1], "average_precision": 0.75}
    records = [
        media("eval", "table", 5, table_file(run, rows)),
        media("cm", "confusion_matrix", 5, {"labels": ["cat", "dog"], "counts": [[9, 1], [2, 8]]}),
        media("pr", "pr_curve", 5, {"curves": [curve]}),
        media("note", "markdown", 5, {"text": "**bold** ![x](http://127.0.0.1:9/x.png) <img src=x onerror=alert(1)>"}),
        media("long", "text", 5, store(run, b"from a file", "txt")),
        media("voice", "audio", 5, store(run, b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(100), "wav")),
        media("report", "file", 5, {**store(run, b"%PDF-1.4", "pdf"), "file_name": "report.pdf"}),
        *(histograms(number, weights=WEIGHTS) for number in range(5)),
    ]
    write(run, [START, *records, END])
    page.goto(dashboard().url + "#/run/m/media")
    table = page.locator("[data-media=eval]")
    expect(table.locator("tbody tr")).to_have_count(5)
    table.locator("img").first.scroll_into_view_if_needed()
    wait_for(lambda: table.locator("img").first.evaluate("each => each.naturalWidth") == 9, "a picture in a cell")
    table.get_by_role("button", name="score").click()
    table.get_by_role("button", name="score").click()
    scores = [text.split("\t")[1] for text in table.locator("tbody tr").all_inner_texts()]
    assert sorted(map(float, scores[:4])) in ([0, 1, 3, 4],) and scores[4] == "NaN"
    table.get_by_label("Filter rows").fill("P3")
    expect(table.locator("tbody tr")).to_have_count(1)
    for name in ("cm", "pr", "note", "long", "voice", "report"):
        page.locator(f"[data-media={name}]").scroll_into_view_if_needed()  # what is far away is not loaded
    expect(page.locator("[data-media=cm] td").first).to_have_text("9")
    expect(page.locator("[data-media=pr] polyline")).to_have_count(1)
    expect(page.locator("[data-media=note] b")).to_have_text("bold")
    expect(page.locator("[data-media=note] img")).to_have_count(0)
    expect(page.locator("[data-media=long]")).to_contain_text("from a file")
    expect(page.locator("[data-media=voice] audio")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="report.pdf").click()
    assert download.value.path().read_bytes() == b"%PDF-1.4"
    histogram = page.locator("[data-histograms]")
    histogram.scroll_into_view_if_needed()
    expect(histogram.locator("svg rect")).to_have_count(9)
    expect(histogram.locator("canvas")).to_be_visible()  # its size is tested in ui/src/model/media.test.ts


def test_cells_have_players_downloads_and_pictures_that_open(
    page: Page, dashboard: Callable[..., Any], logs: Path
) -> None:
    run = logs / "m"

    def row(number: int) -> dict[str, Any]:
        box = {"x": 1, "y": 1, "width": 9, "height": 9, "label": "fox"}
        return {
            "picture": {
                "media": "image",
                **image(run, picture(64, 48, (number, 0, 0))),
                "boxes": [box],
                "problem": "bad mask",
            },
            "voice": {"media": "audio", **store(run, b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(100 + number), "wav")},
            "clip": {"media": "video", **store(run, b"\x00\x00\x00\x20ftypisom" + bytes(100 + number), "mp4")},
            "page": {"media": "html", **store(run, b"<b>hello</b>" + bytes([48 + number]), "html")},
        }

    tables = {
        "few": {"columns": list(row(0)), "rows": [row(0)], "num_rows": 1},
        "many": table_file(run, [row(1)]),
    }
    broken = image(run, picture(64, 48, "blue"), problem="bad mask")
    records = [media(name, "table", 5, table) for name, table in tables.items()]
    write(run, [START, *records, media("masked", "image", 5, broken), END])
    page.goto(dashboard().url + "#/run/m/media")
    for name, number in (("few", 0), ("many", 1)):
        table = page.locator(f"[data-media={name}]")
        table.scroll_into_view_if_needed()
        expect(table.locator("td audio")).to_have_count(1)
        expect(table.locator("td video")).to_have_count(1)
        for player, kind in (("audio", "audio/wav"), ("video", "video/mp4")):
            response = page.request.get(table.locator(player).evaluate("each => each.src"))
            assert response.status == 200 and response.headers["content-type"] == kind
        with page.expect_download() as download:
            table.get_by_role("link", name="Download page of row 1").click()
        assert download.value.path().read_bytes() == b"<b>hello</b>" + bytes([48 + number])
        expect(table.get_by_text("bad mask")).to_be_visible()
        table.get_by_role("button", name="Open picture of row 1").click()
        viewer = page.locator("[data-viewer]")
        wait_for(lambda viewer=viewer: viewer.locator("img").evaluate("each => each.naturalWidth") == 64, "the picture")
        expect(viewer.get_by_label("Boxes")).to_have_count(1)
        with page.expect_download() as download:
            viewer.get_by_role("link", name="Download").click()
        assert download.value.path().read_bytes() == picture(64, 48, (number, 0, 0))
        page.keyboard.press("Escape")
        expect(viewer).to_have_count(0)
    masked = page.locator("[data-media=masked]")
    masked.scroll_into_view_if_needed()
    expect(masked.get_by_text("bad mask")).to_be_visible()
    wait_for(lambda: masked.locator("img").evaluate("each => each.naturalWidth") == 64, "the picture of a bad mask")
    page.get_by_role("button", name="Pictures over steps").click()
    assert "pictures=steps" in page.url
    page.reload()
    expect(page.locator("[data-gallery=masked]")).to_be_visible()
    expect(page.get_by_role("button", name="Pictures over steps", pressed=True)).to_be_visible()


def test_media_that_a_killed_process_lost_is_told(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    process = msgspec.structs.replace(this_process(), pid=2**22 + 1)
    for name, number in (("one", 1), ("many", 57)):
        folder = write(logs / name, [{**START, "process": process}, step(1, loss=1.0)])
        folder.private.mkdir(exist_ok=True)
        heartbeat = Heartbeat(START["run_id"], process, 1_000.0, 1.0, media_pending=number)
        folder.heartbeat.write_bytes(msgspec.json.encode(heartbeat))
    url = dashboard().url
    for name, text in (("one", "About 1 media record was not"), ("many", "About 57 media records were not stored")):
        page.goto(f"{url}#/run/{name}")
        page.get_by_role("link", name="media", exact=True).click()  # the tab exists although nothing was stored
        expect(page.locator("[data-media-lost]")).to_contain_text(text)


def test_histograms_are_drawn_as_ridges(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    values = [{"exp2": [-2, 2], "counts": [0, 0, 0, 0, 1, 4, number + 1, 0, 0], "n": 9} for number in range(60)]
    values[30] = {**values[30], "nonfinite": 3}
    records = [histograms(number * 10, weights=each) for number, each in enumerate(values)]
    note = media("note", "text", 590, {"text": "hello"})
    write(logs / "m", [START, *records, note, END])
    page.goto(dashboard().url + "#/run/m/media?step=300")
    section = page.locator("[data-histograms]")
    expect(section.locator("[data-faults]")).to_have_count(1)
    section.get_by_role("button", name="Ridges").click()
    ridges = section.locator("[data-ridges] path")
    expect(ridges).to_have_count(24)
    expect(section.locator("canvas")).to_have_count(0)
    expect(section.locator(".labels .chosen")).to_have_text("300")
    expect(section.locator(".labels .bad")).to_have_text("300")
    shares = ridges.last.get_attribute("d")
    section.get_by_role("button", name="log").click()
    assert ridges.last.get_attribute("d") != shares
    outlines = section.locator(".outlines")
    box = outlines.bounding_box()
    assert box
    outlines.click(position={"x": box["width"] / 2, "y": box["height"] - 6})
    expect(section.locator("h3")).to_have_text("Step 590")
    page.reload()
    expect(ridges).to_have_count(24)  # the address holds the view
    page.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(page)
    section.get_by_role("button", name="Map").click()
    expect(section.locator("canvas")).to_be_visible()


def test_share_of_nan_is_a_line_above_the_map_of_histograms(
    page: Page, dashboard: Callable[..., Any], logs: Path
) -> None:
    num_bad = {3: 1, 4: 4, 5: 12}
    values = {
        number: {"edges": [0, 1, 2], "counts": [12 - bad, 0], "n": 12 - bad, "nonfinite": bad}
        for number in range(8)
        for bad in [num_bad.get(number, 0)]
    }
    values[5] = {"edges": [], "counts": [], "n": 0, "nonfinite": 12}  # as recorded if no value is finite
    quiet = {"edges": [0, 1], "counts": [3], "n": 3}
    records = [histograms(number * 10, weights=each, calm=quiet) for number, each in values.items()]
    write(logs / "m", [START, *records, END])
    page.goto(dashboard().url + "#/run/m/media?step=40")
    section = page.locator("[data-histograms]")
    line = section.get_by_role("img", name="weights: share of NaN and infinite values, up to 100 % at step 50")
    path = line.locator(".line").get_attribute("d") or ""
    levels = [float(part.split(" ")[1].partition("H")[0]) for part in path[1:].split("L")]
    assert [level == levels[0] for level in levels] == [True] * 3 + [False] * 3 + [True] * 2
    assert levels[0] > levels[3] > levels[4] > levels[5]  # upwards
    expect(section.locator(".facts")).to_contain_text("8 values 4 NaN or infinite, 33.3 %")
    titles = section.locator(".steps span[title]")
    expect(titles).to_have_count(3)
    expect(titles.first).to_have_attribute("title", "step 30: 1 NaN or infinite, 8.33 %")
    steps = section.locator(".steps").bounding_box()
    canvas = section.locator("canvas").bounding_box()
    strip = line.bounding_box()
    assert steps
    assert canvas
    assert strip
    assert (strip["x"], strip["width"]) == (canvas["x"], canvas["width"]) == (steps["x"], steps["width"])
    section.locator(".steps").click(position={"x": steps["width"] * 5.5 / 8, "y": 5})  # on the line itself
    expect(section.locator("h3")).to_have_text("Step 50")
    expect(section.locator(".facts")).to_contain_text("0 values 12 NaN or infinite, 100 %")
    expect(section.locator(".bars")).to_have_count(0)
    section.get_by_label("Histogram").select_option("calm")
    expect(section.locator("canvas")).to_be_visible()
    expect(section.locator("[data-faults]")).to_have_count(0)  # quiet without any
    expect(section).not_to_contain_text("NaN")
    page.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(page)


def test_tables_are_compared_over_steps_and_runs(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    run = logs / "m"

    def table(rows: list[dict[str, Any]], *, is_file: bool = False) -> dict[str, Any]:
        if is_file:
            return table_file(run, rows)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return {"columns": columns, "num_rows": len(rows), "rows": rows}

    first = [{"note": "odd", "prompt": "p0", "answer": "a red fox", "score": 1}]
    first += [{"prompt": f"p{number}", "answer": "yes", "score": number} for number in range(1, 5)]
    second = [{**row, "score": 7} if row["prompt"] == "p3" else row for row in first if row["prompt"] != "p4"]
    second[0] = {**second[0], "answer": "a blue fox"}
    third = [*reversed(second), {"prompt": "new", "answer": "no", "score": 0}]
    records = [media("eval", "table", number * 10, table(rows)) for number, rows in enumerate([first, second])]
    write(run, [START, *records, media("eval", "table", 20, table(third, is_file=True)), END])
    other = [{**row, "extra": 1} for row in first]
    write(logs / "n", [{**START, "run_name": "n"}, media("eval", "table", 20, table(other)), END])
    page.goto(dashboard().url + "#/run/m/media?step=10")
    section = page.locator("[data-media=eval]")
    expect(section.locator("thead th")).to_have_text(["prompt", "answer", "score", "note"])  # the sparse one comes last
    section.get_by_role("button", name="Hide 1 sparse").click()
    expect(section.locator("thead th")).to_have_count(3)
    section.get_by_role("button", name="Columns").click()
    section.get_by_label("note").check()
    page.keyboard.press("Escape")
    expect(section.locator("thead th")).to_have_count(4)

    section.get_by_label("Compare eval with").select_option("previous")
    summary = section.locator("[data-table-diff]")
    expect(summary).to_contain_text("2 changed 0 added 1 removed from step 0")
    rows = section.locator("tbody tr")
    expect(section.get_by_label("Rows joined by")).to_have_value("prompt")
    expect(rows).to_have_count(3)
    expect(rows.nth(0).locator("[data-changed]")).to_have_text("a red fox a blue fox")
    expect(rows.nth(1).locator("[data-changed]")).to_have_text("3 7 +4")
    expect(section.locator("[data-change=removed]")).to_contain_text("p4")
    section.get_by_label("also 2 equal rows").check()
    expect(rows).to_have_count(5)
    by_change = section.get_by_label("Largest change first")
    by_change.focus()
    page.keyboard.press("ArrowDown")
    expect(by_change.locator("option:checked")).to_have_text("score")
    expect(rows.first).to_contain_text("p3")
    expect(rows.last).to_contain_text("p4")  # it was removed
    header = section.get_by_role("columnheader", name="score")
    expect(header).to_have_attribute("aria-sort", "other")
    header.get_by_role("button").press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    expect(by_change).to_have_value("")
    by_change.select_option("score")
    expect(header).to_have_attribute("aria-sort", "other")
    by_change.select_option("")
    page.keyboard.press("ArrowRight")  # the order of the rows does not matter
    expect(summary).to_contain_text("0 changed 1 added 0 removed from step 10")
    section.get_by_label("Rows joined by").select_option("position")
    expect(summary).to_contain_text("4 changed 1 added 0 removed")
    page.reload()
    expect(summary).to_contain_text("0 changed 1 added 0 removed from step 10")  # the address has the comparison
    section.get_by_label("Compare eval with").select_option("0")
    expect(summary).to_contain_text("2 changed 1 added 1 removed from step 0")
    page.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(page)
    menu = section.get_by_label("Download eval").bounding_box()
    assert menu is not None and menu["x"] > 300  # at the right edge, not on a line of its own

    page.goto(page.url.partition("#")[0] + "#/compare/media?run=m&run=n")
    page.get_by_label("Compare tables with").select_option("m")
    cell = page.locator("[data-media-grid=eval] .cell[data-run=n]")
    expect(cell.locator("[data-table-diff]")).to_contain_text("2 changed 1 added 1 removed from m only here: extra")
    expect(cell.locator("thead th").last).to_have_text("extra")  # only one of the runs has it
    wait_for_fit(page)


COUNT_COLOURS = """canvas => {
  const {width, height} = canvas;
  const context = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true});
  context.drawImage(canvas, 0, 0);
  const {data} = context.getImageData(0, 0, width, height);
  const counts = {red: 0, green: 0, left: 0, right: 0, sum: 0};
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] !== 255 || Math.floor(at / 4 / width) > 0.8 * height) continue;  // the axes are at the bottom
    counts.red += data[at] === 250 && data[at + 1] === 0;
    counts.green += data[at] === 0 && data[at + 1] === 250;
    counts[at / 4 % width < width / 2 ? 'left' : 'right'] += 1;
    counts.sum += at;
  }
  return counts;
}"""


def test_points_are_turned_zoomed_and_coloured(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    run = logs / "m"
    side = [(x / 9, y / 9, z / 9) for x in range(10) for y in range(10) for z in range(10)]
    coloured = [[(*at, 1, 250, 0, 0) for at in side], [(*at, at[0] > 0.5, 0, 250, 0) for at in side]]
    facts = {"labels": {"0": "car", "1": "tree"}, "sampled_from": 5000, "nonfinite": 3}
    records = [media("scan", "points", number * 10, points(run, rows, **facts)) for number, rows in enumerate(coloured)]
    pair = [points(run, side[:400], caption=f"frame {index}", meta={"seed": index}) for index in range(2)]
    plain = [media("pair", "points", 10, *pair), media("none", "points", 10, points(run, []))]
    write(run, [START, *records, *plain, END])
    page.goto(dashboard().url + "#/run/m/media")
    section = page.locator("[data-media=scan]")
    canvas = section.get_by_role("application")
    expect(canvas).to_have_attribute("aria-label", re.compile(r"^scan 0: 1.?000 points\. Arrow keys turn"))

    def count(name: str) -> int:
        return int(canvas.evaluate(COUNT_COLOURS)[name])

    wait_for(lambda: count("green") > 1000, "the points have their colours")
    expect(section).to_contain_text("thinned from")
    expect(section).to_contain_text("3 left out: NaN or infinite")
    assert count("red") == 0
    first_sum = count("sum")
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    wait_for(lambda: count("sum") != first_sum, "the cloud turns")
    expect(section.locator("[data-shown-step]")).to_have_text("step 10")  # the arrow did not change the step
    page.keyboard.press("ArrowRight")
    wait_for(lambda: count("sum") == first_sum, "the cloud turns back")
    num_pixels = count("green")
    page.keyboard.press("+")
    wait_for(lambda: count("green") > num_pixels, "the cloud is larger")
    page.keyboard.press("0")
    wait_for(lambda: count("sum") == first_sum, "the whole cloud")
    canvas.hover()
    page.mouse.wheel(0, -300)
    wait_for(lambda: count("green") > num_pixels, "the wheel zooms")
    page.keyboard.press("0")
    wait_for(lambda: count("sum") == first_sum, "the whole cloud")
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 80, box["y"] + box["height"] / 2 + 30, steps=3)
    page.mouse.up()
    wait_for(lambda: count("sum") != first_sum, "dragging turns the cloud")
    canvas.dblclick()
    wait_for(lambda: count("sum") == first_sum, "the whole cloud")
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] / 2, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    wait_for(lambda: count("right") > 10 * count("left"), "the cloud is moved to the right")
    canvas.dblclick()
    wait_for(lambda: count("sum") == first_sum, "the whole cloud")

    choice = section.get_by_label("Colour of scan 0")
    expect(choice.locator("option")).to_have_text(["own colour", "category", "height (z)"])
    choice.select_option("category")
    wait_for(lambda: count("green") == 0 and count("sum") == first_sum, "colours of the categories")
    expect(section.locator(".entry")).to_have_text(["car", "tree"])
    choice.select_option("height")
    expect(section.locator(".entry")).to_have_text(re.compile("z 0.*1"))
    choice.select_option("colour")
    page.get_by_label("Step number").fill("0")
    page.get_by_label("Step number").press("Enter")
    wait_for(lambda: count("red") > 1000 and count("green") == 0, "the points of the other step")

    page.get_by_role("button", name="Latest").click()
    for index in range(2):  # a cloud is loaded while it is in view
        figure = page.locator(f"[data-media=pair] figure[data-item='{index}']")
        figure.scroll_into_view_if_needed()
        expect(figure.locator("[data-points='400'] canvas")).to_be_visible()
    expect(page.locator("[data-media=pair] figcaption")).to_have_text(["frame 0", "frame 1"])
    page.locator("[data-media=none]").scroll_into_view_if_needed()
    expect(page.locator("[data-media=none]")).to_contain_text("No points.")
    page.set_viewport_size({"width": 400, "height": 800})
    section.scroll_into_view_if_needed()
    wait_for(lambda: count("green") > 1000 and (canvas.bounding_box() or box)["width"] < 400, "a narrow canvas")
    wait_for_fit(page)
    with page.expect_download() as download:
        section.get_by_role("link", name=re.compile("^Download")).click()
    assert download.value.suggested_filename.endswith(".npy")

    page.set_viewport_size({"width": 1280, "height": 800})
    write(logs / "n", [{**START, "run_name": "n"}, media("scan", "points", 5, points(logs / "n", side[:9])), END])
    page.goto(page.url.partition("#")[0] + "#/compare/media?run=m&run=n")
    page.get_by_label("Name").select_option("scan")
    expect(page.locator("[data-media-grid=scan] [data-points]")).to_have_count(2)


def test_broken_points_say_why(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    run = logs / "m"
    good = points(run, [[0, 0, 0], [1, 1, 1]], caption="good")
    whole = (run / "media" / good["sha256"][:2] / f"{good['sha256']}.npy").read_bytes()
    huge_header = whole.replace(b"(2, 3)", b"(9999999999, 3)")
    broken = {
        "cut": store(run, whole[:-5], "npy"),
        "huge": store(run, huge_header, "npy"),
        "html": store(run, ATTACK, "npy"),
        "picture": store(run, picture(), "npy"),
        "objects": store(run, whole.replace(b"<f4", b"|O "), "npy"),
        "flood": {**store(run, b"\x93NUMPY", "npy"), "bytes": 1 << 40},
        "lost": {"sha256": "e" * 64, "ext": "npy", "bytes": 9},
        "odd facts": {**good, "num_points": "x", "labels": [1], "columns": {}, "sampled_from": "y", "caption": None},
    }
    items = [{**fields, "num_points": 2, "caption": name} for name, fields in broken.items()]
    write(run, [START, media("odd", "points", 1, good, *items), END])
    page.goto(dashboard().url + "#/run/m/media")
    for caption, reason in {
        "cut": "it must have",
        "huge": "does not describe rows of float32",
        "html": "no .npy file",
        "picture": "no .npy file",
        "objects": "does not describe rows of float32",
        "flood": "too large",
        "lost": "not in the run folder",
    }.items():
        figure = page.locator("[data-media=odd] figure").filter(has=page.get_by_text(caption, exact=True))
        figure.scroll_into_view_if_needed()
        expect(figure).to_contain_text(reason)
        if caption != "lost":
            expect(figure.get_by_role("alert")).to_contain_text(broken[caption]["sha256"][:12])
    odd = page.locator("[data-media=odd] figure").filter(has=page.get_by_text("odd facts", exact=True))
    odd.scroll_into_view_if_needed()
    expect(odd.locator("[data-points='2'] canvas")).to_be_visible()
    assert page.evaluate("window.attacked") is None


@pytest.mark.complains  # about the pictures that cannot be decoded, and the attempts of the page in the frame
def test_hostile_files_do_no_harm(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    run = logs / "m"
    polyglot = b"GIF89a/*\x00\x00\x00\x00\x00*/=1;window.attacked=4;"
    pictures = [
        image(run, SVG, "svg", caption="svg"),
        image(run, SVG + b" ", "png", caption="svg as png"),
        image(run, ATTACK, "png", caption="html as png"),
        image(run, polyglot, "gif", caption="polyglot"),
        image(run, picture()[:60], caption="broken"),
        image(run, png_bomb(10_000, 8_000), caption="bomb"),
        {"sha256": "e" * 64, "ext": "png", "caption": "missing"},
        {"problem": "an array of shape (1, 2, 3, 4, 5)", "caption": "no data"},
        image(run, caption="<img src=x onerror='window.attacked = 5'>"),
    ]
    page_file = store(run, ATTACK, "html")
    write(run, [START, media("odd", "image", 1, *pictures), media("page", "html", 1, page_file), END])
    url = dashboard().url
    page.goto(url + "#/run/m/media")
    section = page.locator("[data-media=odd]")
    for caption, reason in {
        "svg as png": "not a picture",
        "html as png": "not a picture",
        "polyglot": "not a picture",
        "broken": "not a picture",
        "bomb": "10000 × 8000 pixels are too many",
        "missing": "not in the run folder",
        "no data": "an array of shape (1, 2, 3, 4, 5)",
    }.items():
        figure = section.locator("figure").filter(has=page.get_by_text(caption, exact=True))
        expect(figure).to_contain_text(reason)
    drawing = section.locator("figure").first.locator("img")
    wait_for(lambda: drawing.evaluate("each => each.naturalWidth > 0"), "the drawing is shown, as an image")
    assert page.locator("iframe").count() == 0  # only after a click
    page.get_by_role("button", name="Show page").click()
    inside = page.frame_locator("iframe").locator("#p")
    expect(inside).to_contain_text("origin null")
    expect(inside).to_have_text(
        "parent failed, cookie failed, storage failed, top failed, fetch failed, image failed, origin null"
    )
    assert page.evaluate("[window.attacked, document.title.includes('attacked')]") == [None, False]
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    # Files that are opened as a page of their own have no origin, no scripts, or are downloads.
    for item in pictures[1:4]:
        answer = page.request.get(f"{url}api/v1/runs/m/media/blobs/{item['sha256']}")
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    refused = page.goto(f"{url}api/v1/runs/m/media/frames/{page_file['sha256']}")
    assert refused is not None and refused.status == 403


def test_run_without_media_has_no_tab(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    write(logs / "plain", [START, *(step(i, loss=1.0) for i in range(20)), END])
    page.goto(dashboard().url + "#/run/plain")
    expect(page.get_by_role("link", name="overview", exact=True)).to_be_visible()
    media_link = page.get_by_role("link", name=re.compile("^media$", re.IGNORECASE))
    expect(media_link).to_have_count(0)

    folder = write(logs / "other", [{**START, "run_name": "other"}, *(step(i, loss=1.0) for i in range(20))])
    chart = page.locator("[data-metric=loss] canvas").first
    for address in ("#/", "#/compare?run=plain&run=other"):
        page.goto(page.url.partition("#")[0] + address)
        expect(chart).to_be_visible()
        expect(media_link).to_have_count(0)
    append(folder, [media("note", "text", 20, {"text": "hello"}), END])
    page.reload()
    media_link.click()
    expect(page.locator("[data-media-grid=note]")).to_contain_text("hello")
    page.get_by_role("link", name="sweep", exact=True).click()
    expect(media_link).to_be_visible()
    page.goto(page.url.partition("#")[0] + "#/")
    expect(media_link).to_be_visible()
