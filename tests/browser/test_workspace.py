"""The first page: the list of runs beside the charts of those that are drawn."""

from __future__ import annotations

import re
from urllib.parse import quote

from playwright.sync_api import expect

from tests.browser.conftest import wait_for_fit
from tests.browser.test_charts import write_journal
from tests.browser.test_compare import chart, painted, write_sweep
from tests.conftest import wait_for


def line(page, name):
    return page.locator(f'[data-run="{name}"]')


def colour_of(page, name):
    return line(page, name).locator(".dot").evaluate("dot => getComputedStyle(dot).backgroundColor")


def overlay_pixels(page):
    """The canvas above the lines, with the crosshair and the highlighted line."""
    return chart(page, "train_loss").locator("canvas").nth(1).evaluate("canvas => canvas.toDataURL()")


def test_runs_are_drawn_hidden_and_highlighted(page, dashboard, logs):
    write_sweep(logs, 12)
    page.goto(dashboard().url)
    wait_for(lambda: painted(page, "train_loss") == 12, "all lines are painted")
    expect(page.locator("[data-drawn]")).to_have_text("12 drawn")
    expect(line(page, "run-03")).to_contain_text(re.compile(r"0\.4\d"))  # its loss
    before = {name: colour_of(page, name) for name in ("run-03", "run-05", "run-06")}
    assert len(set(before.values())) == 3

    # One click hides a run. The others are neither loaded again nor given other colours.
    wait_for(lambda: painted(page, "grad_norm") == 12, "all lines of the other chart are painted")
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/api/v1/series" in request.url else None)
    page.get_by_label("Hide run-03").click()
    wait_for(lambda: painted(page, "train_loss") == 11, "a line is hidden")
    expect(page.locator("[data-drawn]")).to_contain_text("11 of 12 drawn")
    page.get_by_label("Draw run-03").click()
    wait_for(lambda: painted(page, "train_loss") == 12, "the line is drawn again")
    page.get_by_label("Hide run-03").click()
    assert asked == []
    box = page.get_by_label("Search runs")
    box.fill("config.lr=0.1")
    wait_for(lambda: painted(page, "train_loss") == 5, "only runs that match are drawn")
    assert colour_of(page, "run-05") == before["run-05"]

    # The table shows the same runs, and the way back keeps what is hidden.
    page.get_by_role("link", name="Table").click()
    expect(page.get_by_text("6 of 12 runs")).to_be_visible()
    page.get_by_role("button", name="loss", exact=True).click()
    page.get_by_role("link", name="Charts").click()
    expect(box).to_have_value("config.lr=0.1")
    expect(page.get_by_label("Order of the runs")).to_have_value("loss")
    expect(page.get_by_label("Draw run-03")).to_be_visible()
    box.fill("")

    # A line and its row are highlighted together.
    plot = chart(page, "train_loss").locator(".plot")
    wait_for(lambda: painted(page, "train_loss") == 11, "all runs are listed again")
    bounds = plot.bounding_box()
    page.mouse.move(bounds["x"] + bounds["width"] * 0.7, bounds["y"] + bounds["height"] * 0.9)
    expect(line(page, "run-00")).to_have_class(re.compile("highlighted"))
    page.mouse.move(0, 0)
    expect(page.locator(".highlighted")).to_have_count(0)
    plain = overlay_pixels(page)
    line(page, "run-04").hover()
    wait_for(lambda: overlay_pixels(page) != plain, "the line of the row is highlighted")

    # Only one, all, none: with the mouse and with the keyboard.
    line(page, "run-04").locator(".value").click(modifiers=["Alt"])
    wait_for(lambda: painted(page, "train_loss") == 1, "only one line is painted")
    page.get_by_role("button", name="draw all", exact=True).click()
    wait_for(lambda: painted(page, "train_loss") == 12, "all lines are painted, also the hidden one")
    page.keyboard.press("h")
    expect(page.get_by_role("heading", name="No run is drawn")).to_be_visible()
    page.get_by_role("grid").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(page.locator("[data-drawn]")).to_contain_text("1 of 12 drawn")
    page.keyboard.press("h")
    page.keyboard.press("h")
    expect(page.locator("[data-drawn]")).to_have_text("12 drawn")
    line(page, "run-04").click(button="right", position={"x": 320, "y": 10})
    page.get_by_role("button", name="Compare with …").click()
    line(page, "run-06").get_by_role("link").click()
    expect(page).to_have_url(re.compile("#/compare/charts.run=run-04&run=run-06$"))
    page.go_back()
    expect(line(page, "run-00")).to_be_visible()  # a key before the list is loaded opens nothing
    page.get_by_role("grid").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("run-00")  # the list is still sorted by loss


