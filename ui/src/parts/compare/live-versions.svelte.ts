/** Which of the compared runs have recorded something, for whatever has to be loaded again then. */

import { untrack } from "svelte";
import { live } from "../../live.svelte";
import { keepEqual } from "../../model/equal";

/** The list of runs changes all the time; a page with many runs follows every few seconds. */
export const usualPeriodSeconds = 4;

export class LiveVersions {
  readonly #runs: () => string[];
  readonly #periodSeconds: () => number;

  constructor(runs: () => string[], periodSeconds: () => number = () => usualPeriodSeconds) {
    this.#runs = runs;
    this.#periodSeconds = periodSeconds;
  }

  #period = $derived.by(() => Math.floor(live.now / this.#periodSeconds()));

  /** The latest step of each run that is running. A run that ends is no longer in it, which is a change, too. */
  value = $derived.by(
    keepEqual((): Record<string, string> => {
      void [this.#period, live.numReconnects, live.isLoaded];
      const chosen = new Set(this.#runs());
      const running = untrack(() => live.runs.filter((run) => chosen.has(run.name) && run.state === "running"));
      return Object.fromEntries(running.map((run) => [run.name, String(run.step ?? "")]));
    }),
  );
}
