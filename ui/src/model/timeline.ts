/**
 * The layout of the timeline: in which lane each span lies, which spans a view shows, and what is under the pointer.
 * Times are Unix seconds.
 *
 * `layout` runs once per response and assigns lanes; `visible` runs on every frame. Items are kept in typed arrays, sorted
 * by lane and start, so that a frame finds its items by binary search and touches nothing outside the view. Spans
 * narrower than a pixel are merged into blocks on the fly; the server merges them into heaps beforehand where a
 * run has more spans than it sends.
 */

import type { SpanCluster, SpanView } from "../api";
import { colourIndex } from "./palette";
import { minRangeSeconds, type TimeRange } from "./time-range";

/** In ascending importance: merged spans show the most important status. */
export const statuses = ["ok", "left", "open", "left_open", "died", "error"] as const;

/** Items are spans followed by heaps: an index beyond the last span is a heap. */
export interface Layout {
  readonly spans: SpanView;
  readonly numLanes: number;
  readonly lane: Uint32Array;
  readonly start: Float64Array;
  /** Infinity for an open span. */
  readonly end: Float64Array;
  readonly colour: Uint8Array;
  /** Index into `statuses`. */
  readonly status: Uint8Array;
  /** Spans sorted by lane and start; lane `i` is `firstSpan[i]` up to `firstSpan[i + 1]`. */
  readonly spanOrder: Uint32Array;
  readonly firstSpan: Uint32Array;
  readonly heapOrder: Uint32Array;
  readonly firstHeap: Uint32Array;
  readonly maxHeapLengthSeconds: number;
}

/** Something to draw: an item, or a block of items that are too narrow to be visible. */
export interface Piece {
  lane: number;
  /** The longest item in it. */
  item: number;
  start: number;
  end: number;
  count: number;
  total_s: number;
  status: number;
}

export type Target = { kind: "span"; index: number } | { kind: "heap"; heap: SpanCluster };

/** A double resolves Unix time to 0.24 µs, so adjacent spans can seem to overlap slightly. */
const roundingSeconds = 1e-6;

// Lanes --------------------------------------------------------------------------------------------------------------

/**
 * Assign each span a lane: children below their parents, and no overlaps within a lane.
 *
 * The lane of a span is its depth, so that it does not move when the view changes. Where several spans of one depth
 * overlap, one of them keeps that lane; the others move, with their children, into lanes below the deepest one.
 */
export function layout(spans: SpanView): Layout {
  const numSpans = spans.start.length;
  const numItems = numSpans + spans.heaps.length;
  const start = new Float64Array(numItems);
  const end = new Float64Array(numItems);
  const colour = new Uint8Array(numItems);
  const status = new Uint8Array(numItems);
  const colours = spans.names.map(colourIndex);
  for (let i = 0; i < numSpans; i++) {
    const duration_s = spans.duration_s[i] ?? Infinity;
    start[i] = spans.start[i]!;
    end[i] = start[i]! + Math.max(0, duration_s);
    colour[i] = colours[spans.name[i]!] ?? 0;
    status[i] = Math.max(0, statuses.indexOf(spans.status[i] as (typeof statuses)[number]));
  }
  let maxHeapLengthSeconds = 0;
  spans.heaps.forEach((heap, i) => {
    start[numSpans + i] = heap.start;
    end[numSpans + i] = heap.end;
    colour[numSpans + i] = colourIndex(heap.name);
    maxHeapLengthSeconds = Math.max(maxHeapLengthSeconds, heap.end - heap.start);
  });
  const { lane, order } = assignLanes(spans, start, end);
  const heaps = spans.heaps.map((_, i) => numSpans + i).sort((a, b) => start[a]! - start[b]!);
  for (const item of heaps) lane[item] = spans.heaps[item - numSpans]!.depth;
  const numLanes = numItems === 0 ? 0 : maxOf(lane) + 1;
  const [spanOrder, firstSpan] = sortByLane(order, lane, numLanes);
  const [heapOrder, firstHeap] = sortByLane(heaps, lane, numLanes);
  return {
    spans,
    numLanes,
    lane,
    start,
    end,
    colour,
    status,
    spanOrder,
    firstSpan,
    heapOrder,
    firstHeap,
    maxHeapLengthSeconds,
  };
}

