import { expect, test } from "vitest";
import type { Line, SeriesView } from "../api";
import { defaultWeight, merge, nearestPoint, smooth } from "./series";

const line = (x: number[], y: (number | null)[], more: Partial<Line> = {}): Line => ({
  stream: "step",
  attempt: 0,
  x,
  y,
  mean_x: [],
  mean_y: [],
  mean_count: [],
  num_points: x.length,
  ...more,
});
const series = (...lines: Line[]): SeriesView => ({
  name: "loss",
  last: 0,
  lines,
  marks: [],
  reason: null,
  num_unplaced: 0,
});

const steps = (count: number): number[] => Array.from({ length: count }, (_, index) => index);

test("a straight line stays where it is, at any weight and spacing", () => {
  for (const weight of [0.3, 0.9, 0.999, defaultWeight(300)]) {
    const x = steps(300).map((step) => 1.7e9 + step ** 1.3);
    const y = x.map((at) => 3 - 0.02 * (at - 1.7e9));
    const found = smooth(line(x, y), weight).y as number[];
    expect(Math.max(...found.map((value, index) => Math.abs(value - (y[index] as number))))).toBeLessThan(1e-3);
  }
  expect(smooth(line([0, 1, 2], [4, 4, 4]), 0.9).y).toEqual([4, 4, 4].map((value) => expect.closeTo(value)));
});

test("smoothing removes noise and keeps gaps", () => {
  const noise = steps(2000).map((step) => Math.sin(step * 12.9898) * 43758.5453);
  const y = noise.map((value) => value - Math.floor(value));
  const found = smooth(line(steps(2000), y), defaultWeight(2000)).y as number[];
  const spread = (values: number[]): number => Math.max(...values) - Math.min(...values);
  expect(spread(found.slice(200, -200))).toBeLessThan(spread(y) / 3);
  expect(smooth(line([0, 1, 2], [1, null, 3]), 0.5).y[1]).toBeNull();
});

test("smoothed values stay inside the values of their neighbours", () => {
  const quiet = (step: number): number => 0.1 + 0.001 * (step % 7);
  const cases = {
    "slow first step": steps(400).map((step) => (step === 0 ? 30 : quiet(step))),
    "slow last step": steps(400).map((step) => (step === 399 ? 30 : quiet(step))),
    "two spikes": steps(400).map((step) => (step === 3 || step === 200 ? 50 : quiet(step))),
    "falls to a plateau": steps(400).map((step) => (step < 10 ? 40 - 4 * step : quiet(step))),
    "gaps beside a spike": steps(400).map((step) => (step === 1 ? 30 : step % 5 === 2 ? null : quiet(step))),
  };
  for (const [title, y] of Object.entries(cases))
    for (const weight of [0, 0.2, 0.9, 0.999, defaultWeight(400)]) {
      const reach = weight > 0 ? Math.ceil(Math.log(0.01) / Math.log(weight)) : 0;
      smooth(line(steps(400), y), weight).y.forEach((value, step) => {
        if (value === null) return;
        const near = y.slice(Math.max(0, step - reach), step + reach + 1).filter((each) => each !== null);
        expect(value, `${title}, ${weight}, ${step}`).toBeGreaterThanOrEqual(Math.min(...near));
        expect(value, `${title}, ${weight}, ${step}`).toBeLessThanOrEqual(Math.max(...near));
      });
    }
  // Means of buckets, of which the first has the spike.
  const means = {
    mean_x: steps(100),
    mean_y: steps(100).map((at) => (at ? 0.1 : 6)),
    mean_count: steps(100).map(() => 5),
  };
  const smoothed = smooth(line([], [], means), defaultWeight(500)).y as number[];
  expect(Math.min(...smoothed)).toBeCloseTo(0.1);
});

test("the default smooths over the same share of the points at any number", () => {
  const reach = (count: number): number => -1 / Math.log(defaultWeight(count)) / count;
  expect(reach(300)).toBeCloseTo(reach(1e6));
  expect(defaultWeight(100)).toBeLessThan(0.5);
});

test("means of buckets are smoothed like their points", () => {
  const values = steps(400).map((step) => Math.sin(step / 40));
  const each = smooth(line(steps(400), values), 0.95).y as number[];
  const halves = steps(200);
  const means = smooth(
    line([], [], {
      mean_x: halves.map((half) => 2 * half + 0.5),
      mean_y: halves.map((half) => ((values[2 * half] as number) + (values[2 * half + 1] as number)) / 2),
      mean_count: halves.map(() => 2),
    }),
    0.95,
  );
  expect(means.x[100]).toBe(200.5);
  for (const half of [0, 50, 100, 199])
    expect(means.y[half]).toBeCloseTo(((each[2 * half] as number) + (each[2 * half + 1] as number)) / 2, 1);
});

test("new points are appended to their line", () => {
  const merged = merge(series(line([0, 1], [1, 2])), {
    ...series(line([2], [3]), line([0], [9], { attempt: 1 })),
    marks: [{ x: 2, kind: "NaN", count: 1 }],
  });
  expect(merged.lines.map((each) => [each.attempt, each.x, each.y])).toEqual([
    [0, [0, 1, 2], [1, 2, 3]],
    [1, [0], [9]],
  ]);
  expect(merged.lines[0]?.num_points).toBe(3);
  expect(merged.marks).toHaveLength(1);
});

test("points appended to means count once, and gaps do not", () => {
  const merged = merge(
    series(line([0, 9], [1, 2], { mean_x: [4], mean_y: [1.5], mean_count: [10], num_points: 10 })),
    series(line([10, 11, 12], [3, null, 4])),
  );
  expect(merged.lines[0]).toMatchObject({ mean_x: [4, 10, 12], mean_y: [1.5, 3, 4], mean_count: [10, 1, 1] });
});

test("late points are sorted into the line", () => {
  expect(merge(series(line([0, 5], [1, 2])), series(line([3], [9]))).lines[0]).toMatchObject({
    x: [0, 3, 5],
    y: [1, 9, 2],
  });
});

test("merging does not modify its input", () => {
  const known = series(line([0], [1]));
  merge(known, series(line([1], [2])));
  expect(known).toEqual(series(line([0], [1])));
});

test("a smoothed line of means has gaps at non-finite values", () => {
  const means = line([], [], { mean_x: [0, 10, 20], mean_y: [1, 1, 1], mean_count: [9, 9, 9] });
  const broken = smooth(means, 0.5, [{ x: 12, kind: "NaN", count: 3 }]);
  expect(broken.x).toEqual([0, 10, 12, 20]);
  expect(broken.y[2]).toBeNull();
});

test("the nearest point is null past the ends and in gaps", () => {
  const points = { x: [0, 10, 20, 30], y: [1, 2, null, 4] };
  expect([4, 6, 29].map((x) => nearestPoint(points, x)?.y)).toEqual([1, 2, 4]);
  expect(nearestPoint(points, 19)).toBeNull();
  expect(nearestPoint(points, 500)).toBeNull();
  expect(nearestPoint({ x: [], y: [] }, 1)).toBeNull();
});
