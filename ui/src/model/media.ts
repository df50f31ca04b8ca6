/** Media of a run: items as recorded, parsed without trust; their order by prompt and step; histograms as a map. */

import type { MediaNameView, MediaRecordView, RecordedHistogram } from "../api";

export interface MediaFile {
  sha256: string;
  ext: string;
  /** The hash of the file of the table that a cell is in, if it has one. */
  table?: string | null;
}

export interface Mask extends MediaFile {
  name: string;
  labels: Record<string, string>;
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
  label: string;
  score: number | null;
}

export interface MediaItem {
  kind: string;
  step: number;
  time: number | null;
  index: number;
  /** Joins the same prompt over steps. */
  promptId: string;
  caption: string;
  meta: [string, string][];
  problem: string | null;
  isMissing: boolean;
  /** Whether only a small version of a picture is left. */
  isThumbnail: boolean;
  file: MediaFile | null;
  bytes: number | null;
  width: number | null;
  height: number | null;
  numClipped: number;
  masks: Mask[];
  boxes: Box[];
  text: string | null;
  fileName: string | null;
  /** Where a file is that was not stored. */
  path: string | null;
  table: { columns: string[]; rows: TableRow[] | null; numRows: number } | null;
  matrix: { labels: string[]; counts: number[][] } | null;
  points: PointFacts | null;
  curves: Curve[];
}

/** What a record says of a cloud of points beside its file. */
export interface PointFacts {
  numPoints: number;
  /** The number of points before they were thinned; null if all were stored. */
  sampledFrom: number | null;
  /** Points that were left out because they are NaN or infinite. */
  numNonFinite: number;
  /** The names of categories; empty if the fourth column is a number. */
  labels: Record<string, string>;
}

export interface Curve {
  label: string;
  precision: number[];
  recall: number[];
  averagePrecision: number | null;
}

export type TableRow = Record<string, unknown>;

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const listOf = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const textOf = (value: unknown): string | null => (typeof value === "string" ? value : null);
const numberOf = (value: unknown): number | null =>
  typeof value === "number" && Number.isFinite(value) ? value : null;
const numbersOf = (value: unknown): number[] => listOf(value).map((each) => numberOf(each) ?? 0);
const scalarText = (value: unknown): string => (isObject(value) || Array.isArray(value) ? "…" : String(value));

/** The file that a value names; null if it names none. */
export function fileOf(value: unknown): MediaFile | null {
  if (!isObject(value)) return null;
  const { sha256, ext } = value;
  if (typeof sha256 !== "string" || !/^[0-9a-f]{64}$/.test(sha256) || value["kept"] === false) return null;
  return { sha256, ext: typeof ext === "string" ? ext : "" };
}

