/** A value fetched from the server, fetched again when its inputs change, but not too often. */

import { isEqual } from "./model/equal";

const maxPauseMs = 10_000;

export class Resource<Value> {
  /** The latest value; null until the first one arrives. */
  value = $state.raw<Value | null>(null);
  /** The error of the latest request; null if it succeeded. */
  error = $state<string | null>(null);

  #inputs: unknown[] | null = null;
  #isFetching = false;
  #isOutdated = false;
  #isClosed = false;
  #readyAt = 0;
  #numErrors = 0;
  readonly #fetch: () => Promise<Value>;
  readonly #pauseMs: number;

  /** Create it during a component's initialisation: it is closed together with the component. */
  constructor(fetch: () => Promise<Value>, pauseMs: number) {
    this.#fetch = fetch;
    this.#pauseMs = pauseMs;
    $effect(() => () => {
      this.#isClosed = true;
    });
  }

  /** Fetch the value unless it was already fetched for these inputs. */
  refreshWhenChanged(...inputs: unknown[]): void {
    if (isEqual(inputs, this.#inputs)) return;
    this.#inputs = inputs;
    void this.refresh();
  }

  /** Fetch the value. A call during a request makes one more request after it, however many calls there were. */
  async refresh(): Promise<void> {
    this.#isOutdated = true;
    if (this.#isFetching) return;
    this.#isFetching = true;
    while (this.#isOutdated && !this.#isClosed) {
      this.#isOutdated = false;
      const wait = this.#readyAt - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      if (!this.#isClosed) await this.#fetchOnce();
    }
    this.#isFetching = false;
  }

  async #fetchOnce(): Promise<void> {
    try {
      const value = await this.#fetch();
      if (this.#isClosed) return;
      this.value = value;
      this.error = null;
      this.#numErrors = 0;
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
      this.#numErrors++;
      this.#isOutdated = true; // try again
    }
    const pause = this.#numErrors ? Math.min(maxPauseMs, 500 * 2 ** this.#numErrors) : this.#pauseMs;
    this.#readyAt = performance.now() + pause;
  }
}

/** Fetch a page again until the server has read everything that belongs to it. Call it during initialisation. */
export function refreshUntilIndexed(resource: Resource<{ indexed: number }>): void {
  $effect(() => {
    if ((resource.value?.indexed ?? 1) < 1) void resource.refresh();
  });
}
