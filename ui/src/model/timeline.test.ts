import { describe, expect, test } from "vitest";
import type { SpanCluster, JournalRecord, SpanView } from "../api";
import { columns, stackOf } from "../parts/timeline-paint";
import { colourIndex } from "./palette";
import { clamp, follow, pan, ticks, timeLabel, zoom } from "./time-range";
import type { Layout, Piece } from "./timeline";
import { extent, fit, hitTest, layout, nameOf, nextSpan, visible } from "./timeline";
import { buildMarks, groupMarks } from "./timeline-marks";

interface Given {
  name?: string;
  start: number;
  /** Null for an open span. */
  length: number | null;
  parent?: number;
  depth?: number;
  status?: string;
}

function spansOf(given: Given[], heaps: SpanCluster[] = []): SpanView {
  const names = [...new Set(given.map((span) => span.name ?? "work"))];
  return {
    names,
    name: given.map((span) => names.indexOf(span.name ?? "work")),
    id: given.map((_, i) => `id${i}`),
    parent: given.map((span) => span.parent ?? -1),
    start: given.map((span) => span.start),
    duration_s: given.map((span) => span.length),
    depth: given.map((span) => span.depth ?? 0),
    status: given.map((span) => span.status ?? (span.length === null ? "open" : "ok")),
    attempt: given.map(() => 0),
    heaps,
    num_spans: given.length,
    num_left_out: 0,
  };
}

const lanes = (given: Given[]): number[] => [...layout(spansOf(given)).lane];
const heapOf = (start: number, end: number, depth: number, count = 3): SpanCluster => ({
  start,
  end,
  depth,
  count,
  total_s: (end - start) / 2,
  name: "data_loading",
});

/** Check the invariants of every layout. */
function expectSound(found: Layout): void {
  const { spans, lane, start, end, spanOrder, firstSpan, numLanes } = found;
  expect(spanOrder.length).toBe(spans.start.length);
  expect(new Set(spanOrder).size).toBe(spans.start.length);
  for (let i = 0; i < numLanes; i++) {
    const there = spanOrder.subarray(firstSpan[i], firstSpan[i + 1]);
    for (let k = 0; k < there.length; k++) {
      if (lane[there[k]!] !== i) throw new Error(`${there[k]} is not in lane ${i}`);
      if (k > 0 && end[there[k - 1]!]! > start[there[k]!]! + 1e-6) throw new Error(`${there[k]} overlaps in lane ${i}`);
      if (k > 0 && start[there[k - 1]!]! > start[there[k]!]!) throw new Error(`lane ${i} is not sorted`);
    }
  }
  spans.parent.forEach((parent, i) => {
    if (parent >= 0 && parent !== i && lane[i]! <= lane[parent]!) throw new Error(`${i} is not below its parent`);
  });
}

/** A seeded random number generator. */
function dice(seed: number): () => number {
  return () => {
    seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
    return seed / 2 ** 32;
  };
}

/**
 * Check that the second task takes at most `limit` times as long: the fastest tries of both, as many as it takes, because
 * the machine may be busy. A task that really takes longer never gets there.
 */
function expectGrowth(first: () => void, second: () => void, limit: number): void {
  const quickestMs = [Infinity, Infinity];
  for (let round = 0; round < 100; round++) {
    [first, second].forEach((task, i) => {
      const before = performance.now();
      task();
      quickestMs[i] = Math.min(quickestMs[i]!, performance.now() - before);
    });
    if (round >= 6 && quickestMs[1]! < limit * quickestMs[0]!) return;
  }
  expect(quickestMs[1]! / quickestMs[0]!).toBeLessThan(limit);
}

/** A realistic job: a loop of iterations with phases, and concurrent checkpoint saves. */
function job(numSpans: number): SpanView {
  const roll = dice(7);
  const given: Given[] = [
    { name: "application", start: 0, length: null },
    { name: "training_loop", start: 1, length: null, parent: 0, depth: 1 },
  ];
  for (let time = 1; given.length < numSpans;) {
    const iteration = given.length;
    given.push({ name: "training_single_iteration", start: time, length: 0, parent: 1, depth: 2 });
    const begin = time;
    for (const name of ["data_loading", "model_forward", "model_backward", "optimizer_update"]) {
      const length = 0.01 + roll() * 0.1;
      given.push({ name, start: time, length, parent: iteration, depth: 3 });
      time += length;
    }
    given[iteration]!.length = time - begin;
    if (roll() < 0.01) given.push({ name: "checkpoint_save_async", start: time, length: 3, parent: 1, depth: 2 });
  }
  return spansOf(given.slice(0, numSpans));
}

