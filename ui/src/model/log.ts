/** The rows of the log page: recorded lines, and one row for each gap between them. */

import type { OutputRange } from "../api";

export type LogRow = { number: number } | { gap: number };

/** The number of rows that show these lines. */
export function countRows(ranges: OutputRange[]): number {
  return ranges.reduce((count, range) => count + range.end - range.first, 0) + Math.max(0, ranges.length - 1);
}

/** What a row shows: the number of its line, or the size of the gap. */
export function rowAt(ranges: OutputRange[], index: number): LogRow | null {
  let first = 0;
  for (const [place, range] of ranges.entries()) {
    const before = ranges[place - 1];
    if (before) {
      if (index === first) return { gap: range.first - before.end };
      first++;
    }
    const size = range.end - range.first;
    if (index < first + size) return { number: range.first + index - first };
    first += size;
  }
  return null;
}

/** The row of a line; that of the next one if it was not kept. */
export function rowOf(ranges: OutputRange[], line: number): number {
  let first = 0;
  for (const [place, range] of ranges.entries()) {
    if (place > 0) first++;
    if (line < range.end) return first + Math.max(0, line - range.first);
    first += range.end - range.first;
  }
  return Math.max(0, first - 1);
}

/** The number of the line in a row, or of the first one after it. */
export function lineFrom(ranges: OutputRange[], index: number): number {
  for (const place of [index, index + 1]) {
    const row = rowAt(ranges, place);
    if (row && "number" in row) return row.number;
  }
  return 0;
}
