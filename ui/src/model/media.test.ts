import { expect, test } from "vitest";
import type { MediaRecordView, RecordedHistogram } from "../api";
import {
  allSteps,
  cellItem,
  evenlySpaced,
  fileOf,
  gapsBetween,
  histogramMap,
  indexAt,
  itemsByStep,
  matchesSearch,
  nonFiniteShare,
  parseItem,
  promptsOf,
  ridgeLines,
} from "./media";

const sha256 = "a".repeat(64);
const record = (step: number, ...items: MediaRecordView["items"]): MediaRecordView => ({
  step,
  time: null,
  kind: "image",
  items,
  num_dropped: 0,
  reason: "",
});

test("items are parsed without trust", () => {
  const odd = parseItem(
    { meta: 3, masks: { m: { sha256: "../x" } }, boxes: [null, { x: "1" }], counts: ["x"], caption: {}, curves: [{}] },
    record(1),
    4,
  );
  expect(odd).toMatchObject({ index: 4, promptId: "4", caption: "", masks: [], file: null, meta: [] });
  expect(odd.boxes).toEqual([{ x: 0, y: 0, width: 0, height: 0, label: "", score: null }]);
  expect(fileOf({ sha256, ext: "png" })).toEqual({ sha256, ext: "png" });
  expect(fileOf({ sha256: sha256.toUpperCase() })).toBe(null);
  expect(fileOf({ sha256, ext: "png", kept: false })).toBe(null);
});

test("media in a cell is an item without masks", () => {
  const cell = { media: "audio", sha256, ext: "wav", bytes: 3, masks: { m: { sha256, ext: "png" } } };
  const item = cellItem(cell, "t", 5, "voice of row 1");
  expect(item).toMatchObject({ kind: "audio", step: 5, bytes: 3, masks: [], caption: "voice of row 1" });
  expect(item?.file).toEqual({ sha256, ext: "wav", table: "t" });
  expect(cellItem({ sha256, ext: "png", caption: "a fox" }, null, 5, "x")).toMatchObject({
    kind: "image",
    caption: "a fox",
  });
  for (const odd of [null, "a", 3, {}, { media: "image" }, [cell]]) expect(cellItem(odd, null, 0, "")).toBe(null);
});

test("facts of points are parsed without trust", () => {
  const points = (fields: Record<string, unknown>) => parseItem(fields, { ...record(1), kind: "points" }, 0);
  const facts = {
    num_points: 4,
    sampled_from: 9,
    nonfinite: 2,
    labels: { 1: "car" },
    columns: ["x", "y", "z", "value"],
  };
  expect(points(facts).points).toEqual({ numPoints: 4, sampledFrom: 9, numNonFinite: 2, labels: { 1: "car" } });
  expect(points(facts).table).toBe(null);
  const odd = points({ num_points: "x", sampled_from: {}, nonfinite: null, labels: [1] });
  expect(odd.points).toEqual({ numPoints: 0, sampledFrom: null, numNonFinite: 0, labels: {} });
  expect(parseItem(facts, record(1), 0).points).toBe(null);
});

test("the later record of a step counts, by prompt", () => {
  const steps = itemsByStep([
    record(5, { index: 0, caption: "later" }),
    record(5, { index: 0, caption: "earlier" }, { index: 1, caption: "other" }),
    record(4, { index: 2, meta: { prompt_id: "p" } }),
  ]);
  expect(steps.get(5)?.map((item) => item.caption)).toEqual(["later", "other"]);
  expect(promptsOf([...steps.values()].flat())).toEqual(["0", "1", "p"]);
});

test("items of several records of a step are in the order of their indexes", () => {
  const steps = itemsByStep([2, 1, 0].map((index) => record(5, { index })));
  expect(steps.get(5)?.map((item) => item.index)).toEqual([0, 1, 2]);
});

test("a prompt id is shown if it says more than the index", () => {
  const meta = (prompt_id: number | string) => parseItem({ index: 2, meta: { prompt_id } }, record(1), 0).meta;
  expect(meta(2)).toEqual([]);
  expect(meta("fox")).toEqual([["prompt_id", "fox"]]);
});

test("captions and facts are searched", () => {
  const item = parseItem({ caption: "A red Fox", meta: { seed: 42 } }, record(1), 0);
  expect(["fox", "SEED=42", "", " red "].map((text) => matchesSearch(item, text))).toEqual([true, true, true, true]);
  expect(matchesSearch(item, "wolf")).toBe(false);
  const detections = parseItem({ boxes: [{ label: "Wolf" }] }, record(1), 0);
  expect(["class=wolf", "class=fox"].map((text) => matchesSearch(detections, text))).toEqual([true, false]);
});

