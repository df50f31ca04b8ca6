import { expect, test } from "vitest";
import {
  brushed,
  nudgeBrush,
  colourShares,
  makeAxis,
  nearestLine,
  nearestPoint,
  nextPoint,
  shareColour,
  spread,
  type SweepAxis,
  sweepAxes,
} from "./sweep";

const axis = (name: string, values: (number | string | boolean | null)[]): SweepAxis => {
  const found = makeAxis(name, values);
  if (!found) throw new Error(`${name} does not vary`);
  return found;
};

test("an axis is logarithmic if its values are positive, of a wide range and more even there", () => {
  const log = axis("lr", [1e-4, 1e-2, 1, null, "NaN"]);
  expect(log.kind).toBe("log");
  expect(log.positions.map((at) => (at === null ? null : Number(at.toFixed(6))))).toEqual([0, 0.5, 1, null, null]);
  expect(log.ticks.map(({ text }) => text)).toEqual(["0.0001", "0.01", "1"]);
  expect(axis("lr", [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]).kind).toBe("log");
  expect(axis("lr", [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]).ticks).toHaveLength(5);
  expect(axis("width", [64, 128, 256, 512]).kind).toBe("linear");
  expect(axis("share", [0.01, 0.25, 0.5, 0.75, 1]).kind).toBe("linear");
  expect(axis("lr", [0, 1000]).kind).toBe("linear");
  expect(axis("lr", [-1, 1000]).kind).toBe("linear");
});

test("texts and switches are categories in order", () => {
  const found = axis("optimizer", ["sgd", "adam", "lion", null]);
  expect([found.kind, found.positions]).toEqual(["category", [1, 0, 0.5, null]]);
  expect(axis("bias", [true, false]).positions).toEqual([1, 0]);
  expect(axis("mixed", [1, "auto"]).kind).toBe("category");
});

test("only keys with two or more values become axes, seeds last", () => {
  const key = (name: string, values: (number | null)[], isIgnored = false) => ({
    name,
    values,
    differs: true,
    is_ignored: isIgnored,
  });
  const config = [key("seed", [1, 2]), key("lr", [1, 2]), key("warmup", [5, null]), key("port", [1, 2], true)];
  expect(sweepAxes({ config }).map(({ name }) => name)).toEqual(["lr", "seed"]);
});

test("ticks of close values do not overlap", () => {
  expect(axis("a", [0, 1, 2, 100]).ticks.map(({ text }) => text)).toEqual(["0", "100"]);
});

test("brushes on several axes select runs that lie within all", () => {
  const axes = [axis("a", [0, 5, 10, null]), axis("b", [0, 1, 2, 1])];
  expect(brushed(axes, {}, 4)).toEqual([true, true, true, true]);
  expect(brushed(axes, { a: { low: 0.5, high: 1 } }, 4)).toEqual([false, true, true, false]);
  expect(brushed(axes, { a: { low: 0.5, high: 1 }, b: { low: 0, high: 0.5 } }, 4)).toEqual([false, true, false, false]);
});

test("the line and the point under the pointer are found", () => {
  const [a, b] = [axis("a", [0, 10, 5]), axis("b", [10, 0, 5])];
  expect(nearestLine([a, b], [true, true, true], 0, 0.98, 100, 10)).toBe(1);
  expect(nearestLine([a, b], [true, true, true], 0.9, 0.9, 100, 10)).toBe(0);
  expect(nearestLine([a, b], [true, false, true], 0, 0.98, 100, 10)).toBeNull();
  expect(nearestLine([a], [true, true, true], 0, 0, 100, 10)).toBeNull();
  const size = { width: 100, height: 100 };
  expect(nearestPoint({ x: a, y: b }, [true, true, true], { x: 0.97, y: 0.02 }, size, 8)).toBe(1);
  expect(nearestPoint({ x: a, y: b }, [true, true, true], { x: 0.8, y: 0.8 }, size, 8)).toBeNull();
});

test("runs with the same value are drawn side by side", () => {
  const found = axis("optimizer", ["sgd", "adam", "sgd", "sgd", null]);
  expect(spread(found, [0.5, 0, 1, 0, null])).toEqual([1, 0, 1.025, 0.975, null]);
});

test("the best result has the colour share 1", () => {
  const loss = axis("loss", [1, 3, null, 2]);
  expect(colourShares(loss, -1, 4)).toEqual([1, 0, null, 0.5]);
  expect(colourShares(loss, 1, 4)).toEqual([0, 1, null, 0.5]);
  expect([shareColour(null), shareColour(0.5)]).toEqual([
    "var(--muted)",
    "color-mix(in oklab, var(--palette-0) 50%, var(--palette-1))",
  ]);
});

test("keys move the ends of a brush", () => {
  expect(nudgeBrush(undefined, "ArrowDown", false)).toEqual({ low: 0, high: 0.95 });
  expect(nudgeBrush({ low: 0, high: 0.95 }, "ArrowUp", true)).toEqual({ low: 0.05, high: 0.95 });
  expect(nudgeBrush({ low: 0.05, high: 0.1 }, "Home", false)).toEqual({ low: 0.05, high: 0.05 });
  expect(nudgeBrush({ low: 0, high: 0.95 }, "ArrowUp", false)).toBeNull();
  expect(nudgeBrush({ low: 0, high: 0.95 }, "Escape", false)).toBeNull();
  expect(nudgeBrush(undefined, "a", false)).toBeUndefined();
});

test("arrow keys reach every point of a scatter plot", () => {
  const axes = { x: axis("x", [0, 1, 1, 2, null, 3]), y: axis("y", [5, 9, 8, 1, 2, 3]) };
  const isShown = [true, true, true, true, true, false];
  const walk = (key: string, from: number | null): number[] => {
    const found: number[] = [];
    for (let run = nextPoint(axes, isShown, from, key); run !== null && run !== from;) {
      found.push(run);
      [from, run] = [run, nextPoint(axes, isShown, run, key)];
    }
    return found;
  };
  expect(walk("ArrowRight", null)).toEqual([0, 2, 1, 3]);
  expect(walk("ArrowLeft", null)).toEqual([3, 1, 2, 0]);
  expect(walk("ArrowUp", 0)).toEqual([2, 1]);
  expect(walk("ArrowDown", 5), "from a hidden one").toEqual([1, 2, 0, 3]);
  expect(nextPoint(axes, isShown, 0, "Tab")).toBeNull();
  expect(nextPoint(axes, [], null, "ArrowUp")).toBeNull();
});
