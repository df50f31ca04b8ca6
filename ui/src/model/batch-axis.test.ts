import { expect, test } from "vitest";
import type { DiffPage, Json, OverlayPage } from "../api";
import { batchSizes, compareAmounts, ranksField, sampleRuns } from "./batch-axis";

function pageOf(
  config: Record<string, Json[]>,
  ranks: number[] = [1, 1],
): Pick<DiffPage, "runs" | "config" | "results"> {
  return {
    runs: ranks.map((_, index) => ({ name: `run${index}`, title: "", state: "finished", has_patch: false })),
    config: Object.entries(config).map(([name, values]) => ({ name, values, differs: true, is_ignored: false })),
    results: [{ field: ranksField, direction: 0, best: null, values: ranks }],
  };
}

const overlayOf = (positions: Record<string, number[]>): OverlayPage => ({
  points: 16,
  runs: Object.entries(positions).map(([run, x]) => ({
    run,
    version: "",
    indexed: 1,
    start: 0,
    reason: null,
    series: [
      {
        name: "loss",
        last: 1,
        marks: [],
        num_unplaced: 0,
        reason: null,
        lines: x.length
          ? [{ stream: "", attempt: 0, x, y: x, mean_x: [], mean_y: [], mean_count: [], num_points: x.length }]
          : [],
      },
    ],
  })),
});

test("runs are grouped by how much data a step uses", () => {
  expect(batchSizes(pageOf({ lr: [1, 2], eval_batch_size: [8, 16], "data.val.batch_size": [1, 2] }))).toBeNull();
  const sizes = batchSizes(pageOf({ "train.batch_size": [32, 8, 8], lr: [1, 2, 3] }, [1, 1, 1]));
  expect(sizes?.groups).toEqual([
    { label: "train.batch_size=8", runs: ["run1", "run2"] },
    { label: "train.batch_size=32", runs: ["run0"] },
  ]);
  expect(sampleRuns(sizes as NonNullable<typeof sizes>, 2)).toEqual(["run1", "run0"]);
  for (const key of ["per_device_train_batch_size", "gradient_accumulation_steps", "max_seq_length", "sequence_len"])
    expect(batchSizes(pageOf({ [key]: [1, 2] }))?.isConfigured, key).toBe(true);
  expect(batchSizes(pageOf({}, [1, 8]))).toMatchObject({
    isConfigured: false,
    groups: [{ label: "world_size=1" }, {}],
  });
});

test("the points of a metric tell whether steps are different amounts of data", () => {
  const steps = overlayOf({ a: [1, 100], b: [1, 50], new: [] });
  expect(compareAmounts(steps, overlayOf({ a: [8, 800], b: [32, 1600] }))).toBe("differ");
  expect(compareAmounts(steps, overlayOf({ a: [8, 800], b: [8, 401] }))).toBe("equal");
  expect(compareAmounts(steps, overlayOf({ a: [8, 800], b: [] }))).toBe("missing");
  expect(compareAmounts(overlayOf({ a: [1, 2], b: [] }), overlayOf({ a: [8, 16], b: [] }))).toBe("unknown");
  expect(compareAmounts(overlayOf({ a: [10], b: [10] }), overlayOf({ a: [80], b: [320] }))).toBe("differ");
});