type SpanTree = { parent: Int32Array; level: Uint32Array; from: Float64Array };

function assignLanes(
  spans: SpanView,
  start: Float64Array,
  end: Float64Array,
): { lane: Uint32Array; order: Uint32Array } {
  const tree = resolveParents(spans, start);
  const { parent, level, from } = tree;
  // Spans arrive nearly sorted by start, which makes this sort cheap; the one by level is a counting sort.
  const byStart = new Array<number>(parent.length);
  for (let span = 0; span < parent.length; span++) byStart[span] = span;
  byStart.sort((a, b) => start[a]! - start[b]! || a - b);
  const ordered = sortByLane(byStart, level, maxOf(level) + 1)[0];
  const keeps = chooseKeepers(spans, tree, ordered, end);
  const lane = new Uint32Array(start.length);
  let base = spans.heaps.reduce((most, heap) => Math.max(most, heap.depth + 1), 0);
  for (const span of ordered) if (keeps[span]) base = Math.max(base, (lane[span] = level[span]!) + 1);
  const order = new Uint32Array(ordered.length);
  const others: number[] = [];
  let numKept = 0;
  for (const span of ordered) {
    if (keeps[span]) order[numKept++] = span;
    else others.push(span);
  }
  others.sort((a, b) => from[a]! - from[b]! || level[a]! - level[b]! || a - b);
  const pool = new LanePool(others.length);
  for (const span of others) {
    const around = parent[span]!;
    const minLane = around >= 0 && !keeps[around] ? lane[around]! + 1 - base : 0;
    lane[span] = base + pool.assign(minLane, start[span]!, end[span]!);
  }
  order.set(others, numKept);
  return { lane, order };
}

function maxOf(values: Uint32Array): number {
  let most = 0;
  for (let i = 0; i < values.length; i++) if (values[i]! > most) most = values[i]!;
  return most;
}

/** Parents without cycles, the depth of each span, and the earliest time it can be placed: not before its parent. */
function resolveParents(spans: SpanView, start: Float64Array): SpanTree {
  const numSpans = spans.start.length;
  const parent = new Int32Array(numSpans).fill(-1);
  const level = new Uint32Array(numSpans);
  const from = start.slice(0, numSpans);
  const isDone = new Uint8Array(numSpans);
  const isOnPath = new Uint8Array(numSpans);
  const path: number[] = [];
  for (let first = 0; first < numSpans; first++) {
    for (let span = first; !isDone[span]; span = parent[span]!) {
      path.push(span);
      isOnPath[span] = 1;
      const around = spans.parent[span] ?? -1;
      if (!(around >= 0 && around < numSpans) || isOnPath[around]) break;
      parent[span] = around;
    }
    for (let span = path.pop(); span !== undefined; span = path.pop()) {
      const around = parent[span]!;
      level[span] = Math.max(spans.depth[span] ?? 0, around < 0 ? 0 : level[around]! + 1);
      if (around >= 0) from[span] = Math.max(from[span]!, from[around]!);
      isDone[span] = 1;
      isOnPath[span] = 0;
    }
  }
  return { parent, level, from };
}

/** Which spans keep the lane of their depth: of overlapping spans, the one whose name has the highest weight. */
function chooseKeepers(spans: SpanView, tree: SpanTree, ordered: Uint32Array, end: Float64Array): Uint8Array {
  const { parent, level } = tree;
  const keeps = new Uint8Array(ordered.length);
  const weights = nameWeights(spans, parent);
  const weight = (span: number): number => weights[spans.name[span]!] ?? 0;
  let last = -1;
  for (const span of ordered) {
    const around = parent[span]!;
    if (around >= 0 && !keeps[around]) continue;
    if (last >= 0 && level[last] === level[span] && end[last]! > spans.start[span]! + roundingSeconds) {
      const difference = weight(span) - weight(last);
      if (difference < 0 || (difference === 0 && end[span]! >= end[last]!)) continue;
      keeps[last] = 0;
    }
    keeps[span] = 1;
    last = span;
  }
  return keeps;
}