export function parseItem(fields: Record<string, unknown>, record: MediaRecordView, position: number): MediaItem {
  const meta = isObject(fields["meta"]) ? fields["meta"] : {};
  const index = numberOf(fields["index"]) ?? position;
  const masks = isObject(fields["masks"]) ? Object.entries(fields["masks"]) : [];
  const columns = listOf(fields["columns"]).map(scalarText);
  const rows = Array.isArray(fields["rows"]) ? fields["rows"].filter(isObject) : null;
  const labels = listOf(fields["labels"]).map(scalarText);
  return {
    kind: record.kind,
    step: record.step,
    time: record.time,
    index,
    promptId: scalarText(meta["prompt_id"] ?? index),
    caption: textOf(fields["caption"]) ?? "",
    // The recorder adds the index as the id of each prompt that has none.
    meta: Object.entries(meta)
      .filter(([name, value]) => name !== "prompt_id" || value !== index)
      .map(([name, value]) => [name, scalarText(value)]),
    problem: textOf(fields["problem"]),
    isMissing: fields["is_missing"] === true && fields["is_thumbnail"] !== true,
    isThumbnail: fields["is_thumbnail"] === true,
    file: fileOf(fields),
    bytes: numberOf(fields["bytes"]),
    width: numberOf(fields["width"]),
    height: numberOf(fields["height"]),
    numClipped: numberOf(fields["clipped"]) ?? 0,
    masks: masks.flatMap(([name, mask]) => {
      const file = fileOf(mask);
      if (!file || !isObject(mask)) return [];
      const entries = isObject(mask["labels"]) ? Object.entries(mask["labels"]) : [];
      return [{ ...file, name, labels: Object.fromEntries(entries.map(([id, label]) => [id, scalarText(label)])) }];
    }),
    boxes: listOf(fields["boxes"]).filter(isObject).map(parseBox),
    text: textOf(fields["text"]),
    fileName: textOf(fields["file_name"]),
    path: textOf(fields["path"]),
    table:
      record.kind !== "points" && (columns.length || rows)
        ? { columns, rows, numRows: numberOf(fields["num_rows"]) ?? rows?.length ?? 0 }
        : null,
    matrix: Array.isArray(fields["counts"]) ? { labels, counts: fields["counts"].map(numbersOf) } : null,
    points: record.kind === "points" ? pointFacts(fields) : null,
    curves: listOf(fields["curves"])
      .filter(isObject)
      .map((curve) => ({
        label: textOf(curve["label"]) ?? "",
        precision: numbersOf(curve["precision"]),
        recall: numbersOf(curve["recall"]),
        averagePrecision: numberOf(curve["average_precision"]),
      })),
  };
}

/** The media in a cell of a table; null if there is none. Masks are not listed in tables, so they cannot be shown. */
export function cellItem(cell: unknown, table: string | null, step: number, label: string): MediaItem | null {
  const file = fileOf(cell);
  if (!file || !isObject(cell)) return null;
  const record = { name: "", kind: textOf(cell["media"]) ?? "image", step, time: null };
  const item = parseItem(cell, { ...record, items: [], num_dropped: 0, reason: "" }, 0);
  return { ...item, file: { ...file, table }, masks: [], caption: item.caption || label };
}

function pointFacts(fields: Record<string, unknown>): PointFacts {
  const labels = isObject(fields["labels"]) ? Object.entries(fields["labels"]) : [];
  return {
    numPoints: numberOf(fields["num_points"]) ?? 0,
    sampledFrom: numberOf(fields["sampled_from"]),
    numNonFinite: numberOf(fields["nonfinite"]) ?? 0,
    labels: Object.fromEntries(labels.map(([id, label]) => [id, scalarText(label)])),
  };
}

function parseBox(box: Record<string, unknown>): Box {
  const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => numberOf(box[name]) ?? 0);
  return {
    x: x ?? 0,
    y: y ?? 0,
    width: width ?? 0,
    height: height ?? 0,
    label: textOf(box["label"]) ?? "",
    score: numberOf(box["score"]),
  };
}

/** The items of each step, by prompt. Of a step that was logged twice, as after a resume, the later record counts. */
export function itemsByStep(records: MediaRecordView[]): Map<number, MediaItem[]> {
  const steps = new Map<number, MediaItem[]>();
  // The newest record comes first.
  for (const record of records) {
    const items = steps.get(record.step) ?? [];
    const prompts = new Set(items.map((item) => item.promptId));
    const added = record.items.map((fields, position) => parseItem(fields, record, position));
    steps.set(record.step, [...items, ...added.filter((item) => !prompts.has(item.promptId))]);
  }
  for (const items of steps.values()) items.sort((a, b) => a.index - b.index);
  return steps;
}

/** The prompts of some items, in the order of their indexes. */
export function promptsOf(items: Iterable<MediaItem>): string[] {
  const order = new Map<string, number>();
  for (const item of items) order.set(item.promptId, Math.min(item.index, order.get(item.promptId) ?? Infinity));
  return [...order].sort((a, b) => a[1] - b[1]).map(([prompt]) => prompt);
}

