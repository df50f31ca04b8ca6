/** What was asked of the trainer, and what has become of it. */

import type { Answer, Json } from "../api";

export interface Asked {
  id: string;
  control: string;
  value: number | boolean;
  time: number;
}

export interface Outcome extends Asked {
  status: string;
  text: string;
  isSettled: boolean;
}

export const mostTracedSteps = 1000;

export const isNumberOfSteps = (value: number | null | undefined): value is number =>
  Number.isInteger(value) && Number(value) >= 1 && Number(value) <= mostTracedSteps;

const settled = new Set(["applied", "clamped", "unchanged", "superseded", "rejected"]);

/** Join requests with the trainer's answers, which bear the same ids; the last answer counts. */
export function outcomes(asked: Asked[], answers: Answer[], now: number): Outcome[] {
  return asked.map((request) => {
    const answer = answers
      .filter((candidate) => candidate.id === request.id)
      .reduce<Answer | null>((latest, next) => (latest && latest.time > next.time ? latest : next), null);
    const status = answer?.status ?? "waiting";
    return { ...request, status, text: describe(request, answer, now), isSettled: settled.has(status) };
  });
}

function describe(request: Asked, answer: Answer | null, now: number): string {
  if (answer === null) {
    const waited = Math.round(now - request.time);
    return waited > 30
      ? `no answer for ${waited} s; does the loop still log?`
      : "sent; the trainer looks every few seconds";
  }
  if (answer.status === "pending") {
    const left = answer.wait_s === null ? null : Math.max(0, Math.round(answer.time + answer.wait_s - now));
    return left ? `seen; taken in about ${left} s` : "seen; taken at the loop's next step";
  }
  if (answer.control === "profile_steps" && answer.status === "applied") {
    const stored = `${text(answer.value)} ${answer.value === 1 ? "step is" : "steps are"} stored as a trace`;
    return answer.reason ? `${stored}; ${answer.reason}` : stored;
  }
  if (answer.reason) return answer.reason;
  if (answer.status === "clamped") return `kept within its bounds: ${text(answer.value)}`;
  return `now ${text(answer.value)}`;
}

const text = (value: Json): string => (typeof value === "string" ? value : JSON.stringify(value));
