/** What the list says about a run besides its columns. */

import type { RunSummary } from "../api";
import { duration, number, quantity } from "./format";

/** The time since the last step of a running run, if it is much longer than a step takes; else null. */
export function stalledSeconds(run: RunSummary, now: number): number | null {
  if (run.state !== "running" || run.stepped === null) return null;
  const since = now - run.stepped;
  return since > Math.max(15, run.steps_per_sec ? 10 / run.steps_per_sec : 60) ? since : null;
}

/** Warnings about a run: a loss that is not finite, lost records, a loop that makes no steps. */
export function runWarnings(run: RunSummary, now: number): string[] {
  const found: string[] = [];
  if (typeof run.train_loss === "string") found.push(`loss is ${number(run.train_loss)}`);
  if (run.num_dropped) found.push(`${quantity(run.num_dropped, "record")} lost`);
  const stalled = stalledSeconds(run, now);
  if (stalled !== null) found.push(`last step ${duration(stalled)} ago`);
  return found;
}