/** The weight of each name: its spans and their children, times their duration. Rare or short spans weigh little. */
function nameWeights(spans: SpanView, parent: Int32Array): number[] {
  const counts = spans.names.map(() => 0);
  const totalsSeconds = spans.names.map(() => 0);
  for (let span = 0; span < parent.length; span++) {
    counts[spans.name[span]!]! += 1;
    totalsSeconds[spans.name[span]!]! += spans.duration_s[span] ?? 0;
    if (parent[span]! >= 0) counts[spans.name[parent[span]!]!]! += 1;
  }
  return counts.map((count, name) => count * totalsSeconds[name]!);
}

/** Lanes and the time from which each is free, as a tournament tree: the first free lane is found in O(log n). */
class LanePool {
  readonly #size: number;
  readonly #freeFrom: Float64Array;

  constructor(maxLanes: number) {
    this.#size = 2 ** Math.ceil(Math.log2(maxLanes + 1));
    this.#freeFrom = new Float64Array(2 * this.#size).fill(-Infinity);
  }

  assign(minLane: number, start: number, end: number): number {
    const free = this.#freeFrom;
    const latest = start + roundingSeconds;
    let node = this.#size + minLane;
    while (free[node]! > latest) {
      while (node & 1) node >>= 1;
      node += 1;
    }
    while (node < this.#size) node = free[2 * node]! <= latest ? 2 * node : 2 * node + 1;
    const lane = node - this.#size;
    free[node] = end;
    for (node >>= 1; node > 0; node >>= 1) free[node] = Math.min(free[2 * node]!, free[2 * node + 1]!);
    return lane;
  }
}

/** Counting sort by lane, stable within each lane. Also returns where each lane begins. */
function sortByLane(items: ArrayLike<number>, lane: Uint32Array, numLanes: number): [Uint32Array, Uint32Array] {
  const first = new Uint32Array(numLanes + 1);
  for (let i = 0; i < items.length; i++) first[lane[items[i]!]! + 1]! += 1;
  for (let i = 0; i < numLanes; i++) first[i + 1]! += first[i]!;
  const next = first.slice();
  const sorted = new Uint32Array(items.length);
  for (let i = 0; i < items.length; i++) sorted[next[lane[items[i]!]!]!++] = items[i]!;
  return [sorted, first];
}

// Visible items ---------------------------------------------------------------------------------------------------

/**
 * Yield the pieces to draw, lane by lane, heaps before the spans on top of them.
 *
 * Items narrower than 1.5 pixels are merged into blocks of up to three pixels. Blocks start at fixed times, so that they
 * do not flicker while panning. With 0 pixels nothing is merged.
 */
export function* visible(
  layout: Layout,
  low: number,
  high: number,
  pixels: number,
  now = Infinity,
  lanes: { first: number; last: number } = { first: 0, last: Infinity },
): Generator<Piece> {
  const narrowSeconds = pixels > 0 ? (1.5 * (high - low)) / pixels : 0;
  for (let lane = Math.max(0, lanes.first); lane <= Math.min(lanes.last, layout.numLanes - 1); lane++) {
    const { heapOrder, firstHeap, spanOrder, firstSpan, maxHeapLengthSeconds } = layout;
    const heaps = heapOrder.subarray(firstHeap[lane], firstHeap[lane + 1]);
    yield* mergeNarrow(
      layout,
      heaps,
      firstCandidate(layout, heaps, low - maxHeapLengthSeconds),
      low,
      high,
      narrowSeconds,
      now,
    );
    const spans = spanOrder.subarray(firstSpan[lane], firstSpan[lane + 1]);
    yield* mergeNarrow(layout, spans, firstCandidate(layout, spans, low), low, high, narrowSeconds, now);
  }
}

/** The index of the last item that starts before a time, because it can extend past it. */
function firstCandidate(layout: Layout, items: Uint32Array, time: number): number {
  let from = 0;
  let to = items.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (layout.start[items[middle]!]! < time) from = middle + 1;
    else to = middle;
  }
  return Math.max(0, from - 1);
}

