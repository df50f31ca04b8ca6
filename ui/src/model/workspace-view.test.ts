import { expect, test } from "vitest";
import {
  assignPlaces,
  defaultWorkspace,
  drawAll,
  drawnRuns,
  drawOnly,
  groupLineId,
  isTableAddress,
  lastingView,
  placesOf,
  readWorkspace,
  selectionOf,
  toggleGroup,
  toggleRun,
  withSelection,
  type WorkspaceView,
  writeWorkspace,
} from "./workspace-view";

const noGroup = (): null => null;
const first = ["a", "b", "c"];
const drawn = (view: WorkspaceView, groupOf = noGroup as Parameters<typeof drawnRuns>[2]): string =>
  drawnRuns(view, first, groupOf).join("");

test("the address has the list and the charts, and old addresses of the table are recognised", () => {
  const view: WorkspaceView = {
    filter: "tag:x",
    sort: "loss",
    archived: "all",
    drawsOnly: true,
    also: ["z"],
    charts: {
      ...defaultWorkspace.charts,
      search: "acc",
      pinned: ["loss"],
      by: ["config.lr"],
      hidden: ["a"],
      isLogY: true,
      low: 3,
    },
    panels: [{ kind: "scatter", fields: ["config.lr", "result"], isLogX: true, isLogY: false }],
  };
  expect(readWorkspace(writeWorkspace(view))).toEqual(view);
  expect(writeWorkspace(defaultWorkspace).toString()).toBe("");
  expect(selectionOf(view)).toEqual({ filter: "tag:x", sort: "loss", archived: "all", group: ["config.lr"] });
  expect(isTableAddress(writeWorkspace(view))).toBe(false);
  for (const query of ["c=loss", "q=x&differ=1", "pin=loss", "color=1"])
    expect(isTableAddress(new URLSearchParams(query))).toBe(true);
  const { charts, ...list } = lastingView(view);
  expect(list).toMatchObject({ filter: "tag:x", drawsOnly: false, also: [] });
  expect(charts).toMatchObject({ search: "", low: null, pinned: ["loss"], hidden: ["a"] });
});

test("runs are hidden and drawn one by one, also those past the first ones", () => {
  let view = toggleRun(defaultWorkspace, "b", first, noGroup);
  expect(drawn(view)).toBe("ac");
  view = toggleRun(view, "z", first, noGroup);
  expect(drawn(view)).toBe("acz");
  view = toggleRun(toggleRun(view, "b", first, noGroup), "z", first, noGroup);
  expect(view).toEqual(defaultWorkspace);
  view = toggleRun(drawOnly(view, ["z"]), "a", first, noGroup);
  expect(drawn(view)).toBe("za");
  expect(drawn(toggleRun(view, "z", first, noGroup))).toBe("a");
  expect(drawn(drawOnly(view, []))).toBe("");
  expect(drawAll(view)).toEqual(defaultWorkspace);
  // Other runs are listed: what was chosen among the earlier ones does not count, except hidden runs.
  view = withSelection(toggleRun(view, "z", first, noGroup), { filter: "x" });
  expect(drawn(view)).toBe("abc");
  expect(drawn(withSelection(toggleRun(view, "a", first, noGroup), { filter: "y" }))).toBe("bc");
});

test("a group is hidden as a whole, and its runs can be drawn one by one", () => {
  const group = { id: groupLineId("[1]"), runs: ["a", "b", "z"] };
  const groupOf = (run: string): typeof group | null => (group.runs.includes(run) ? group : null);
  const hidden = toggleGroup(defaultWorkspace, group, first, groupOf);
  expect(hidden.charts.hidden).toEqual([group.id]);
  expect(drawn(hidden, groupOf)).toBe("c");
  expect(drawn(toggleRun(hidden, "b", first, groupOf), groupOf)).toBe("bc");
  expect(drawn(toggleGroup(hidden, group, first, groupOf), groupOf)).toBe("abcz");
  expect(drawn(toggleGroup(drawOnly(hidden, ["c"]), group, first, groupOf), groupOf)).toBe("cabz");
  // Other groups: the hidden one does not exist any more.
  expect(withSelection(hidden, { group: ["tags"] }).charts).toMatchObject({ by: ["tags"], hidden: [] });
});

test("a run keeps its colour", () => {
  const runs = [
    { name: "late", started: 30 },
    { name: "unknown", started: null },
    { name: "early", started: 10 },
  ];
  const all = placesOf(runs);
  expect(all.map(({ name, place }) => [name, place])).toEqual([
    ["early", 0],
    ["late", 1],
    ["unknown", 2],
  ]);
  // It is the same whether some runs or all of them are known first.
  const some = assignPlaces(new Map(), [{ name: "late", place: 1 }]);
  const indexes = assignPlaces(some, all);
  expect(Object.fromEntries(indexes)).toEqual({ early: 0, late: 1, unknown: 2 });
  expect(assignPlaces(indexes, all)).toBe(indexes);
  // One without a place, and one that has the place of another run since an earlier one was removed
  const others = [
    { name: "hidden", place: null },
    { name: "newer", place: 2 },
    { name: "newest", place: 7 },
  ];
  expect([...assignPlaces(indexes, others)]).toEqual([...indexes, ["hidden", 3], ["newer", 4], ["newest", 7]]);
});
