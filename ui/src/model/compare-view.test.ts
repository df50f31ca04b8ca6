import { expect, test } from "vitest";
import {
  type CompareView,
  defaultCompareView,
  isShownIn,
  movePin,
  readCompareView,
  shiftPin,
  toggleShown,
  writeCompareView,
} from "./compare-view";

function roundTrip(view: CompareView): CompareView {
  const parameters = new URLSearchParams();
  writeCompareView(view, parameters);
  return readCompareView(new URLSearchParams(parameters.toString()));
}

test("the address holds the whole view", () => {
  expect(roundTrip(defaultCompareView)).toEqual(defaultCompareView);
  const view: CompareView = {
    search: "/^val/",
    x: "metric:env/frames",
    usesDefinedAxes: false,
    isLogX: true,
    isLogY: true,
    isClipped: false,
    smoothing: 0.9,
    low: -1,
    high: 1e9,
    by: ["config.lr", "group"],
    hidden: ["a&b"],
    only: ["group lr=0.1, wd=1"],
    pinned: ["val_loss", "a,b"],
    sizes: { "a,b": { columns: 2, heightPx: 400 } },
    limits: { "a,b": [null, 3], loss: [-1e-5, 2] },
    differences: {
      columns: ["val_loss.best", "acc.max"],
      showsAll: true,
      reference: "a&b",
      sort: "-lr",
      open: ["git", "code"],
      other: "run +1",
    },
    sweep: {
      result: "val_loss.min",
      brushes: { "a,b": { low: 0, high: 0.25 }, lr: { low: 0.5, high: 1 } },
      keys: { "+odd": true, lr: false },
    },
    media: {
      name: "val/samples",
      step: 500,
      rule: "best",
      metric: "val_loss",
      zoom: "4",
      against: "a/b",
      opened: { run: "a/b", prompt: "a & b" },
    },
    verdict: { before: ["b", "c"], out: ["a&b"], isForced: true },
  };
  expect(roundTrip(view)).toEqual(view);
  const nothingBefore = { ...defaultCompareView, verdict: { before: [], out: [], isForced: false } };
  expect(roundTrip(nothingBefore)).toEqual(nothingBefore);
});

test("invalid parameters are ignored", () => {
  const view = readCompareView(
    new URLSearchParams(
      "x=sideways&low=abc&smooth=7&y=1&y=a,b,loss&hide=&brush=1,0,lr&brush=,1,lr&brush=0,2,lr&key=lr&ref=",
    ),
  );
  expect(view).toEqual({ ...defaultCompareView, smoothing: 0.999 });
});

test("runs are hidden one by one, or all but one", () => {
  let view = { ...defaultCompareView, ...toggleShown(defaultCompareView, "a") };
  expect([isShownIn(view, "a"), isShownIn(view, "b")]).toEqual([false, true]);
  view = { ...view, ...toggleShown(view, "a") };
  expect(isShownIn(view, "a")).toBe(true);
  view = { ...view, only: ["b"] };
  expect([isShownIn(view, "a"), isShownIn(view, "b")]).toEqual([false, true]);
  view = { ...view, ...toggleShown(view, "a") };
  expect(view.only).toEqual(["b", "a"]);
});

test("pinned charts can be arranged", () => {
  expect(movePin(["a", "b", "c"], "c", "a")).toEqual(["c", "a", "b"]);
  expect(movePin(["a", "b"], "x", "a")).toEqual(["a", "b"]);
  expect(shiftPin(["a", "b", "c"], "a", 1)).toEqual(["b", "a", "c"]);
  expect(shiftPin(["a", "b", "c"], "a", -1)).toEqual(["a", "b", "c"]);
});