describe("lanes", () => {
  test("no spans", () => {
    const found = layout(spansOf([]));
    expect(found.numLanes).toBe(0);
    expect([...visible(found, 0, 1, 100)]).toEqual([]);
    expect(hitTest(found, 0, 0)).toBeNull();
    expect(extent(found, 5)).toBeNull();
  });

  test("one span", () => {
    const found = layout(spansOf([{ start: 5, length: 2 }]));
    expectSound(found);
    expect(found.numLanes).toBe(1);
    expect(extent(found, 0)).toEqual({ low: 5, high: 7 });
  });

  test("children lie below parents, sequential siblings share a lane", () => {
    const given = [
      { start: 0, length: 10 },
      { start: 0, length: 5, parent: 0, depth: 1 },
      { start: 5, length: 5, parent: 0, depth: 1 },
      { start: 6, length: 1, parent: 2, depth: 2 },
    ];
    expect(lanes(given)).toEqual([0, 1, 1, 2]);
  });

  test("overlapping siblings get different lanes", () => {
    const given = [0, 1, 2].map((start) => ({ start, length: 5 }));
    expect(lanes(given)).toEqual([0, 1, 2]);
    expect(lanes([...given, { start: 5.5, length: 1 }])).toEqual([0, 1, 2, 0]);
  });

  test("a concurrent checkpoint does not move iterations", () => {
    const given: Given[] = [{ name: "loop", start: 0, length: 10 }];
    given.push({ name: "checkpoint_save_async", start: 1, length: 4, parent: 0, depth: 1 });
    for (let i = 1; i < 10; i++) {
      given.push({ name: "iteration", start: i, length: 1, parent: 0, depth: 1 });
      given.push({ name: "forward", start: i, length: 0.5, parent: given.length - 1, depth: 2 });
    }
    const found = lanes(given);
    expect(found[1]).toBe(3);
    expect(new Set(found.slice(2))).toEqual(new Set([1, 2]));
  });

  test("the heavier span keeps its lane", () => {
    const given: Given[] = [0, 20, 40].map((start) => ({ name: "checkpoint_save_async", start, length: 10 }));
    given.push({ name: "validation_loop", start: 5, length: 10 });
    for (let i = 0; i < 9; i++) given.push({ name: "batch", start: 5 + i, length: 1, parent: 3, depth: 1 });
    expect(new Set(lanes(given).slice(3))).toEqual(new Set([0, 1]));
    expect(lanes(given)[0]).toBe(2);
  });

  test("children move together with their parent", () => {
    const given = [
      { name: "often", start: 0, length: 5 },
      { name: "often", start: 5, length: 5 },
      { name: "seldom", start: 1, length: 3 },
      { name: "inner", start: 2, length: 1, parent: 2, depth: 1 },
    ];
    expect(lanes(given)).toEqual([0, 0, 1, 2]);
  });

  test("orphans keep the lane of their depth", () => {
    expect(lanes([{ start: 0, length: 1, depth: 3 }])).toEqual([3]);
    expect(lanes([{ start: 0, length: 1, parent: 99 }])).toEqual([0]);
  });

  test("equal starts and zero lengths", () => {
    const found = layout(
      spansOf([
        { start: 1, length: 0 },
        { start: 1, length: 0 },
        { start: 1, length: 2 },
        { start: 1, length: 2 },
        { start: 1, length: 0, parent: 2, depth: 1 },
      ]),
    );
    expectSound(found);
    expect(found.numLanes).toBe(3);
  });

  test("overlap by rounding error does not split a lane", () => {
    const start = 1_700_000_000.1;
    expect(
      lanes([
        { start, length: 0.3 },
        { start: start + 0.3 - 2.4e-7, length: 1 },
      ]),
    ).toEqual([0, 0]);
  });

  test("a parent may be listed or start after its child", () => {
    const listedAfter = [
      { start: 1, length: 1, parent: 1, depth: 1 },
      { start: 0, length: 3 },
    ];
    expect(lanes(listedAfter)).toEqual([1, 0]);
    const beginsAfter = [
      { start: 0, length: 9, parent: 1 },
      { start: 1, length: 1 },
      { start: 1, length: 2 },
    ];
    expectSound(layout(spansOf(beginsAfter)));
  });

  test("cyclic parents are cut", () => {
    expect(lanes([{ start: 0, length: 1, parent: 0 }])).toEqual([0]);
    const found = lanes([1, 2, 0].map((parent, start) => ({ start, length: 9, parent })));
    expect([...found].sort()).toEqual([0, 1, 2]);
  });

  test("open spans do not displace the others", () => {
    const given: Given[] = [{ name: "loop", start: 0, length: null }];
    given.push({ name: "iteration", start: 0, length: null, parent: 0, depth: 1 });
    for (let i = 1; i < 5; i++) given.push({ name: "iteration", start: i, length: 1, parent: 0, depth: 1 });
    expect(lanes(given)).toEqual([0, 2, 1, 1, 1, 1]);
  });

  test("heaps keep their depth, displaced spans lie below", () => {
    const given = [
      { start: 0, length: 5 },
      { start: 1, length: 5 },
    ];
    const found = layout(spansOf(given, [heapOf(0, 1, 2)]));
    expect([...found.lane]).toEqual([0, 3, 2]);
    expect(found.numLanes).toBe(4);
  });

  test("random spans get a valid, deterministic layout", () => {
    const roll = dice(1);
    for (let round = 0; round < 30; round++) {
      const given = Array.from({ length: 200 }, (_, i) => ({
        name: `name${Math.floor(roll() * 5)}`,
        start: Math.floor(roll() * 50),
        length: roll() < 0.05 ? null : Math.floor(roll() * 10),
        parent: Math.floor(roll() * (i + 1)) - 1,
        depth: Math.floor(roll() * 3),
      }));
      const found = layout(spansOf(given));
      expectSound(found);
      expect(layout(spansOf(given)).lane).toEqual(found.lane);
    }
  });

  test("ten times as many spans take about ten times as long", () => {
    const starts = (numSpans: number): number[] => Array.from({ length: numSpans }, (_, start) => start);
    const atOnce = (numSpans: number): SpanView =>
      spansOf(starts(numSpans).map((start) => ({ start, length: numSpans })));
    const nested = (numSpans: number): SpanView =>
      spansOf(starts(numSpans).map((start) => ({ start, length: 2 * (numSpans - start), parent: start - 1 })));
    for (const make of [job, atOnce, nested]) {
      const [few, many] = [make(3_000), make(30_000)];
      // A quadratic layout takes a hundred times as long.
      expectGrowth(
        () => layout(few),
        () => layout(many),
        50,
      );
      expectSound(layout(many));
    }
  });

  test("iterations share a lane, overlapping saves lie below", () => {
    const found = layout(job(50_000));
    const iterations = [...found.lane.keys()].filter((i) => nameOf(found, i) === "training_single_iteration");
    expect(new Set(iterations.map((i) => found.lane[i]))).toEqual(new Set([2]));
    expect(found.numLanes).toBeLessThan(8);
  });
});

