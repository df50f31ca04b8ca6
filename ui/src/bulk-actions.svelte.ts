/** Actions on several runs: what was done, what failed, and for ten seconds how to undo it. */

import { api, type AnnotationChange, type BulkRequest, type RunResult } from "./api";
import { bulkRequests, undoRequests } from "./model/bulk";
import { quantity } from "./model/format";

export const undoSeconds = 10;

export interface Notice {
  /** What happened, such as `Tagged 3 runs`. */
  text: string;
  failures: { run: string; error: string }[];
  undo: BulkRequest[];
}

export class BulkActions {
  notice = $state.raw<Notice | null>(null);
  isBusy = $state(false);
  secondsLeft = $state(0);

  #clock: ReturnType<typeof setInterval> | undefined;
  readonly #onchange: () => void;

  /** Create it during a component's initialisation. `onchange` is called after each action. */
  constructor(onchange: () => void) {
    this.#onchange = onchange;
    $effect(() => () => clearInterval(this.#clock));
  }

  /** Act on runs. `verb` says what is done: `Tagged`. Returns the runs that succeeded. */
  async act(
    verb: string,
    action: BulkRequest["action"],
    runs: string[],
    changes: AnnotationChange[] = [],
  ): Promise<string[]> {
    const results = await this.#send(bulkRequests(action, runs, changes));
    const done = results.filter((result) => result.error === null);
    this.#show({
      text: `${verb} ${quantity(done.length, "run")}`,
      failures: results.flatMap(({ run, error }) => (error === null ? [] : { run, error })),
      undo: undoRequests(action, results),
    });
    return done.map((result) => result.run);
  }

  async undo(): Promise<void> {
    const undo = this.notice?.undo ?? [];
    this.dismiss();
    const results = await this.#send(undo);
    const numDone = results.filter((result) => result.error === null).length;
    this.#show({
      text: `Undone for ${quantity(numDone, "run")}`,
      failures: results.flatMap(({ run, error }) => (error === null ? [] : { run, error })),
      undo: [],
    });
  }

  dismiss(): void {
    clearInterval(this.#clock);
    this.notice = null;
  }

  /** Send requests one after the other; one that fails as a whole counts as a failure of each of its runs. */
  async #send(requests: BulkRequest[]): Promise<RunResult[]> {
    const results: RunResult[] = [];
    this.isBusy = true;
    for (const request of requests) {
      try {
        results.push(...(await api.actOnRuns(request)).results);
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error);
        results.push(...request.runs.map((run) => ({ run, error: reason, name: null, undo: [] })));
      }
    }
    this.isBusy = false;
    this.#onchange();
    return results;
  }

  #show(notice: Notice): void {
    clearInterval(this.#clock);
    this.notice = notice;
    this.secondsLeft = undoSeconds;
    this.#clock = setInterval(() => {
      if (--this.secondsLeft > 0) return;
      clearInterval(this.#clock);
      // Failures stay until they have been read.
      this.notice = notice.failures.length ? { ...notice, undo: [] } : null;
    }, 1_000);
  }
}
