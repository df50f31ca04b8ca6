/** Answers that are asked for again when there is something new, but not more often than is good. */

const longestPauseMs = 10_000;

export class Fresh<Answer> {
  value = $state.raw<Answer | null>(null);
  fault = $state<string | null>(null);

  #asked: string | null = null;
  #isAsking = false;
  #isWanted = false;
  #isClosed = false;
  #readyAt = 0;
  #numFaults = 0;
  readonly #ask: () => Promise<Answer>;
  readonly #pauseMs: number;

  /** To be made while a component is: it ends with it. */
  constructor(ask: () => Promise<Answer>, pauseMs: number) {
    this.#ask = ask;
    this.#pauseMs = pauseMs;
    $effect(() => () => {
      this.#isClosed = true;
    });
  }

  /** Ask unless it was asked for this version already; `version` is any text that changes when the answer may have. */
  want(version: string): void {
    if (version === this.#asked) return;
    this.#asked = version;
    void this.renew();
  }

  async renew(): Promise<void> {
    this.#isWanted = true;
    if (this.#isAsking) return;
    this.#isAsking = true;
    while (this.#isWanted && !this.#isClosed) {
      this.#isWanted = false;
      const wait = this.#readyAt - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      if (!this.#isClosed) await this.#try();
    }
    this.#isAsking = false;
  }

  async #try(): Promise<void> {
    try {
      const value = await this.#ask();
      if (this.#isClosed) return;
      this.value = value;
      this.fault = null;
      this.#numFaults = 0;
    } catch (error) {
      this.fault = error instanceof Error ? error.message : String(error);
      this.#numFaults++;
      this.#isWanted = true; // it may be better the next time
    }
    const pause = this.#numFaults ? Math.min(longestPauseMs, 500 * 2 ** this.#numFaults) : this.#pauseMs;
    this.#readyAt = performance.now() + pause;
  }
}
