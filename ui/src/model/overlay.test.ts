import { expect, test } from "vitest";
import { buildChartLines } from "./chart-lines";
import {
  extentOf,
  groupsOf,
  interpolate,
  legendRows,
  linesOutside,
  type Member,
  memberColour,
  moveCursor,
  nearestLine,
  noCursor,
  overlayRange,
  rangeOfChart,
  packRuns,
  valueOf,
} from "./overlay";
import { nearestPoint } from "./series";

const line = (values: (number | null)[]) => ({ x: values.map((_, index) => index), y: values });
const flat = (level: number, length = 100) => line(Array.from({ length }, (_, index) => level + (index % 10) / 10));

test("a run that diverged and single outliers are clipped, and counted", () => {
  const runs = [1, 1.2, 1.4, 1.6, 1.8].map((level) => flat(level));
  const whole = overlayRange(runs, -Infinity, Infinity, false, true);
  expect(whole).toEqual({ low: 1, high: 2.7, numOutside: 0, numLines: 0 });
  const diverged = line(Array.from({ length: 100 }, (_, index) => (index < 50 ? 2 : 2 ** (index - 50))));
  const spike = flat(1.5);
  spike.y[40] = 1e6;
  const clipped = overlayRange([...runs, diverged, spike], -Infinity, Infinity, false, true);
  expect(clipped).toMatchObject({ low: 1, high: 2.7, numLines: 2 });
  expect(clipped?.numOutside).toBeGreaterThan(40);
  expect(overlayRange([...runs, spike], -Infinity, Infinity, false, false)?.high).toBe(1e6);
  expect(overlayRange([...runs, spike], 50, 99, false, true)?.high).toBe(2.7); // the spike is not in view
  expect(overlayRange([line([null])], 0, 1, false, true)).toBeNull();
  expect(overlayRange([line([-1, 0, 5])], 0, 9, true, true)).toMatchObject({ low: 5, high: 5 });
});

test("clipping leaves out a few lines at most, and names those that cannot be seen", () => {
  const noise = (index: number): number => Math.sin(index * 12.9898) / 20;
  const losses = (factor: number, count: number, diverges = false) =>
    Array.from({ length: count }, (_, run) => ({
      id: `${factor}x ${run}`,
      points: line(
        Array.from({ length: 200 }, (_, step) =>
          diverges && step > 150 ? 1e9 * step : factor * (0.3 + run / 200 + 2 / (1 + step / 10) + noise(step + run)),
        ),
      ),
    }));
  const outside = (...sets: ReturnType<typeof losses>[]) => {
    const lines = sets.flat();
    const range = overlayRange(
      lines.map(({ points }) => points),
      0,
      200,
      false,
      true,
    );
    return linesOutside(lines, 0, 200, { low: range?.low ?? 0, high: range?.high ?? 0, isLog: false });
  };
  // A fifth of the runs is a part of the data, however far it is away, above or below.
  expect(outside(losses(1, 48), losses(10, 12))).toEqual([]);
  expect(outside(losses(1, 48), losses(1e6, 12))).toEqual([]);
  expect(outside(losses(1e6, 48), losses(1, 12))).toEqual([]);
  expect(outside(losses(1, 2), losses(1e6, 1))).toEqual([]);
  // So are runs that only begin far away, or diverge late.
  expect(outside(losses(1, 57), losses(1, 3, true))).toEqual([]);
  // A few that nobody could read beside the others are named.
  expect(outside(losses(1, 57), losses(1e6, 3))).toEqual(["1000000x 0", "1000000x 1", "1000000x 2"]);
  expect(outside(losses(1, 9), losses(-1e6, 1))).toEqual(["-1000000x 0"]);
  // A logarithmic scale has no place for other values; a line without points between two positions is not outside.
  const bad = { id: "bad", points: line([-1, 0, null]) };
  expect(
    linesOutside([bad, { id: "late", points: { x: [9], y: [5] } }], 0, 8, { low: 1, high: 10, isLog: true }),
  ).toEqual(["bad"]);
});

test("the beginning of a loss is not clipped", () => {
  const loss = line(Array.from({ length: 600 }, (_, step) => 2 + 9 * Math.exp(-step / 30)));
  expect(overlayRange([loss, loss, loss, loss], 0, 600, false, true)?.numOutside).toBe(0);
});

test("the nearest line is the one with the least vertical distance", () => {
  const scale = { low: 0, high: 10, isLog: false };
  const lines = [
    { id: "low", points: line([1, 1, 1]) },
    { id: "high", points: line([8, 8, null]) },
    { id: "short", points: { x: [0, 0.5], y: [5, 5] } },
  ];
  expect(nearestLine(lines, 0.9, scale, 0.55)).toBe("high");
  expect(nearestLine(lines, 0.4, scale, 0.55)).toBe("short");
  expect(nearestLine(lines, 1.5, scale, 0.9)).toBe("low"); // the other one has a gap
  expect(nearestLine(lines, 7, scale, 0.9)).toBeNull();
  expect(interpolate(line([0, 10]), 0.25)).toBe(2.5);
});