def test_results_of_different_metrics_have_names_and_no_best(page, dashboard, logs):
    for index in range(3):
        write_journal(logs, f"lm-{index}", [{"val_loss": 3.0 - index}], config={"arch": "gpt", "seed": index})
        write_journal(logs, f"cls-{index}", [{"val_acc": 0.5 + 0.1 * index}], config={"arch": "cnn", "seed": index})
    page.goto(dashboard().url)
    expect(line(page, "lm-1").locator(".value")).to_have_text(re.compile(r"val_loss\s+2"))
    order = page.get_by_label("Order of the runs")
    expect(order.get_by_role("option")).to_have_text(["newest first", "oldest first", "by name"])
    page.get_by_label("Search runs").fill("config.arch:cnn")
    expect(line(page, "cls-1").locator(".value")).to_have_text("0.6")
    order.select_option("best first")
    expect(page.locator("[data-run]").first).to_have_attribute("data-run", "cls-2")

    # The default columns of the table are those that vary between the runs that match; seeds come last.
    page.get_by_role("link", name="Table").click()
    columns = page.locator("[data-column^=config]")
    expect(columns).to_have_count(1)  # the seed
    page.get_by_label("Search runs").fill("")
    expect(page.get_by_role("row", name="lm-1")).to_contain_text("val_loss")
    expect(columns.nth(1)).to_be_visible()
    assert columns.evaluate_all("heads => heads.map(head => head.dataset.column)") == ["config.arch", "config.seed"]


def test_first_lines_wait_for_nothing_else(page, dashboard, logs):
    write_sweep(logs, 210)
    start = dashboard()
    page.goto(start.url)
    wait_for(lambda: painted(page, "train_loss") == 200, "the server has read the runs")
    page.goto("about:blank")
    asked, answered = [], []
    page.on("request", lambda request: asked.append(request.url.partition("/api/v1/")[2]))
    page.on("response", lambda response: answered.append(response) if "/api/v1/table?" in response.url else None)
    with page.expect_request("**/api/v1/live*"):  # after the list of all runs
        page.goto(start.url)
    wait_for(lambda: painted(page, "train_loss") == 200, "all lines are painted")
    asked = [url for url in asked if url]
    first = next(index for index, url in enumerate(asked) if url.startswith("series"))
    assert {url.partition("?")[0] for url in asked[:first]} <= {"table", "metrics", "diff"}
    assert len(asked[:first]) <= 4, asked[:first]
    table = answered[0].json()
    assert (len(table["rows"]), table["num_matching"]) == (200, 210)
    assert len(answered[0].body()) < 32_768
    # A few requests for all runs; the stream starts after the list.
    metrics = [url for url in asked if url.startswith("metrics") or url.endswith("/metrics")]
    series = [url for url in asked if url.startswith("series") and "name=train_loss" in url]
    assert 1 <= len(metrics) <= 5
    assert len(series) == 4
    assert [url.startswith("live?after=") for url in asked if url.startswith("live")] == [True]
    assert asked.index("runs") > first


