/** The visible part of an x axis that is a metric. */

export interface AxisView {
  /** What the user zoomed into; null shows everything. */
  low: number | null;
  high: number | null;
  /** The range of the loaded points. */
  extent: [number, number] | null;
  /** The visible range; the same array until it changes, because a chart with another one is drawn again. */
  range: [number | null, number | null];
}

export const wholeAxis: AxisView = { low: null, high: null, extent: null, range: [null, null] };

/** Show a part of the axis, or all of it if the part has all points. */
export function zoomed(view: AxisView, low: number | null, high: number | null): AxisView {
  const { extent } = view;
  const isWhole = extent !== null && low !== null && high !== null && low <= extent[0] && high >= extent[1];
  return withRange(isWhole ? { ...view, low: null, high: null } : { ...view, low, high });
}

/** A chart has points from `low` to `high`. */
export function extended(view: AxisView, low: number, high: number): AxisView {
  const { extent } = view;
  if (extent && extent[0] <= low && extent[1] >= high) return view;
  return withRange({ ...view, extent: [Math.min(extent?.[0] ?? low, low), Math.max(extent?.[1] ?? high, high)] });
}

function withRange(view: AxisView): AxisView {
  const low = view.low ?? view.extent?.[0] ?? null;
  const high = view.high ?? view.extent?.[1] ?? null;
  return view.range[0] === low && view.range[1] === high ? view : { ...view, range: [low, high] };
}