describe("visible pieces", () => {
  const twenty = layout(job(20_000));
  const end = extent(twenty, 0)!.high;

  test("there are no more pieces than pixels, and no span is lost", () => {
    const splitMatches = [...visible(twenty, 0, end, 1_000, end)];
    expect(splitMatches.length).toBeLessThan(4_000);
    expect(splitMatches.reduce((total, piece) => total + piece.count, 0)).toBe(20_000);
  });

  test("blocks do not depend on where the view begins", () => {
    const key = (piece: Piece): string => `${piece.lane} ${piece.start} ${piece.end} ${piece.count}`;
    const widthSeconds = end / 4;
    const here = new Set(Array.from(visible(twenty, end / 4, end / 4 + widthSeconds, 1_000, end), key));
    const there = Array.from(visible(twenty, end / 4 + 3.3, end / 4 + 3.3 + widthSeconds, 1_000, end));
    const inBoth = there.filter((piece) => piece.start > end / 4 + 5 && piece.end < end / 2 - 2);
    expect(inBoth.length).toBeGreaterThan(500);
    expect(inBoth.filter((piece) => !here.has(key(piece)))).toEqual([]);
  });

  test("a close view returns individual spans", () => {
    const splitMatches = [...visible(twenty, 100, 101, 1_000, end)];
    expect(splitMatches.every((piece) => piece.count === 1)).toBe(true);
    const { start, end: ends } = twenty;
    const expected = [...start.keys()].filter((i) => start[i]! <= 101 && ends[i]! >= 100);
    expect(splitMatches.map((piece) => piece.item).sort((a, b) => a - b)).toEqual(expected);
  });

  test("a block has the longest name, total time and worst status", () => {
    const found = layout(
      spansOf([
        { name: "short", start: 0, length: 0.1 },
        { name: "long", start: 0.2, length: 0.3, status: "error" },
        { name: "short", start: 0.6, length: 0.1 },
        { name: "short", start: 900, length: 100 },
      ]),
    );
    const [block] = [...visible(found, 0, 1_000, 1_000)];
    expect(nameOf(found, block!.item)).toBe("long");
    expect(block).toMatchObject({ lane: 0, start: 0, count: 3, status: 5 });
    expect(block!.end).toBeCloseTo(0.7);
    expect(block!.total_s).toBeCloseTo(0.5);
  });

  test("open spans end now, but never before they start", () => {
    const found = layout(spansOf([{ start: 5, length: null }]));
    expect([...visible(found, 0, 10, 100, 8)]).toMatchObject([{ start: 5, end: 8 }]);
    expect([...visible(found, 0, 10, 100, 2)]).toMatchObject([{ start: 5, end: 5 }]);
    expect(extent(found, 9)).toEqual({ low: 5, high: 9 });
  });

  test("heaps come before the spans of their lane", () => {
    const found = layout(spansOf([{ start: 50, length: 10 }], [heapOf(0, 60, 0, 9), heapOf(10, 12, 0)]));
    const splitMatches = [...visible(found, 40, 70, 100)];
    expect(splitMatches.map((piece) => [piece.item, piece.count])).toEqual([
      [1, 9],
      [0, 1],
    ]);
  });

  test("hit tests find spans and heaps", () => {
    const found = layout(
      spansOf(
        [
          { start: 0, length: 10 },
          { start: 20, length: null },
        ],
        [heapOf(12, 15, 0, 4)],
      ),
    );
    expect(hitTest(found, 5, 0)).toEqual({ kind: "span", index: 0 });
    expect(hitTest(found, 25, 0)).toEqual({ kind: "span", index: 1 });
    expect(hitTest(found, 25, 0, 0, 22)).toBeNull();
    expect(hitTest(found, 13, 0)).toMatchObject({ kind: "heap", heap: { count: 4, name: "data_loading" } });
    expect(hitTest(found, 11, 0)).toBeNull();
    expect(hitTest(found, 11.4, 0, 0.5)).toMatchObject({ kind: "heap" });
    expect(hitTest(found, 5, 1)).toBeNull();
    expect(hitTest(found, -1, 0)).toBeNull();
  });

  test("from afar, a hit test finds the drawn block", () => {
    const secondsPerPixel = end / 1_000;
    const block = [...visible(twenty, 0, end, 1_000, end)].find((piece) => piece.lane === 3 && piece.start > end / 3)!;
    const found = hitTest(twenty, (block.start + block.end) / 2, 3, secondsPerPixel, end);
    expect(found).toMatchObject({ kind: "heap", heap: { start: block.start, end: block.end, count: block.count } });
  });

  test("visible pieces of ten times as many spans take about ten times as long", () => {
    const look = (spans: Layout) => (): void => {
      const high = extent(spans, 0)!.high;
      for (const piece of visible(spans, 0, high, 1_500, high)) if (piece.count < 1) throw new Error("an empty piece");
    };
    expectGrowth(look(layout(job(5_000))), look(layout(job(50_000))), 50);
  });
});