function* mergeNarrow(
  layout: Layout,
  items: Uint32Array,
  first: number,
  low: number,
  high: number,
  narrowSeconds: number,
  now: number,
): Generator<Piece> {
  const step = 2 ** Math.ceil(Math.log2(narrowSeconds));
  let block: Piece | null = null;
  let slot = NaN;
  let longestSeconds = 0;
  for (let i = first; i < items.length && layout.start[items[i]!]! <= high; i++) {
    const item = items[i]!;
    const start = layout.start[item]!;
    const end = endOf(layout, item, now);
    if (end < low) continue;
    const lengthSeconds = end - start;
    const itemSlot = lengthSeconds < narrowSeconds ? Math.floor(start / step) : NaN;
    if (block === null || itemSlot !== slot) {
      if (block !== null) yield block;
      block = { lane: layout.lane[item]!, item, start, end, count: 0, total_s: 0, status: 0 };
      slot = itemSlot;
      longestSeconds = lengthSeconds;
    }
    addToBlock(layout, block, item, end);
    if (lengthSeconds > longestSeconds) {
      longestSeconds = lengthSeconds;
      block.item = item;
    }
  }
  if (block !== null) yield block;
}

function addToBlock(layout: Layout, block: Piece, item: number, end: number): void {
  const { heaps, start } = layout.spans;
  const heap = item < start.length ? undefined : heaps[item - start.length];
  block.end = Math.max(block.end, end);
  block.count += heap === undefined ? 1 : heap.count;
  block.total_s += heap === undefined ? end - layout.start[item]! : heap.total_s;
  block.status = Math.max(block.status, layout.status[item]!);
}

export function endOf(layout: Layout, item: number, now: number): number {
  const end = layout.end[item]!;
  return end === Infinity ? Math.max(layout.start[item]!, now) : end;
}

export function nameOf(layout: Layout, item: number): string {
  const { names, name, heaps, start } = layout.spans;
  return item < start.length ? (names[name[item]!] ?? "") : heaps[item - start.length]!.name;
}

/** The item at a time and lane. With the length of a pixel, blocks count too, and the pointer may miss by two pixels. */
export function hitTest(
  layout: Layout,
  time: number,
  lane: number,
  secondsPerPixel = 0,
  now = Infinity,
): Target | null {
  const reachSeconds = 4 * secondsPerPixel;
  let best: Piece | null = null;
  let bestMissSeconds = 2 * secondsPerPixel;
  const lanes = { first: lane, last: lane };
  for (const piece of visible(
    layout,
    time - reachSeconds,
    time + reachSeconds,
    8 * Math.sign(secondsPerPixel),
    now,
    lanes,
  )) {
    const missSeconds = Math.max(0, piece.start - time, time - piece.end);
    if (missSeconds > bestMissSeconds) continue;
    [best, bestMissSeconds] = [piece, missSeconds];
  }
  return best === null ? null : targetOf(layout, best);
}

export function targetOf(layout: Layout, piece: Piece): Target {
  if (piece.count === 1 && piece.item < layout.spans.start.length) return { kind: "span", index: piece.item };
  const { start, end, count, total_s, lane } = piece;
  return { kind: "heap", heap: { start, end, depth: lane, count, total_s, name: nameOf(layout, piece.item) } };
}

/** From the first start to the last end, or to now with open spans; null without spans. */
export function extent(layout: Layout, now: number): TimeRange | null {
  let [low, high] = [Infinity, -Infinity];
  for (let item = 0; item < layout.start.length; item++) {
    low = Math.min(low, layout.start[item]!);
    high = Math.max(high, endOf(layout, item, now));
  }
  return low <= high ? { low, high: Math.max(high, low + minRangeSeconds) } : null;
}

/** The next span in a range by its start, or the one before; the first one after none. Null if there is no other. */
export function nextSpan(
  layout: Layout,
  index: number | null,
  by: 1 | -1,
  { low, high }: TimeRange,
  now: number,
): number | null {
  const { start, lane } = layout;
  const order = (a: number, b: number): number => start[a]! - start[b]! || lane[a]! - lane[b]! || a - b;
  let next: number | null = null;
  for (let span = 0; span < layout.spans.start.length; span++) {
    if (start[span]! > high || endOf(layout, span, now) < low) continue;
    const isBeyond = index === null || by * order(span, index) > 0;
    if (isBeyond && (next === null || by * order(span, next) < 0)) next = span;
  }
  return next;
}

/** The range of a span, with a margin. */
export function fit(layout: Layout, index: number, now: number): TimeRange {
  const start = layout.start[index]!;
  const end = endOf(layout, index, now);
  const marginSeconds = Math.max((end - start) * 0.05, minRangeSeconds / 2);
  return { low: start - marginSeconds, high: end + marginSeconds };
}
