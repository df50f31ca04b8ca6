/** Media of a run: items as recorded, parsed without trust; their order by prompt and step; histograms as a map. */

import type { MediaNameView, MediaRecordView, RecordedHistogram } from "../api";

export interface MediaFile {
  sha256: string;
  ext: string;
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
  curves: Curve[];
}

export interface Curve {
  label: string;
  precision: number[];
  recall: number[];
  averagePrecision: number | null;
}

export type TableRow = Record<string, unknown>;

const isObject = (value: unknown): value is Record<string, unknown> =>
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
    isMissing: fields["is_missing"] === true,
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
      columns.length || rows ? { columns, rows, numRows: numberOf(fields["num_rows"]) ?? rows?.length ?? 0 } : null,
    matrix: Array.isArray(fields["counts"]) ? { labels, counts: fields["counts"].map(numbersOf) } : null,
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

// Tables --------------------------------------------------------------------------------------------------------------

/** The rows that contain a text, sorted by a column; `-name` sorts in descending order. */
export function chooseRows(rows: TableRow[], search: string, sort: string): TableRow[] {
  const text = search.trim().toLowerCase();
  const matches = text
    ? rows.filter((row) =>
        Object.values(row).some((cell) => !isObject(cell) && String(cell).toLowerCase().includes(text)),
      )
    : rows;
  if (!sort) return matches;
  const [name, sign] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  return [...matches].sort((a, b) => compareCells(a[name], b[name], sign));
}

/** Numbers before texts, and NaN and missing cells always last. */
function compareCells(a: unknown, b: unknown, sign: number): number {
  const [rankA, rankB] = [cellRank(a), cellRank(b)];
  if (rankA !== rankB) return rankA - rankB;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return typeof a === "string" && typeof b === "string" ? sign * a.localeCompare(b) : 0;
}

function cellRank(cell: unknown): number {
  if (typeof cell === "number") return 0;
  if (cell === "NaN" || cell === null || cell === undefined) return 3;
  return typeof cell === "string" ? 1 : 2;
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

/** A column for each step. Bins that are the same at all steps become rows; others are spread over equal rows. */
export function histogramMap(histograms: RecordedHistogram[]): HistogramMap {
  const first = histograms[0]?.edges ?? [];
  const isSame = histograms.every(
    (each) => each.edges.length === first.length && each.edges.every((x, i) => x === first[i]),
  );
  const edges = isSame ? first : equalEdges(histograms);
  const numRows = Math.max(0, edges.length - 1);
  const counts = new Float64Array(histograms.length * numRows);
  histograms.forEach((each, column) => {
    const rows = isSame ? each.counts : spread(each, edges);
    rows.forEach((count, row) => (counts[column * numRows + row] = count));
  });
  const highest = Math.log1p(counts.reduce((high, count) => Math.max(high, count), 0));
  const cells = counts.map((count) => (highest > 0 ? Math.log1p(Math.max(0, count)) / highest : 0));
  return { numColumns: histograms.length, numRows, cells, edges };
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