describe("time ranges", () => {
  const view = { low: 100, high: 200 };

  test("zooming keeps the position of a time", () => {
    expect(zoom(view, 2, 150)).toEqual({ low: 125, high: 175 });
    expect(zoom(view, 0.5, 100)).toEqual({ low: 100, high: 300 });
    const closest = zoom(view, 1e12, 125);
    expect(closest.high - closest.low).toBeCloseTo(1e-5, 9);
  });

  test("pan moves and clamp limits a range", () => {
    expect(pan(view, -10)).toEqual({ low: 90, high: 190 });
    expect(clamp(pan(view, 500), { low: 0, high: 250 })).toEqual({ low: 150, high: 250 });
    expect(clamp(pan(view, -500), { low: 0, high: 250 })).toEqual({ low: 0, high: 100 });
    expect(clamp({ low: -1e9, high: 1e9 }, view)).toEqual(view);
    expect(clamp(view, { low: 7, high: 7 }).low).toBe(7);
  });

  test("fit shows a span with a margin, even an empty one", () => {
    const given = [
      { start: 10, length: 100 },
      { start: 500, length: 0 },
      { start: 600, length: null },
    ];
    const found = layout(spansOf(given));
    expect(fit(found, 0, 0)).toEqual({ low: 5, high: 115 });
    const narrow = fit(found, 1, 0);
    expect(narrow.low).toBeLessThan(500);
    expect(narrow.high).toBeGreaterThan(500);
    expect(fit(found, 2, 700)).toEqual({ low: 595, high: 705 });
  });

  test("follow keeps the end, everything, or the position", () => {
    const [before, after] = [
      { low: 0, high: 200 },
      { low: 0, high: 220 },
    ];
    expect(follow(view, before, after)).toEqual({ low: 120, high: 220 });
    expect(follow(before, before, after)).toEqual(after);
    expect(follow({ low: 50, high: 150 }, before, after)).toEqual({ low: 50, high: 150 });
  });
});

