import { expect, test } from "vitest";
import { defaultTable } from "./table-view";
import { defaultWorkspace } from "./workspace-view";
import { defaultCompareView } from "./compare-view";
import {
  compareAddress,
  defaultView,
  format,
  parse,
  runAddress,
  type Route,
  withoutProject,
  workspacePage,
} from "./route";

test("every route survives a round trip through its address", () => {
  const routes: Route[] = [
    workspacePage,
    { page: "workspace", view: { ...defaultWorkspace, filter: "a & b", also: ["x/y"], drawsOnly: true } },
    {
      page: "runs",
      table: { ...defaultTable, filter: 'lora & "quotes"', sort: "train_loss", columns: ["a/b", "c d"] },
    },
    { page: "trash" },
    { page: "compare", tab: "sweep", runs: ["a/b", "c d&e"], view: { ...defaultCompareView, search: "loss" } },
    { page: "run", run: "sweep/nested/run-1", tab: "charts", others: ["sweep/run 2"], view: defaultView },
    {
      page: "run",
      run: "greyjacket",
      tab: "charts",
      others: ["a/b", "100%", "ünï ☃"],
      view: {
        x: "relative",
        usesDefinedAxes: false,
        smoothing: 0.95,
        isLogX: true,
        isLogY: true,
        isClipped: false,
        pinned: ["a/b", "c d"],
        limits: { "a,b": [null, 2] },
        sizes: { "a/b": { columns: 2, heightPx: 400 } },
        mediaName: "val/samples",
        mediaStep: 500,
        mediaZoom: "4",
        mediaAgainst: 400,
        showsMediaSteps: true,
        showsRidges: true,
        showsParents: true,
        search: "/^val/",
        low: -1.5,
        high: 1e9,
      },
    },
    { page: "run", run: "greyjacket", tab: "health", others: [], view: defaultView },
    { page: "run", run: "..%2f<img src=x>?#", tab: "control", others: [], view: defaultView },
  ];
  for (const route of routes) expect(parse(format(route))).toEqual(route);
});

test("invalid addresses and parameters fall back to defaults", () => {
  expect(parse("").page).toBe("workspace");
  expect(parse("#/nowhere/x").page).toBe("workspace");
  // The table was the first page once.
  expect(parse("#/?q=x&c=loss&pin=loss")).toEqual({
    page: "runs",
    table: { ...defaultTable, filter: "x", columns: ["loss"], pinned: ["loss"] },
  });
  const route = parse("#/run/a/nowhere?x=sideways&smooth=7&low=abc&with=a");
  expect(route).toEqual({
    page: "run",
    run: "a",
    tab: "charts",
    others: [],
    view: { ...defaultView, smoothing: 0.999 },
  });
  expect(parse("#/run/%E0%A4%A/charts")).toMatchObject({ page: "run", run: "%E0%A4%A" });
});

test("an address omits default values", () => {
  expect(compareAddress(["a", "b/c"])).toBe("#/compare/charts?run=a&run=b%2Fc");
  expect(runAddress("a b")).toBe("#/run/a%20b/charts");
});

test("ids with a slash survive the address of a run and of a comparison", () => {
  const run = parse(runAddress("nlp/a b", "control", ["vision/c"]));
  expect(run).toMatchObject({ page: "run", run: "nlp/a b", tab: "control", others: ["vision/c"] });
  expect(parse(compareAddress(["nlp/a", "vision/b"]))).toMatchObject({ page: "compare", runs: ["nlp/a", "vision/b"] });
});

test("an address with a project is opened by those who see only this project", () => {
  const run = parse(runAddress("nlp/a", "charts", ["nlp/b"]));
  expect(withoutProject(run, "nlp")).toMatchObject({ run: "a", others: ["b"] });
  expect(withoutProject(run, null)).toBe(run);
  expect(withoutProject(run, "vision")).toBe(run);
  const own = parse(runAddress("a"));
  expect(withoutProject(own, "nlp")).toBe(own);
  expect(withoutProject(parse(compareAddress(["nlp/a", "b"])), "nlp")).toMatchObject({ runs: ["a", "b"] });
  expect(withoutProject(workspacePage, "nlp")).toBe(workspacePage);
});
