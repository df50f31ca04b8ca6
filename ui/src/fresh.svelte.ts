/** Answers that are asked for again when there is something new, but not more often than is good. */

export class Fresh<Answer> {
  value = $state.raw<Answer | null>(null);
  fault = $state<string | null>(null);

  #asked: string | null = null;
  #isAsking = false;
  #isWanted = false;
  #readyAt = 0;
  readonly #ask: () => Promise<Answer>;
  readonly #pauseMs: number;

  constructor(ask: () => Promise<Answer>, pauseMs: number) {
    this.#ask = ask;
    this.#pauseMs = pauseMs;
  }

  /** Ask unless it was asked for this version already; `version` is any text that changes when the answer may have. */
  want(version: string): void {
    if (version === this.#asked) return;
    this.#asked = version;
    void this.renew();
  }

  async renew(): Promise<void> {
    if (this.#isAsking) {
      this.#isWanted = true;
      return;
    }
    this.#isAsking = true;
    const wait = this.#readyAt - performance.now();
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    try {
      this.value = await this.#ask();
      this.fault = null;
    } catch (error) {
      this.fault = error instanceof Error ? error.message : String(error);
    }
    this.#readyAt = performance.now() + this.#pauseMs;
    this.#isAsking = false;
    if (this.#isWanted) {
      this.#isWanted = false;
      void this.renew();
    }
  }
}