export function matchesSearch(item: MediaItem, search: string): boolean {
  const text = search.trim().toLowerCase();
  if (!text) return true;
  const texts = [
    item.caption,
    item.text ?? "",
    item.fileName ?? "",
    ...item.meta.map(([name, value]) => `${name}=${value}`),
    ...item.boxes.map((box) => `class=${box.label}`),
  ];
  return texts.some((each) => each.toLowerCase().includes(text));
}

/** All steps at which any name has media, ascending. */
export function allSteps(names: Pick<MediaNameView, "steps">[], more: number[] = []): number[] {
  return [...new Set([...names.flatMap((each) => each.steps), ...more])].sort((a, b) => a - b);
}

/** The index of the last step that is not after another one; -1 if all are. */
export function indexAt(steps: number[], step: number): number {
  let [low, high] = [0, steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((steps[middle] ?? 0) <= step) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Gaps between two steps: `after` is exclusive. */
export function gapsBetween(entry: Pick<MediaNameView, "gaps">, after: number, until: number): MediaNameView["gaps"] {
  return entry.gaps.filter((gap) => gap.step > after && gap.step <= until);
}

// Histograms ----------------------------------------------------------------------------------------------------------

export interface HistogramMap {
  numColumns: number;
  numRows: number;
  /** 0 to 1 by the logarithm of the count, from the lowest bin to the highest, column after column. */
  cells: Float64Array;
  /** The edges of the rows, from low to high. */
  edges: number[];
}

const maxRows = 128;

/** A column for each step. */
export function histogramMap(histograms: RecordedHistogram[]): HistogramMap {
  const { edges, counts } = alignBins(histograms);
  const numRows = Math.max(0, edges.length - 1);
  const highest = Math.log1p(highestOf(counts));
  const cells = new Float64Array(histograms.length * numRows);
  counts.forEach((rows, column) =>
    rows.forEach((count, row) => {
      cells[column * numRows + row] = highest > 0 ? Math.log1p(Math.max(0, count)) / highest : 0;
    }),
  );
  return { numColumns: histograms.length, numRows, cells, edges };
}

/** The share of NaN and infinite values, which are in no bin. */
export function nonFiniteShare(histogram: Pick<RecordedHistogram, "num_values" | "num_not_finite">): number {
  const { num_values, num_not_finite } = histogram;
  return num_not_finite > 0 ? num_not_finite / (num_values + num_not_finite) : 0;
}

/**
 * The counts of several histograms in the same bins. Bins that are the same at all steps stay, without those at both
 * ends that are always empty; others are spread over equal bins. Steps without a finite value have no say in the bins.
 */
function alignBins(histograms: RecordedHistogram[]): { edges: number[]; counts: number[][] } {
  const hasValues = (each: RecordedHistogram): boolean => each.counts.some((count) => count > 0);
  const filled = histograms.some(hasValues) ? histograms.filter(hasValues) : histograms;
  const first = filled[0]?.edges ?? [];
  const isSame = filled.every(
    (each) => each.edges.length === first.length && each.edges.every((x, i) => x === first[i]),
  );
  const [low, high] = isSame ? binsInUse(filled) : [0, Infinity];
  const edges = isSame ? first.slice(low, high + 1) : equalEdges(filled);
  const noCounts = new Array<number>(Math.max(0, edges.length - 1)).fill(0);
  const countsOf = (each: RecordedHistogram): number[] =>
    !hasValues(each) ? noCounts : isSame ? each.counts.slice(low, high) : spread(each, edges);
  return { edges, counts: histograms.map(countsOf) };
}

const highestOf = (counts: number[][]): number =>
  counts.reduce((high, rows) => rows.reduce((a, b) => Math.max(a, b), high), 0);

export interface Ridge {
  step: number;
  hasNonFinite: boolean;
  /** For each bin 0 to 1, where 1 is the highest of all ridges. */
  heights: number[];
}

/**
 * One outline per step, as many as fit: evenly spaced, with the first, the last and the chosen step.
 *
 * Heights are shares of the values of a step, because steps may have different numbers of values; on a logarithmic
 * scale they are counts, as in the map.
 */
export function ridgeLines(
  histograms: RecordedHistogram[],
  chosen: number,
  maxRidges: number,
  isLogarithmic: boolean,
): { ridges: Ridge[]; edges: number[] } {
  const { edges, counts } = alignBins(histograms);
  const indexes = evenlySpaced(histograms.length, maxRidges, chosen);
  const values = indexes.map((index) => {
    const rows = (counts[index] ?? []).map((count) => Math.max(0, count));
    const sum = rows.reduce((a, b) => a + b, 0) || 1;
    return rows.map((count) => (isLogarithmic ? Math.log1p(count) : count / sum));
  });
  const highest = highestOf(values) || 1;
  const ridges = indexes.map((index, position) => ({
    step: histograms[index]?.step ?? 0,
    hasNonFinite: (histograms[index]?.num_not_finite ?? 0) > 0,
    heights: (values[position] ?? []).map((value) => value / highest),
  }));
  return { ridges, edges };
}

/** At most `limit` indexes below a length with both ends and a chosen one, which takes the place of its neighbour. */
export function evenlySpaced(length: number, limit: number, chosen: number): number[] {
  if (length <= limit) return Array.from({ length }, (_, index) => index);
  const indexes = Array.from({ length: limit }, (_, index) => Math.round((index * (length - 1)) / (limit - 1)));
  const inner = indexes.slice(1, -1);
  if (indexes.includes(chosen) || chosen < 0 || chosen >= length || !inner.length) return indexes;
  const nearest = inner.reduce((a, b) => (Math.abs(b - chosen) < Math.abs(a - chosen) ? b : a));
  return indexes.map((index) => (index === nearest ? chosen : index));
}

/** The first bin that is not empty in all histograms, and the one after the last; all bins if all are empty. */
export function binsInUse(histograms: Pick<RecordedHistogram, "counts">[]): [number, number] {
  const numBins = histograms[0]?.counts.length ?? 0;
  const isUsed = (bin: number): boolean => histograms.some((each) => (each.counts[bin] ?? 0) > 0);
  let [low, high] = [0, numBins];
  while (low < high && !isUsed(low)) low++;
  while (high > low && !isUsed(high - 1)) high--;
  return low < high ? [low, high] : [0, numBins];
}

function equalEdges(histograms: RecordedHistogram[]): number[] {
  const all = histograms.flatMap((each) => [each.edges[0] ?? 0, each.edges.at(-1) ?? 0]);
  const low = all.reduce((a, b) => Math.min(a, b), Infinity);
  const high = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const numRows = Math.min(maxRows, Math.max(...histograms.map((each) => each.counts.length)));
  return Array.from({ length: numRows + 1 }, (_, row) => low + ((high - low) * row) / numRows);
}

/** The counts of a histogram in other bins; the count of a bin is distributed evenly over its width. */
function spread(histogram: RecordedHistogram, edges: number[]): number[] {
  const rows = new Array<number>(edges.length - 1).fill(0);
  const [low, high] = [edges[0] ?? 0, edges.at(-1) ?? 0];
  const width = (high - low) / rows.length || 1;
  histogram.counts.forEach((count, bin) => {
    const [from, to] = [histogram.edges[bin] ?? 0, histogram.edges[bin + 1] ?? 0];
    const firstRow = Math.max(0, Math.min(rows.length - 1, Math.floor((from - low) / width)));
    const lastRow = Math.max(firstRow, Math.min(rows.length - 1, Math.ceil((to - low) / width) - 1));
    for (let row = firstRow; row <= lastRow; row++) {
      const overlap = Math.min(to, edges[row + 1] ?? to) - Math.max(from, edges[row] ?? from);
      rows[row] = (rows[row] ?? 0) + (to > from ? (count * Math.max(0, overlap)) / (to - from) : count);
    }
  });
  return rows;
}
