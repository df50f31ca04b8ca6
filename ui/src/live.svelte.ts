/** The runs as the server tells of them, kept up to date while the page can be seen. */

import { api, ApiError, type RunLine } from "./api";

class Live {
  runs = $state<RunLine[]>([]);
  logDir = $state("");
  isLoaded = $state(false);
  isConnected = $state(true);
  needsToken = $state(false);
  fault = $state<string | null>(null);
  /** Of the runs that are watched closely: another text whenever something was recorded. */
  versions = $state<Record<string, string>>({});
  indexed = $state<Record<string, number>>({});
  /** Seconds since the epoch, renewed every second, for what says how long ago something was. */
  now = $state(Date.now() / 1000);

  #watched: string[] = [];
  #stop: (() => void) | null = null;

  constructor() {
    setInterval(() => (this.now = Date.now() / 1000), 1000);
    document.addEventListener("visibilitychange", () => this.#connect());
  }

  /** Watch some runs closely, or all of them from afar. */
  watch(names: string[]): void {
    this.#watched = names;
    this.#connect();
  }

  async load(): Promise<void> {
    try {
      const { log_dir, runs } = await api.runs();
      this.logDir = log_dir;
      this.runs = runs;
      this.needsToken = false;
      this.fault = null;
    } catch (error) {
      this.needsToken = error instanceof ApiError && error.status === 401;
      this.fault = error instanceof Error ? error.message : String(error);
    }
    this.isLoaded = true;
  }

  run(name: string): RunLine | undefined {
    return this.runs.find((run) => run.name === name);
  }

  #connect(): void {
    this.#stop?.();
    this.#stop = null;
    // Browsers allow few connections to a server: those of pages that nobody sees are given back.
    if (document.hidden || this.needsToken) return;
    this.#stop = api.watch(this.#watched, {
      changed: ({ line, version, indexed }) => {
        this.#put(line);
        if (version !== null) this.versions[line.name] = version;
        if (indexed !== null) this.indexed[line.name] = indexed;
      },
      gone: (name) => (this.runs = this.runs.filter((run) => run.name !== name)),
      connected: (is) => (this.isConnected = is),
    });
  }

  #put(line: RunLine): void {
    const index = this.runs.findIndex((run) => run.name === line.name);
    if (index < 0) this.runs.push(line);
    else this.runs[index] = line;
  }
}

export const live = new Live();