describe("the axis", () => {
  test.each([
    [0, 1, "0 s"],
    [90, 30, "1 min 30 s"],
    [60, 30, "1 min 00 s"],
    [7_500, 300, "2 h 05 min"],
    [7_200, 3_600, "2 h"],
    [0.0125, 0.0005, "12.5 ms"],
    [0.013, 0.0005, "13 ms"],
    [0.00025, 0.00005, "250 µs"],
    [1.5, 0.5, "1.5 s"],
    [61.00002, 0.00001, "1 min 01.00002 s"],
    [86_400, 43_200, "1 d 00 h"],
    [86_400 * 2, 86_400, "2 d"],
    [86_400 + 60, 60, "1 d 00 h 01 min"],
    [0.1 * 3, 0.1, "300 ms"],
    [-5, 1, "−5 s"],
  ])("%f s in steps of %f s is %s", (seconds, step, label) => {
    expect(timeLabel(seconds, step)).toBe(label);
  });

  test("ticks are round, and labels fit and differ", () => {
    const origin = 1_700_000_000;
    for (let lengthSeconds = 2e-5; lengthSeconds < 1e8; lengthSeconds *= 1.7) {
      for (const offset of [0, 12_345]) {
        const found = ticks({ low: origin + offset, high: origin + offset + lengthSeconds }, 1_000, origin);
        expect(found.length).toBeGreaterThan(1);
        expect(found.length).toBeLessThan(30);
        expect(new Set(found.map((tick) => tick.label)).size).toBe(found.length);
      }
    }
  });

  test("there are no ticks without room", () => {
    expect(ticks({ low: 0, high: 0 }, 100)).toEqual([]);
    expect(ticks({ low: 0, high: 10 }, 0)).toEqual([]);
  });
});

describe("colours", () => {
  test("colours are stable and differ between phases", () => {
    const names = ["data_loading", "model_forward", "model_backward", "optimizer_update", "checkpoint_save_async"];
    expect(new Set(names.map(colourIndex)).size).toBe(names.length);
    expect(colourIndex("model_forward")).toBe(colourIndex("forward"));
    for (const name of ["", "constructor", "__proto__", "Übung", "a".repeat(10_000)]) {
      expect(colourIndex(name)).toBe(colourIndex(name));
      expect([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]).toContain(colourIndex(name));
    }
    expect(new Set(Array.from({ length: 200 }, (_, i) => colourIndex(`name${i}`))).size).toBe(12);
  });
});