def test_groups_views_and_new_runs(page, dashboard, logs, context):
    write_sweep(logs, 6)
    start = dashboard()
    page.goto(start.url)
    wait_for(lambda: painted(page, "train_loss") == 6, "all lines are painted")

    # Groups: mean and range of the drawn runs of each group.
    page.get_by_label("Group", exact=True).click()
    page.get_by_role("button", name="Same config, except seeds").click()
    page.keyboard.press("Escape")
    group = page.get_by_role("row", name=re.compile("3 runs"))
    expect(group).to_have_count(2)
    wait_for(lambda: painted(page, "train_loss") == 8, "six runs and two means are painted")
    plot = chart(page, "train_loss").locator(".plot")
    bounds = plot.bounding_box()
    page.mouse.move(bounds["x"] + bounds["width"] * 0.7, bounds["y"] + bounds["height"] * 0.9)
    expect(plot.locator("..").locator(".tip")).to_contain_text(re.compile(r"lr 0\.01\b"))
    page.mouse.move(0, 0)
    low = group.filter(has_text="0.01")
    low.get_by_label("Hide 3 runs").click()
    wait_for(lambda: painted(page, "train_loss") == 4, "a group is hidden")
    low.get_by_role("button", name=re.compile("lr 0.01")).click()
    page.get_by_label("Draw run-02").click()
    wait_for(lambda: painted(page, "train_loss") == 5, "one run of the hidden group is drawn")

    # A new run is drawn as soon as it appears, unless it is hidden with its group.
    write_journal(logs, "run-07", [{"train_loss": 2.0, "grad_norm": 1.0}] * 60, config={"lr": 0.1, "seed": 7})
    wait_for(lambda: painted(page, "train_loss") == 6, "a new run is drawn")

    # A view has the filter and the charts. It opens for everyone, also from the table.
    page.get_by_label("Search runs").fill("config.lr=0.1")
    page.get_by_label("Pin grad_norm").click()
    page.get_by_role("button", name="log y").click()
    page.get_by_role("button", name="Views").click()
    page.get_by_label("Name of this view").fill("Large steps")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name="Large steps")).to_be_visible()
    shared = page.url
    page.keyboard.press("Escape")
    other = context.new_page()
    other.goto(start.url + "#/table?sort=name")
    other.get_by_role("button", name="Views").click()
    other.get_by_role("link", name="Large steps").click()
    expect(other.get_by_label("Search runs")).to_have_value("config.lr=0.1")
    expect(other.get_by_label("Pinned charts").locator("[data-metric]")).to_have_count(1)
    expect(other.get_by_role("button", name="log y")).to_have_attribute("aria-pressed", "true")
    assert other.url == shared
    wait_for(lambda: painted(other, "train_loss") == 5, "four runs and their mean are painted")

    # A narrow window has the list above the charts; it can be folded.
    other.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(other)
    assert (
        other.get_by_label("List of runs", exact=True).bounding_box()["y"]
        < chart(other, "train_loss").bounding_box()["y"]
    )
    other.get_by_label("More about the list").click()
    other.get_by_role("button", name="Fold this list").click()
    expect(other.get_by_label("List of runs", exact=True)).to_have_count(0)
    other.reload()
    other.get_by_label("Show the list of runs").click()
    expect(other.get_by_label("List of runs", exact=True)).to_be_visible()


