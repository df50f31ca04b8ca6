/** Which rows and columns of a large table are visible. */

/** The first and the last visible row, and a few more on both sides; `last` is exclusive. */
export function visibleRows(
  scrollTop: number,
  height: number,
  rowHeight: number,
  count: number,
  more = 8,
): { first: number; last: number } {
  const first = Math.max(0, Math.min(count, Math.floor(scrollTop / rowHeight)) - more);
  return { first, last: Math.max(first, Math.min(count, Math.ceil((scrollTop + height) / rowHeight) + more)) };
}

/** The left edge of each column, and the right edge of the last one. */
export function edges(widths: number[]): number[] {
  const found = [0];
  for (const width of widths) found.push((found.at(-1) ?? 0) + width);
  return found;
}

/** The columns between two positions, and one more on both sides; `last` is exclusive. */
export function visibleColumns(edges: number[], from: number, to: number): { first: number; last: number } {
  const count = edges.length - 1;
  const first = Math.max(0, findEdge(edges, from) - 1);
  return { first, last: Math.max(first, Math.min(count, findEdge(edges, to) + 2)) };
}

/** The index of the last edge that is not to the right of a position. */
function findEdge(edges: number[], position: number): number {
  let [low, high] = [0, edges.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if ((edges[middle] ?? 0) <= position) low = middle;
    else high = middle - 1;
  }
  return low;
}
