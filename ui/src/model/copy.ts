/** How late a run is on a team's server, which receives it while it is recorded elsewhere. */

import type { CopyView, RunState } from "../api";
import { bytes, duration } from "./format";

/** A client reports every five seconds. */
const silentSeconds = 10;
/** A client collects up to this much before it sends it: it is on its way. */
const collectedBytes = 64 << 10;
const maxSkewSeconds = 2;

const isOpen = (state: RunState): boolean => state === "running" || state === "stale";

/** When the client was heard last, while it should be heard; else null. */
export function lastHeard(copy: CopyView | null, state: RunState, now: number): string | null {
  return copy !== null && isOpen(state) ? `${whole(now - copy.seen)} ago` : null;
}

/** What is unusual about the copy of a run: silence, bytes that are missing, and a wrong clock. */
export function copyNotes(copy: CopyView | null, state: RunState, now: number): string[] {
  if (copy === null) return [];
  const notes: string[] = [];
  const sinceSeconds = now - copy.seen;
  const isSilent = isOpen(state) && sinceSeconds > silentSeconds;
  if (isSilent) notes.push(`Nothing heard for ${whole(sinceSeconds)}.`);
  if (copy.lag_bytes > (isOpen(state) && !isSilent ? collectedBytes : 0)) {
    notes.push(`${bytes(copy.lag_bytes)} not received yet.`);
  }
  if (copy.skew_s !== null && Math.abs(copy.skew_s) > maxSkewSeconds) {
    const by = whole(Math.abs(copy.skew_s));
    notes.push(`The clock of this machine is ${by} ${copy.skew_s > 0 ? "ahead of" : "behind"} the server's.`);
  }
  return notes;
}

/** A duration in whole seconds: fractions would only flicker. */
const whole = (value: number): string => (value < 60 ? `${Math.floor(Math.max(0, value))} s` : duration(value));
