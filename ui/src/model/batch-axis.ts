/** The x axis of runs with different batch sizes: equal steps of them are different amounts of data. */

import type { DiffPage, OverlayPage } from "../api";
import { plain } from "./format";

/** Config keys that say how much data a step uses. Those of evaluations do not. */
const isAmount = (key: string): boolean =>
  /(^|[._])(batch_size|bsz|grad(ient)?_accum\w*|accumulate_grad_batches|seq(uence)?_len(gth)?|block_size|context_length)$/.test(
    key,
  ) && !/(^|[._])(eval|val|valid|validation|test|dev)[._]/.test(key);
/** The result of a comparison that multiplies the batch size. */
export const ranksField = "world_size";

export interface BatchSizes {
  /** The runs with each combination of values, and the values as text. */
  groups: { label: string; runs: string[] }[];
  /** Whether the configs differ, and not only the number of ranks. */
  isConfigured: boolean;
}

/** How the batch sizes of runs differ; null if they do not. `page` has `ranksField` as a result. */
export function batchSizes(page: Pick<DiffPage, "runs" | "config" | "results">): BatchSizes | null {
  const keys = page.config.filter(({ name, differs }) => differs && isAmount(name));
  const ranks = page.results.filter(({ field, values }) => field === ranksField && new Set(values).size > 1);
  const columns = [...keys, ...ranks.map(({ field, values }) => ({ name: field, values }))];
  if (columns.length === 0) return null;
  const groups = new Map<string, string[]>();
  for (const [index, { name }] of page.runs.entries()) {
    const label = columns.map((key) => `${key.name}=${plain(key.values[index])}`).join(", ");
    groups.set(label, [...(groups.get(label) ?? []), name]);
  }
  const found = [...groups].map(([label, runs]) => ({ label, runs }));
  found.sort((a, b) => a.label.localeCompare(b.label, "en", { numeric: true }));
  return { groups: found, isConfigured: keys.length > 0 };
}

/** Some runs with every batch size, at most `maxRuns`: the first of each group, then the second … */
export function sampleRuns({ groups }: BatchSizes, maxRuns: number): string[] {
  const longest = Math.max(...groups.map(({ runs }) => runs.length));
  const ranks = Array.from({ length: longest }, (_, rank) => groups.flatMap(({ runs }) => runs.slice(rank, rank + 1)));
  return ranks.flat().slice(0, maxRuns);
}

/** Amounts of data per step that differ by less are those of batches that vary a little, such as packed texts. */
const minRatio = 1.05;

export type Amounts = "differ" | "equal" | "missing" | "unknown";

/**
 * Whether steps of these runs are different amounts of data, from the positions of the same points on two axes.
 *
 * `missing`: some run has points at steps, but none on the other axis. `unknown`: fewer than two runs have steps yet.
 */
export function compareAmounts(bySteps: OverlayPage, byAmounts: OverlayPage): Amounts {
  const steps = spans(bySteps);
  const amounts = spans(byAmounts);
  if ([...steps.keys()].some((run) => !amounts.has(run))) return "missing";
  const perStep = [...steps].flatMap(([run, { low, high }]) => {
    const amount = amounts.get(run) as Span;
    // A single point: the amount after that many steps.
    const found = high > low ? (amount.high - amount.low) / (high - low) : high > 0 ? amount.high / high : Number.NaN;
    return found > 0 ? [found] : [];
  });
  if (perStep.length < 2) return "unknown";
  return Math.max(...perStep) / Math.min(...perStep) >= minRatio ? "differ" : "equal";
}

interface Span {
  low: number;
  high: number;
}

/** The first and the last position of each run with points. */
function spans({ runs }: OverlayPage): Map<string, Span> {
  const found = new Map<string, Span>();
  for (const { run, series } of runs) {
    const x = series.flatMap(({ lines }) => lines.flatMap((line) => line.x));
    if (x.length > 0) found.set(run, { low: Math.min(...x), high: Math.max(...x) });
  }
  return found;
}
