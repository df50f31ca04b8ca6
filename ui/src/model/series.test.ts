import { expect, test } from "vitest";
import type { Line, SeriesView } from "../api";
import { align, merge, nearestPoint, smooth } from "./series";

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
const series = (...lines: Line[]): SeriesView => ({ name: "loss", last: 0, lines, marks: [] });

test("smoothing is a moving average without bias towards 0", () => {
  expect(smooth(line([0, 1, 2], [4, 4, 4]), 0.9).y).toEqual([4, 4, 4].map((value) => expect.closeTo(value)));
  const [first, second] = smooth(line([0, 1], [0, 1]), 0.5).y;
  expect(first).toBe(0);
  expect(second).toBeCloseTo(2 / 3);
  expect(smooth(line([0, 1, 2], [1, null, 3]), 0.5).y[1]).toBeNull();
});

test("the mean of a bucket counts once per point", () => {
  const each = smooth(line([0, 1, 2, 3], [1, 1, 5, 5]), 0.8).y.at(-1) as number;
  const means = smooth(line([], [], { mean_x: [0.5, 2.5], mean_y: [1, 5], mean_count: [2, 2] }), 0.8);
  expect(means.x).toEqual([0.5, 2.5]);
  expect(means.y.at(-1)).toBeCloseTo(each);
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

test("aligning lines keeps every point, even at repeated x", () => {
  const [places, first, second] = align([
    { x: [0, 1, 1, 1, 3], y: [5, 6, 9, null, 7] },
    { x: [1, 2], y: [8, 4] },
  ]);
  expect(places).toEqual([0, 1, 1, 1, 2, 3]);
  expect(Array.from(first ?? [])).toEqual([5, 6, 9, null, undefined, 7]);
  expect(Array.from(second ?? [])).toEqual([undefined, 8, undefined, undefined, 4, undefined]);
  expect(align([])).toEqual([[]]);
});