test("a step without media has the nearest earlier one", () => {
  const steps = allSteps([{ steps: [10, 30] }, { steps: [20, 30] }], [5]);
  expect(steps).toEqual([5, 10, 20, 30]);
  expect([4, 5, 29, 30, 99].map((step) => indexAt(steps, step))).toEqual([-1, 0, 2, 3, 3]);
  const gaps = [{ step: 12, num_dropped: 2, reason: "" }];
  expect(gapsBetween({ gaps }, 10, 20)).toEqual(gaps);
  expect(gapsBetween({ gaps }, 12, 20)).toEqual([]);
});

const histogram = (edges: number[], counts: number[]): RecordedHistogram => ({
  step: 1,
  time: null,
  edges,
  counts,
  num_values: 0,
  num_not_finite: 0,
  min: null,
  max: null,
  mean: null,
  std: null,
  is_sampled: false,
  is_shard: false,
});

test("histograms become a map; other bins keep their counts", () => {
  const same = histogramMap([histogram([0, 1, 2], [0, 3]), histogram([0, 1, 2], [1, 0])]);
  expect([same.numColumns, same.numRows, same.cells[1]]).toEqual([2, 2, 1]);
  const trimmed = histogramMap([histogram([0, 1, 2, 3, 4], [0, 2, 0, 0]), histogram([0, 1, 2, 3, 4], [0, 0, 1, 0])]);
  expect([trimmed.edges, trimmed.numRows]).toEqual([[1, 2, 3], 2]);
  expect(histogramMap([histogram([0, 1], [0])]).edges).toEqual([0, 1]);
  const other = histogramMap([histogram([0, 4], [8]), histogram([0, 1, 2], [1, 1])]);
  expect(other.edges).toEqual([0, 2, 4]);
  expect(other.cells[0]).toBe(1); // 4 of 8, as in the other row
  expect(other.cells[1]).toBe(1);
  expect(histogramMap([]).numColumns).toBe(0);
  expect(histogramMap([histogram([1, 1], [3])]).cells[0]).toBe(1);
});

test("steps without a finite value have no say in the bins, and all of their share", () => {
  const broken = { ...histogram([], []), num_not_finite: 4 };
  const partly = { ...histogram([4, 6], [6]), num_values: 6, num_not_finite: 2 };
  const map = histogramMap([broken, partly, histogram([0, 1], [0])]);
  expect([map.edges, map.numColumns, [...map.cells]]).toEqual([[4, 6], 3, [0, 1, 0]]);
  expect([broken, partly, histogram([], [])].map(nonFiniteShare)).toEqual([1, 0.25, 0]);
  expect(histogramMap([broken]).numRows).toBe(0);
  expect(ridgeLines([broken, partly], 0, 10, false).ridges.map((ridge) => ridge.heights)).toEqual([[0], [1]]);
});

test("ridges are shares on one scale; logarithmic ones are counts", () => {
  const histograms = [
    [1, 1],
    [30, 10],
    [0, 0],
  ].map((counts, index) => ({
    ...histogram([0, 1, 2], counts),
    step: index * 10,
    num_not_finite: index,
  }));
  const { ridges, edges } = ridgeLines(histograms, 0, 10, false);
  expect(edges).toEqual([0, 1, 2]);
  expect(ridges.map((ridge) => [ridge.step, ridge.hasNonFinite])).toEqual([
    [0, false],
    [10, true],
    [20, true],
  ]);
  expect(ridges[0]?.heights[0]).toBeCloseTo(0.5 / 0.75);
  expect(ridges[1]?.heights).toEqual([1, 0.25 / 0.75]);
  expect(ridges[2]?.heights).toEqual([0, 0]);
  const logarithmic = ridgeLines(histograms, 0, 10, true).ridges;
  expect(logarithmic[1]?.heights[0]).toBe(1);
  expect(logarithmic[0]?.heights[0]).toBeCloseTo(Math.log(2) / Math.log(31));
  expect(ridgeLines([], -1, 10, false)).toEqual({ ridges: [], edges: [] });
});

test("some of many steps are shown, with both ends and the chosen one", () => {
  expect(evenlySpaced(3, 5, 1)).toEqual([0, 1, 2]);
  expect(evenlySpaced(101, 5, 50)).toEqual([0, 25, 50, 75, 100]);
  expect(evenlySpaced(101, 5, 60)).toEqual([0, 25, 60, 75, 100]);
  expect(evenlySpaced(101, 5, 99)).toEqual([0, 25, 50, 99, 100]);
  expect(evenlySpaced(101, 5, -1)).toEqual([0, 25, 50, 75, 100]);
});
