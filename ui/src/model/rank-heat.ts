/** The matrix of ranks over time, as the server sends it. */

export interface RankHeat {
  /** The first rank of each row. */
  ranks: number[];
  firstIteration: number;
  lastIteration: number;
  numColumns: number;
  /** Row by row: 0 without data, 1 to 255 for the limits of `excessLimits`. */
  cells: Uint8Array;
}

/** The fixed scale of the colours: a scale that follows the data would paint noise. */
export const excessLimits = { low: -0.1, high: 0.5 };

/** Parse a line of JSON with the shape and the bytes after it; null if they do not fit together. */
export function parseHeat(data: ArrayBuffer): RankHeat | null {
  const bytes = new Uint8Array(data);
  const end = bytes.indexOf(10);
  if (end < 0) return null;
  const shape = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
  const cells = bytes.subarray(end + 1);
  if (cells.length !== shape.ranks.length * shape.num_columns) return null;
  return {
    ranks: shape.ranks,
    firstIteration: shape.first_iteration,
    lastIteration: shape.last_iteration,
    numColumns: shape.num_columns,
    cells,
  };
}

/** How much longer than the others a cell took, as a share; null without data. */
export function excessOf(cell: number): number | null {
  const { low, high } = excessLimits;
  return cell === 0 ? null : low + ((cell - 1) / 254) * (high - low);
}

/** The colour of a cell as red, green, blue: blue if faster, neutral if typical, yellow to red if slower. */
export function cellColour(cell: number, isDark: boolean): [number, number, number] {
  const excess = excessOf(cell);
  const neutral: [number, number, number] = isDark ? [38, 46, 58] : [226, 232, 240];
  if (excess === null) return isDark ? [24, 27, 33] : [250, 250, 250];
  const stops: [number, [number, number, number]][] = [
    [-0.1, [59, 130, 246]],
    [-0.02, neutral],
    [0.04, neutral],
    [0.15, [245, 180, 40]],
    [0.5, [220, 38, 38]],
  ];
  const index = Math.max(
    1,
    stops.findIndex(([at]) => excess <= at),
  );
  const [low, from] = stops[index - 1]!;
  const [high, to] = stops[index]!;
  const share = Math.min(1, Math.max(0, (excess - low) / (high - low)));
  return from.map((value, channel) => Math.round(value + share * (to[channel]! - value))) as [number, number, number];
}