describe("marks", () => {
  const record = (event: string, time: number, fields: object = {}): JournalRecord => ({ event, time, ...fields });

  test("marks are sorted by time and labelled", () => {
    const found = buildMarks([
      record("error", 9, { error_type: "ValueError", error_message: "bad\n<b>loss</b>" }),
      record("checkpoint", 1, { global_step: 500, is_best: true }),
      record("validation", 2, { global_step: 500, val_loss: 0.123456 }),
      record("control_change", 3, { name: "log_every", old: 10, new: 50 }),
      record("alert", 4, { severity: "warning", message: "loss spike", global_step: 7 }),
      record("alert", 4.1, { status: "opened", severity: "critical", title: "Spike at step 7: 8.1", global_step: 9 }),
      record("alert", 4.2, { status: "updated", severity: "critical", title: "Spike at step 8: 9.1" }),
      record("alert", 4.3, { status: "resolved", severity: "critical", title: "Spike", global_step: 9 }),
      record("event", 5, { name: "curriculum_switch" }),
      record("event", 7, { name: "save_checkpoint_success" }),
      record("step", 8),
      record("event", NaN, { name: "x" }),
      record("event", 8, { name: { odd: true } }),
    ]);
    expect(found.map((mark) => `${mark.time} ${mark.kind}: ${mark.label}`)).toEqual([
      "1 checkpoint: checkpoint at step 500 (best)",
      "2 validation: validation at step 500: val_loss 0.1235",
      "3 control_change: log_every: 10 → 50",
      "4 alert: warning: loss spike at step 7",
      "4.1 alert: critical: Spike at step 7: 8.1",
      "4.3 alert: resolved: Spike at step 9",
      "5 event: curriculum_switch",
      "7 checkpoint: checkpoint",
      "8 event: event",
      "9 error: ValueError: bad <b>loss</b>",
    ]);
    expect(buildMarks([record("event", 1, { name: "x".repeat(1_000) })])[0]!.label.length).toBe(160);
  });

  test("close marks form a group of the most important kind", () => {
    const found = buildMarks(
      [10, 10.5, 11, 50].map((time, i) => record(i === 1 ? "error" : "event", time, { name: "x" })),
    );
    const groups = groupMarks(found, { low: 0, high: 100 }, 1_000);
    expect(groups.map((group) => [group.time, group.kind, group.marks.length])).toEqual([
      [10, "error", 3],
      [50, "event", 1],
    ]);
    expect(groupMarks(found, { low: 10, high: 11 }, 1_000).length).toBe(3);
    expect(groupMarks(found, { low: 60, high: 99 }, 1_000)).toEqual([]);
    expect(groupMarks([], { low: 0, high: 1 }, 100)).toEqual([]);
  });

  test("groups 100,000 marks quickly", () => {
    const many = Array.from({ length: 100_000 }, (_, i) => ({ time: i / 1e6, kind: "event" as const, label: "" }));
    expect(groupMarks(many, { low: 0, high: 100 }, 1_000)).toHaveLength(1);
  });
});

describe("phase shares", () => {
  test("a sample covers the window since the previous one", () => {
    const stack = stackOf([
      { name: "forward", x: [10, 20, 30], y: [0.5, 0.4, 0.5] },
      { name: "checkpoint", x: [20], y: [0.6] },
    ]);
    expect([...stack.edges]).toEqual([0, 10, 20, 30]);
    expect(columns(stack, { low: 0, high: 30 }, 300)).toEqual([
      { start: 0, end: 10, shares: [0.5, 0] },
      { start: 10, end: 20, shares: [0.4, 0.6] },
      { start: 20, end: 30, shares: [0.5, 0] },
    ]);
  });

  test("unknown windows stay empty, and shares never exceed 1", () => {
    const stack = stackOf([{ name: "forward", x: [10, 50, 60], y: [0.5, null, 3] }]);
    expect(columns(stack, { low: 0, high: 100 }, 500)).toMatchObject([
      { end: 10, shares: [0.5] },
      { start: 50, end: 60, shares: [1] },
    ]);
    expect(columns(stackOf([]), { low: 0, high: 1 }, 100)).toEqual([]);
    expect(columns(stackOf([{ name: "forward", x: [5], y: [1] }]), { low: 0, high: 9 }, 100)).toHaveLength(1);
  });

  test("narrow windows are merged, weighted by duration", () => {
    const ends = Array.from({ length: 10_000 }, (_, i) => (i + 1) / 10 + (i % 2) / 20);
    const stack = stackOf([{ name: "forward", x: ends, y: ends.map((_, i) => i % 2) }]);
    const found = columns(stack, { low: 0, high: 1_000 }, 500);
    expect(found.length).toBeLessThan(300);
    for (const column of found.slice(1, -1)) expect(column.shares[0]).toBeCloseTo(0.75, 1);
  });
});

test("the keyboard goes from span to span by their starts, within the visible range", () => {
  const found = layout(
    spansOf([
      { start: 20, length: 5 },
      { start: 0, length: 100 },
      { start: 10, length: 5, depth: 1 },
      { start: 90, length: null },
    ]),
  );
  const whole = { low: 0, high: 100 };
  const next = (index: number | null, by: 1 | -1, range = whole) => nextSpan(found, index, by, range, 100);
  expect(next(null, 1)).toBe(1);
  expect([next(1, 1), next(2, 1), next(0, 1), next(3, 1)]).toEqual([2, 0, 3, null]);
  expect([next(3, -1), next(1, -1)]).toEqual([0, null]);
  expect(next(null, -1)).toBe(3);
  expect(next(null, 1, { low: 12, high: 15 }), "a span that began before is visible").toBe(1);
  expect(next(2, 1, { low: 12, high: 15 })).toBeNull();
});