def test_panels_show_any_fields_of_the_drawn_runs(page, dashboard, logs):
    write_sweep(logs, 12)
    write_journal(logs, "run-12", [{"grad_norm": 1.0}], config={"lr": 0.1})
    page.goto(dashboard().url)
    wait_for(lambda: painted(page, "train_loss") == 12, "all lines are painted")

    # A scatter plot of the result, with the colours of the list.
    add = page.get_by_role("button", name="Add panel", exact=True)
    add.first.click()
    page.locator("form.editor").get_by_role("button", name="Add panel").click()
    scatter = page.locator("[data-panel^='panel scatter']")
    points = scatter.locator("circle")
    expect(points).to_have_count(12)
    expect(scatter.get_by_text("1 run without result")).to_have_attribute("title", "run-12")
    runs = {
        point.evaluate("circle => getComputedStyle(circle).fill"): point.get_attribute("data-point")
        for point in points.all()
    }
    assert colour_of(page, "run-03") in runs

    # A point and its row are highlighted together; a hidden run has no point.
    row_of_point = scatter.locator(f"[data-point='{runs[colour_of(page, 'run-03')]}']")
    line(page, "run-03").hover()
    expect(row_of_point).to_have_attribute("r", "6")
    row_of_point.hover()
    expect(line(page, "run-03")).to_have_class(re.compile("highlighted"))
    expect(page.locator(".tip", has_text="config.lr").first).to_contain_text("run-03")
    page.get_by_label("Hide run-03").click()
    expect(points).to_have_count(11)

    # Bars of groups, logarithmic axes and the size are part of the address.
    page.mouse.move(0, 0)
    add.first.click()
    editor = page.locator("form.editor").first
    editor.get_by_role("button", name="Bars").click()
    editor.get_by_label("logarithmic").check()
    editor.get_by_role("button", name="Add panel").click()
    bars = page.locator("[data-panel^='panel bar']")
    expect(bars.locator("li")).to_have_count(10)
    expect(bars.locator("header")).to_contain_text("1 run without result, 1 run with result ≤ 0")
    bars.get_by_label(re.compile("^Resize result")).press("ArrowDown")
    page.get_by_role("button", name="Group", exact=True).click()
    page.get_by_label("Group by, field 1").select_option("config.lr")
    page.keyboard.press("Escape")
    expect(bars.locator("li")).to_have_count(2)
    expect(bars.locator("li").first).to_contain_text("±")
    expect(page).to_have_url(re.compile("panel=scatter.*panel=bar%2Cy%2Cresult.*size=1%2C315"))
    page.reload()
    expect(bars.locator("li")).to_have_count(2)
    assert bars.bounding_box()["height"] == 315

    # A panel can be changed and removed.
    scatter.get_by_role("button", name=re.compile("^Settings of")).click()
    scatter.get_by_label("Field of the y axis", exact=True).select_option("grad_norm.last")
    scatter.get_by_role("button", name="Apply").click()
    expect(scatter.get_by_role("heading")).to_have_text("grad_norm against config.lr")
    expect(points).to_have_count(12)
    scatter.get_by_role("button", name=re.compile("^Settings of")).click()
    scatter.get_by_role("button", name="Remove").click()
    expect(page.locator("[data-panel]")).to_have_count(1)


def test_focus_stays_where_added_panels_are_removed(page, dashboard, logs):
    write_sweep(logs, 3)
    panels = ("scatter,,config.lr,result", "bar,,result", "line,,train_loss,")
    page.goto(dashboard().url + "#/?" + "&".join(f"panel={quote(panel)}" for panel in panels))
    section = page.get_by_label("Added panels")
    settings = section.get_by_role("button", name=re.compile("^Settings of"))
    expect(section.locator("circle")).to_have_count(3)
    expect(section.locator("article")).to_have_count(3)
    for panel, key in ((settings.nth(0), "Move right"), (settings.nth(1), "Apply")):
        panel.press("Enter")
        page.get_by_role("button", name=key).press("Enter")
        expect(settings.nth(1)).to_be_focused()
    settings.nth(0).press("Enter")
    page.get_by_role("button", name="Remove").press("Enter")
    expect(section.locator("article")).to_have_count(2)
    expect(settings.nth(0)).to_be_focused()  # the panel that took its place
    section.get_by_label("Unpin train_loss").press("Enter")
    expect(section.locator("article")).to_have_count(1)
    expect(settings.nth(0)).to_be_focused()  # the last one
    settings.nth(0).press("Enter")
    page.get_by_role("button", name="Remove").press("Enter")
    expect(section).to_have_count(0)
    expect(page.get_by_role("button", name="Add panel", exact=True)).to_be_focused()


