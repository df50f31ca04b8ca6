/** The size of a chart: how many columns of the page it spans, and its height. */

export interface PanelSize {
  columns: number;
  heightPx: number;
}

export const defaultSize: PanelSize = { columns: 1, heightPx: 270 };
const maxColumns = 3;
const [minHeightPx, maxHeightPx] = [180, 900];
const keyStepPx = 45;

const clamp = (value: number, low: number, high: number): number => Math.min(high, Math.max(low, Math.round(value)));

/** The nearest size that a chart can have. */
export const validSize = ({ columns, heightPx }: PanelSize): PanelSize => ({
  columns: clamp(columns, 1, maxColumns),
  heightPx: clamp(heightPx, minHeightPx, maxHeightPx),
});

export const isDefaultSize = ({ columns, heightPx }: PanelSize): boolean =>
  columns === defaultSize.columns && heightPx === defaultSize.heightPx;

/** The size after an arrow key; null if the key does not change it. */
export function resizeByKey(size: PanelSize, key: string): PanelSize | null {
  const columns = { ArrowLeft: -1, ArrowRight: 1 }[key] ?? 0;
  const heightPx = { ArrowUp: -keyStepPx, ArrowDown: keyStepPx }[key] ?? 0;
  if (columns === 0 && heightPx === 0) return null;
  return validSize({ columns: size.columns + columns, heightPx: size.heightPx + heightPx });
}

/** How many columns of at least `columnPx` fit beside each other. */
export const columnsIn = (widthPx: number, columnPx: number, gapPx: number): number =>
  Math.max(1, Math.floor((widthPx + gapPx) / (columnPx + gapPx)));

/** Sizes are written as `COLUMNS,HEIGHT,METRIC`, because the name of a metric may contain anything. */
export function readSizes(texts: string[]): Record<string, PanelSize> {
  const sizes: Record<string, PanelSize> = {};
  for (const text of texts) {
    const match = /^(\d+),(\d+),(.+)$/s.exec(text);
    if (match?.[3]) sizes[match[3]] = validSize({ columns: Number(match[1]), heightPx: Number(match[2]) });
  }
  return sizes;
}

export const writeSizes = (sizes: Record<string, PanelSize>): string[] =>
  Object.entries(sizes).map(([name, { columns, heightPx }]) => `${columns},${heightPx},${name}`);
