/** Matches control requests with the answers of the training process. */

import type { ControlAnswer } from "../api";
import { plain } from "./format";

export interface SentRequest {
  id: string;
  control: string;
  value: number | boolean;
  time: number;
}

export interface RequestOutcome extends SentRequest {
  status: string;
  text: string;
  isFinal: boolean;
}

export const maxTracedSteps = 1000;

export const isValidStepCount = (value: number | null | undefined): value is number =>
  Number.isInteger(value) && Number(value) >= 1 && Number(value) <= maxTracedSteps;

const finalStatuses = new Set(["applied", "clamped", "unchanged", "superseded", "rejected"]);

/** Join requests with the answers that have the same id; the latest answer counts. */
export function resolveRequests(sent: SentRequest[], answers: ControlAnswer[], now: number): RequestOutcome[] {
  return sent.map((request) => {
    const answer = answers
      .filter((candidate) => candidate.id === request.id)
      .reduce<ControlAnswer | null>((latest, next) => (latest && latest.time > next.time ? latest : next), null);
    const status = answer?.status ?? "waiting";
    return { ...request, status, text: describe(request, answer, now), isFinal: finalStatuses.has(status) };
  });
}

function describe(request: SentRequest, answer: ControlAnswer | null, now: number): string {
  if (answer === null) {
    const waited = Math.round(now - request.time);
    return waited > 30
      ? `no answer for ${waited} s; is the training loop still logging?`
      : "sent; the training process polls every few seconds";
  }
  if (answer.status === "pending") {
    const left = answer.wait_s === null ? null : Math.max(0, Math.round(answer.time + answer.wait_s - now));
    return left ? `received; applied in about ${left} s` : "received; applied at the next step";
  }
  if (answer.control === "profile_steps" && answer.status === "applied") {
    const stored = `stored a trace of ${plain(answer.value)} ${answer.value === 1 ? "step" : "steps"}`;
    return answer.reason ? `${stored}; ${answer.reason}` : stored;
  }
  if (answer.reason) return answer.reason;
  if (answer.control === "dump_now" && answer.status === "applied") return "written; the page Health shows it";
  if (answer.status === "clamped") return `limited to its range: ${plain(answer.value)}`;
  return `now ${plain(answer.value)}`;
}