def test_points_of_scatter_plots_follow_the_arrow_keys(page, dashboard, logs):
    write_sweep(logs, 6)
    page.goto(dashboard().url + "#/?" + f"panel={quote('scatter,,config.lr,result')}")
    plot = page.get_by_role("group", name=re.compile("^result against config.lr"))
    points = plot.locator("circle")
    expect(points).to_have_count(6)
    point_ids = set()
    for _ in range(6):
        plot.press("ArrowRight")
        expect(plot.locator("circle[r='6']")).to_have_count(1)
        point_ids.add(plot.locator("circle[r='6']").get_attribute("data-point"))
    assert len(point_ids) == 6
    tip = page.get_by_role("status").filter(has_text="config.lr")
    run = tip.locator("b").inner_text()
    plot.press("Escape")
    expect(tip).to_have_count(0)
    plot.press("ArrowLeft")
    expect(tip.locator("b")).to_have_text(run)  # from the end
    plot.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(run)


def test_keyboard_reaches_everything(page, dashboard, logs):
    write_sweep(logs, 40)
    page.goto(dashboard().url + "#/?sort=name")
    wait_for(lambda: painted(page, "train_loss") == 40, "all lines are painted")

    # The list is one tab stop, followed by the menu of the active row, however many rows there are.
    page.get_by_role("grid").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    menu = page.get_by_label("More about run-01", exact=True)
    expect(menu).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Width of the list")).to_be_focused()

    # A menu closes when the focus leaves it, and gives it back when Escape closes it.
    menu.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Draw only this")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Open", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    page.get_by_label("More about the list").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Archived runs")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.get_by_label("Hide all runs")).to_be_focused()
    expect(page.locator(":popover-open")).to_have_count(0)
    shortcuts = page.get_by_label("Keyboard shortcuts")
    shortcuts.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(shortcuts).to_be_focused()

    # Zoom around the cursor, and out again; beyond all points, it is the whole range.
    chart(page, "train_loss").locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile(r"low=1\d.*high=4\d"))
    page.keyboard.press("-")
    expect(page).not_to_have_url(re.compile("low="))

    # The focus follows a chart to the pinned ones and back.
    page.get_by_label("Pin grad_norm").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Pinned charts").get_by_label("Unpin grad_norm")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Pin grad_norm", exact=True)).to_be_focused()


def test_slow_server_is_waited_for_and_no_number_invented(page, dashboard, logs, context):
    write_sweep(logs, 3)
    start = dashboard()
    held = []

    def hold(route):
        held.append(route)

    def answer(*names):
        def are_held():
            page.evaluate("true")  # or no request would be seen
            return all(any(name in route.request.url for route in held) for name in names)

        wait_for(are_held, f"requests of {names} are held back")
        while held:
            held.pop().continue_()

    page.route(re.compile(r"/api/v1/(table(/groups)?\?|metrics|runs/run-00/(records|alerts))"), hold)
    page.goto(start.url)
    expect(page.get_by_text("Loading runs …")).to_be_visible()
    assert "0" not in page.locator("[data-drawn]").inner_text()
    answer("/table?")
    expect(page.locator("[data-drawn]")).to_have_text("3 drawn")
    expect(page.get_by_text("Loading runs …")).to_have_count(0)
    expect(page.get_by_text("Loading metrics …")).to_be_visible()
    answer("/metrics")
    wait_for(lambda: painted(page, "train_loss") == 3, "all lines are painted")

    # Charts and list stay until the groups are known.
    page.get_by_label("Group", exact=True).click()
    page.get_by_role("button", name="Same config, except seeds").click()
    expect(page.get_by_text("Loading groups …")).to_be_visible()
    assert painted(page, "train_loss") == 3
    expect(line(page, "run-01")).to_be_visible()
    answer("/table/groups?")
    expect(page.get_by_role("row", name=re.compile("2 runs"))).to_be_visible()
    expect(page.get_by_text("Loading groups …")).to_have_count(0)

    # A dash is no number.
    page.keyboard.press("Escape")
    page.goto(f"{start.url}#/run/run-00/events")
    errors = page.locator("section", has_text="Errors").locator(".big")
    expect(errors).to_have_text("–")
    expect(page.get_by_text("Loading events …")).to_be_visible()
    answer("/records", "/alerts")
    expect(errors).to_have_text("none")
    page.unroute_all()
