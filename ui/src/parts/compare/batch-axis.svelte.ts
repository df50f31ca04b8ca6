/** Chooses the x axis of runs with different batch sizes, from their configs and a few points of each. */

import { api } from "../../api";
import { live } from "../../live.svelte";
import { batchSizes, type BatchSizes, compareAmounts, ranksField, sampleRuns } from "../../model/batch-axis";
import { groupMetrics, isShown } from "../../model/metric-groups";
import { Resource } from "../../resource.svelte";
import { maxDiffRuns } from "./diff-page.svelte";
import type { LiveVersions } from "./live-versions.svelte";

export interface BatchAxis {
  /** Null if the runs have no amounts of data, or no steps yet. */
  axis: "tokens" | "samples" | null;
  sizes: BatchSizes;
  /** Whether another answer is possible when the runs have made steps. */
  isFinal: boolean;
}

const maxProbed = 50;
const maxWithMetrics = 8;
/** The charts need the same journals; asking all the time would only slow down reading them. */
const unreadPauseMs = 500;

/** Create it during a component's initialisation. The value is null if equal steps are equal amounts of data. */
export function batchAxis(runs: () => string[], versions: LiveVersions): Resource<BatchAxis | null> {
  const found: Resource<BatchAxis | null> = new Resource(() => probe(runs()), 2_000);
  $effect(() => {
    const isOpen = found.value !== null && !found.value.isFinal;
    if (runs().length > 1) found.refreshWhenChanged(runs(), isOpen ? versions.value : null);
  });
  return found;
}

async function probe(runs: string[]): Promise<BatchAxis | null> {
  const query = { run: runs.slice(0, maxDiffRuns), column: [ranksField], code: false };
  const page = await whenRead(() => api.getDiff(query), isRead);
  const sizes = batchSizes(page);
  if (sizes === null) return null;
  const ranks = page.results.find(({ field }) => field === ranksField)?.values ?? [];
  /** A run that has just begun: its config is not in the journal yet. */
  const isStarting = page.runs.some(
    ({ name }, index) => (live.byName.get(name)?.state ?? "running") === "running" && (ranks[index] ?? null) === null,
  );
  const sample = sampleRuns(sizes, maxProbed);
  const metric = await commonMetric(sample.slice(0, maxWithMetrics));
  if (metric === null) return { axis: null, sizes, isFinal: false };
  const points = (x: "step" | "tokens" | "samples") =>
    whenRead(
      () => api.getOverlay({ run: sample, name: [metric], x, points: 16 }),
      ({ runs }) => runs.every((run) => run.reason !== null || isRead(run)),
    );
  const steps = await points("step");
  for (const axis of ["tokens", "samples"] as const) {
    const amounts = compareAmounts(steps, await points(axis));
    if (amounts === "unknown") return { axis: null, sizes, isFinal: false };
    if (amounts === "equal") return null;
    if (amounts === "differ") return { axis, sizes, isFinal: !isStarting };
  }
  return sizes.isConfigured ? { axis: null, sizes, isFinal: !isStarting } : null;
}

const isRead = ({ indexed }: { indexed: number }): boolean => indexed >= 1;

/** Ask until the server has read everything: an answer from a part of a journal would be taken for the final one. */
async function whenRead<Page>(fetch: () => Promise<Page>, isComplete: (page: Page) => boolean): Promise<Page> {
  for (;;) {
    const page = await fetch();
    if (isComplete(page)) return page;
    await new Promise((resolve) => setTimeout(resolve, unreadPauseMs));
  }
}

/** A metric of the training that all these runs have. */
async function commonMetric(runs: string[]): Promise<string | null> {
  const pages = await Promise.all(runs.map((run) => whenRead(() => api.listMetrics(run), isRead)));
  const [first = [], ...others] = pages.map(({ metrics }) => metrics.filter(isShown));
  const common = first.filter(({ name }) => others.every((metrics) => metrics.some((each) => each.name === name)));
  return groupMetrics(common)[0]?.names[0] ?? null;
}
