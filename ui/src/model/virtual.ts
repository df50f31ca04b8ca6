/** Which rows and columns of a large table are visible. */

/** The first and the last visible row, and a few more on both sides; `last` is exclusive. */
export function visibleRows(
  scrollTop: number,
  height: number,
  rowHeight: number,
  count: number,
  more = 4,
): { first: number; last: number } {
  const first = Math.max(0, Math.min(count, Math.floor(scrollTop / rowHeight)) - more);
  return { first, last: Math.max(first, Math.min(count, Math.ceil((scrollTop + height) / rowHeight) + more)) };
}

/**
 * The rows or columns from `first` on, in a list of at most `size`, in which each keeps its place while it is visible.
 *
 * So an element of the table shows the same row until that is out of view, and then another one: scrolling changes the
 * content of a few elements and creates none.
 */
export function recycled(first: number, size: number, count: number): number[] {
  const length = Math.min(size, count);
  const start = Math.max(0, Math.min(first, count - length));
  const found = new Array<number>(length);
  for (let index = start; index < start + length; index++) found[index % length] = index;
  return found;
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
