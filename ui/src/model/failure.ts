/** Texts and links for the failure of a run. */

import type { Failure, RunState } from "../api";
import type { ChartView } from "./route";

/** The exception and its message in one line; without them, the state says what is known. */
export function failureTitle({ error_type, message }: Failure, state: RunState): string {
  const cause = [error_type, message].filter(Boolean).join(": ");
  if (cause) return cause;
  return state === "crashed"
    ? "The process ended without an exit record: it was killed, ran out of memory, or the machine restarted."
    : "The run failed. No exception was recorded.";
}

/** The output of each stream, without a stream that repeats the traceback. */
export function newOutput({ output, traceback }: Failure): [stream: string, text: string][] {
  return Object.entries(output).filter(([, text]) => text.trim() !== traceback.trim());
}

/** A view of the charts with the last steps before the failure; null if there is none. */
export function failureView(step: number | null, view: ChartView): ChartView | null {
  if (step === null || step < 1) return null;
  return { ...view, x: "step", search: "", low: Math.max(0, step - Math.max(50, Math.ceil(step / 20))), high: step };
}
