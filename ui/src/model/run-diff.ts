/** Several runs side by side: their results and the config keys that differ, with a reference run. */

import type { DiffPage, Json, Variation } from "../api";
import { isEqual } from "./equal";
import { nothing, number, plain } from "./format";

export interface DiffCell {
  value: Json;
  text: string;
  /** The difference of a result to the reference; empty for missing values and the reference itself. */
  delta: string;
  /** 1 if it is better than the reference, -1 if it is worse, 0 if that is unknown. */
  verdict: number;
  isBest: boolean;
  isDifferent: boolean;
}

/** A result or a config key, with a cell for each run. */
export interface DiffLine {
  name: string;
  isResult: boolean;
  isIgnored: boolean;
  cells: DiffCell[];
}

/** The most metrics that an answer lists. */
export const maxMetrics = 1_000;
/** The most results that a request may name. */
export const maxColumns = 40;
/** With more runs than this, they become the rows of the table. */
export const maxRunColumns = 6;

export function diffLines(page: Pick<DiffPage, "runs" | "results" | "config">, reference: number | null): DiffLine[] {
  const results = page.results.map(({ field, direction, best, values }) => ({
    name: field,
    isResult: true,
    isIgnored: false,
    cells: page.runs.map((run, index) => cellOf(values, index, reference, direction, run.name === best)),
  }));
  const config = page.config.map(({ name, values, is_ignored }) => {
    const spread = values.length === 1 ? page.runs.map(() => values[0] as Json) : values;
    const cells = spread.map((_, index) => cellOf(spread, index, reference, null, false));
    return { name, isResult: false, isIgnored: is_ignored, cells };
  });
  return [...results, ...config];
}

function cellOf(
  values: Json[],
  index: number,
  reference: number | null,
  direction: number | null,
  isBest: boolean,
): DiffCell {
  const value = values[index] ?? null;
  const other = reference === null || reference === index ? undefined : (values[reference] ?? null);
  const isDifferent = other !== undefined && !isEqual(value, other);
  const areNumbers = typeof value === "number" && typeof other === "number";
  const isResult = direction !== null;
  const verdict = isResult && areNumbers ? Math.sign(value - other) * direction : 0;
  const delta = isResult && areNumbers && isDifferent ? deltaText(value, other) : "";
  return { value, text: plain(value), delta, verdict, isBest, isDifferent };
}

/** A difference and its share of the reference, such as "+0.02 (+4 %)". */
export function deltaText(value: number, reference: number): string {
  const difference = value - reference;
  const share = reference === 0 ? null : (difference / Math.abs(reference)) * 100;
  const signed = (text: string, sign: number): string => (sign < 0 ? `−${text}` : `+${text}`);
  const absolute = signed(number(Math.abs(difference), 3), difference);
  if (share === null || Math.abs(share) > 1000) return absolute;
  return `${absolute} (${signed(`${number(Number(Math.abs(share).toPrecision(2)))} %`, difference)})`;
}

/** The order of runs by a line: numbers before texts, runs without a value last in both directions. */
export function orderBy(line: DiffLine, isDescending: boolean): number[] {
  const sign = isDescending ? -1 : 1;
  const rank = (value: Json): number => (typeof value === "number" ? 0 : value === null || value === "NaN" ? 2 : 1);
  return line.cells
    .map((cell, index) => ({ value: cell.value, text: cell.text, index }))
    .sort((a, b) => {
      if (rank(a.value) !== rank(b.value)) return rank(a.value) - rank(b.value);
      const order =
        typeof a.value === "number" && typeof b.value === "number"
          ? a.value - b.value
          : a.text.localeCompare(b.text, "en", { numeric: true });
      return rank(a.value) === 2 ? 0 : order * sign;
    })
    .map(({ index }) => index);
}

/** The values of a package or variable with the number of runs that have each, the most frequent first. */
export function countValues(values: Variation["values"]): { text: string; numRuns: number }[] {
  const counts = new Map<string, number>();
  for (const value of values) {
    const text = value === null ? nothing : plain(value);
    counts.set(text, (counts.get(text) ?? 0) + 1);
  }
  return [...counts].map(([text, numRuns]) => ({ text, numRuns })).sort((a, b) => b.numRuns - a.numRuns);
}