test("a legend is sorted by value, with what has none at the end", () => {
  const member = (id: string): Member => ({ id, label: id, runs: [id], isGroup: false, colour: "" });
  const values: Record<string, number | string | null> = { a: 2, b: null, c: 1, "d e": "NaN" };
  const rows = (search: string, isDescending: boolean): string[] =>
    legendRows(
      Object.keys(values).map(member),
      ({ id }) => (values[id] ?? null) as number | null,
      () => true,
      search,
      isDescending,
    ).map(({ member }) => member.id);
  expect(rows("", false)).toEqual(["c", "a", "b", "d e"]);
  expect(rows("", true).slice(0, 2)).toEqual(["a", "c"]);
  expect(rows("E d", false)).toEqual(["d e"]);
});

test("groups keep only chosen runs, and labels only what tells them apart", () => {
  const group = (key: (number | string)[], runs: string[]) => ({ key, runs, cells: [] });
  const page = {
    by: ["config.lr", "config.data"],
    columns: [],
    groups: [group([0.1, "c4"], ["a", "x"]), group([0.01, "c4"], ["b", "c"]), group([0.5, "pile"], ["y"])],
    problems: [],
    indexed: 1,
  };
  expect(groupsOf(page, ["a", "b", "c", "new"])).toEqual([
    { label: "lr=0.01", runs: ["b", "c"] },
    { label: "lr=0.1", runs: ["a"] },
    { label: "new", runs: ["new"] },
  ]);
});

test("every run has a colour of its own, stable and valid in SVG", () => {
  const palette = Array.from({ length: 12 }, (_, index) => `#00000${index.toString(16)}`);
  for (const isDark of [false, true]) {
    const colours = Array.from({ length: 300 }, (_, index) => memberColour(index, palette, isDark));
    expect(new Set(colours).size).toBeGreaterThan(290);
    for (const each of colours) expect(each).toMatch(/^#[0-9a-f]{6}$/);
  }
});

test("the value of a run is that of its last attempt, never smoothed", () => {
  const part = (attempt: number, x: number[], y: number[]) => ({
    stream: "step",
    attempt,
    x,
    y,
    mean_x: [],
    mean_y: [],
    mean_count: [],
    num_points: x.length,
  });
  const range = (from: number): number[] => Array.from({ length: 30 }, (_, index) => from + index);
  const falling = (from: number): number[] => range(from).map((x) => 100 - x);
  const first = part(0, range(0), falling(0));
  const second = part(1, range(20), falling(200));
  const series = { name: "loss", last: 4, marks: [], lines: [first, second], reason: null, num_unplaced: 0 };
  const lines = buildChartLines("loss", ["a"], { a: series }, 0.9);
  expect(valueOf(lines, "a", 25)).toBe(100 - 205);
  expect(valueOf(lines, "a", 5)).toBe(95);
  expect(valueOf(lines, "b", 0)).toBeNull();
});

test("arrow keys move the cursor along the axis and from line to line", () => {
  const scale = { low: 0, high: 10, isLog: false };
  const lines = [
    { id: "high", points: flat(5, 11) },
    { id: "low", points: flat(1, 11) },
  ];
  const at = { metric: "loss", axis: "step" as const };
  const right = moveCursor(noCursor, at, lines, scale, "ArrowRight", true);
  expect(right).toEqual({ ...at, x: 6, id: "low" });
  const up = moveCursor(right ?? noCursor, at, lines, scale, "ArrowUp", false);
  expect(up).toEqual({ ...at, x: 6, id: "high" });
  expect(moveCursor(up ?? noCursor, at, lines, scale, "ArrowUp", false)?.id).toBe("high");
  expect(moveCursor({ ...noCursor, x: 0 }, at, lines, scale, "ArrowLeft", false)?.x).toBe(0);
  expect(moveCursor(noCursor, at, lines, scale, "a", false)).toBeNull();
});

test("groups are asked for whole, in as few requests as possible", () => {
  const group = (name: string, size: number) => ({ runs: Array.from({ length: size }, (_, index) => name + index) });
  const packs = packRuns([group("a", 2), group("b", 2), group("c", 3), group("d", 9)], 4);
  expect(packs.map((runs) => runs.length)).toEqual([4, 3, 4]);
  expect(packs[0]).toEqual(["a0", "a1", "b0", "b1"]);
});

test("a line that goes back is measured along its path", () => {
  const loop = { id: "loop", points: { x: [0, 10, 2, 8], y: [0, 10, 4, 1] } };
  expect(extentOf([loop.points], false)).toEqual([0, 10]);
  expect(extentOf([loop.points], true)).toEqual([2, 10]);
  const scale = { low: 0, high: 10, isLog: false };
  const other = { id: "other", points: line([2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]) };
  expect(nearestLine([loop, other], 5, scale, 0.7)).toBe("loop"); // one of its three heights there
  expect(nearestLine([loop, other], 5, scale, 0.2)).toBe("other");
  expect(interpolate(loop.points, 5)).toBe(2.5); // the latest one
  expect(interpolate(loop.points, 11)).toBeNull();
  expect(nearestPoint(loop.points, 7.9)).toEqual({ x: 8, y: 1 });
  expect(nearestPoint(loop.points, 11)).toBeNull();
});

test("a chart has the common range unless its points take a small part of it", () => {
  expect(rangeOfChart([0, 1000], [0, 600])).toEqual([0, 1000]);
  expect(rangeOfChart([0, 1000], [100, 200])).toEqual([100, 200]);
  expect(rangeOfChart([0, 1000], [700, 700])).toEqual([0, 1000]);
  expect([rangeOfChart([null, 1000], [1, 2]), rangeOfChart([0, 1], null)]).toEqual([
    [null, 1000],
    [0, 1],
  ]);
});
