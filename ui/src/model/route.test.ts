import { expect, test } from "vitest";
import { defaultView, format, parse, type Route, toRun } from "./route";

test("every view has an address that leads back to it", () => {
  const routes: Route[] = [
    { page: "runs", search: 'lora & "quotes"', states: ["running", "crashed"], sort: "train_loss" },
    {
      page: "run",
      run: "greyjacket",
      tab: "charts",
      others: ["a/b", "100%", "ünï ☃"],
      view: { x: "relative", smoothing: 0.95, isLog: true, search: "/^val/", low: -1.5, high: 1e9 },
    },
    { page: "run", run: "greyjacket", tab: "health", others: [], view: defaultView },
    { page: "run", run: "..%2f<img src=x>?#", tab: "control", others: [], view: defaultView },
  ];
  for (const route of routes) expect(parse(format(route))).toEqual(route);
});

test("what is no address leads to the list, and what is odd in one is left out", () => {
  expect(parse("").page).toBe("runs");
  expect(parse("#/nowhere/x").page).toBe("runs");
  const route = parse("#/run/a/nowhere?x=sideways&smooth=7&low=abc&with=a");
  expect(route).toEqual({
    page: "run",
    run: "a",
    tab: "overview",
    others: [],
    view: { ...defaultView, smoothing: 0.999 },
  });
  expect(parse("#/run/%E0%A4%A/charts")).toMatchObject({ page: "run", run: "%E0%A4%A" });
});

test("an address is short where nothing was changed", () => {
  expect(toRun("a b")).toBe("#/run/a%20b/overview");
});
