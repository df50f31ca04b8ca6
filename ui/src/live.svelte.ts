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
  /** Runs that were looked at and are no longer there. */
  gone = $state<string[]>([]);
  /** Grows when the server was found again: what could not be had then may be had now. */
  epoch = $state(0);
  /** Seconds since the epoch by the server's clock, renewed every second. */
  now = $state(Date.now() / 1000);

  #offset_s = 0;
  #hasAsked = false;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #watched: string[] = [];
  #stop: (() => void) | null = null;

  constructor() {
    setInterval(() => (this.now = this.clock()), 1000);
    document.addEventListener("visibilitychange", () => this.#connect());
  }

  /** The server's clock, as exactly as it is known. */
  clock(): number {
    return Date.now() / 1000 + this.#offset_s;
  }

  /** Watch some runs closely, or all of them from afar. */
  watch(names: string[]): void {
    this.#watched = names;
    // What went while one run was watched was not told.
    if (names.length === 0 || !this.#hasAsked) void this.load();
    this.#hasAsked = true;
    this.#connect();
  }

  async load(): Promise<void> {
    try {
      const { log_dir, runs } = await api.runs();
      this.logDir = log_dir;
      // Of a run that is watched closely more was told than the list knows.
      this.runs = runs.map((run) => (this.#watched.includes(run.name) ? this.run(run.name) : null) ?? run);
      this.gone = this.gone.filter((name) => !runs.some((run) => run.name === name));
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
    clearTimeout(this.#retry);
    this.#stop?.();
    this.#stop = null;
    // Browsers allow few connections to a server: those of pages that nobody sees are given back.
    if (document.hidden || this.needsToken) return;
    this.#stop = api.watch(this.#watched, {
      changed: ({ line, version, indexed, now }) => {
        this.#offset_s = now - Date.now() / 1000;
        this.#put(line);
        if (version !== null) this.versions[line.name] = version;
        if (indexed !== null) this.indexed[line.name] = indexed;
      },
      gone: (name) => {
        this.runs = this.runs.filter((run) => run.name !== name);
        if (!this.gone.includes(name)) this.gone.push(name);
      },
      connected: (is, isFinal) => this.#connected(is, isFinal),
    });
  }

  #connected(is: boolean, isFinal: boolean): void {
    if (is && !this.isConnected) {
      this.epoch++;
      void this.load();
    }
    this.isConnected = is;
    // The browser gives up on an answer that is no stream, such as one that asks for the token.
    if (isFinal) this.#retry = setTimeout(() => void this.load().then(() => this.#connect()), 2000);
  }

  #put(line: RunLine): void {
    const index = this.runs.findIndex((run) => run.name === line.name);
    this.gone = this.gone.filter((name) => name !== line.name);
    if (index < 0) this.runs.push(line);
    else this.runs[index] = line;
  }
}

export const live = new Live();
