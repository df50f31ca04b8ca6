/** Loads the series of one panel while the panel is visible. */

import { untrack } from "svelte";
import type { SeriesView } from "../api";
import type { SeriesLoader } from "../series-loader";

interface Inputs {
  name: string;
  runs: string[];
  /** Changes with the x axis. */
  axis: string;
  loader: SeriesLoader;
  isVisible: boolean;
  onseries: (series: SeriesView) => void;
}

export class PanelSeries {
  /** The loaded series by run. */
  byRun = $state.raw<Record<string, SeriesView>>({});

  /** Create it during a component's initialisation. `inputs` is read reactively. */
  constructor(inputs: () => Inputs) {
    const axis = $derived(inputs().axis);
    const runs = $derived(inputs().runs);
    const isVisible = $derived(inputs().isVisible);
    // Points of another axis or of other runs must never be drawn, not even for one frame.
    $effect.pre(() => {
      void [axis, runs];
      untrack(() => (this.byRun = {}));
    });
    $effect(() => {
      if (!isVisible) return;
      void axis;
      const current = runs;
      const { name, loader, onseries } = untrack(inputs);
      const unsubscribes = untrack(() =>
        current.map((run) =>
          loader.subscribe(run, name, (series) => {
            this.byRun = { ...this.byRun, [run]: series };
            onseries(series);
          }),
        ),
      );
      return () => unsubscribes.forEach((unsubscribe) => unsubscribe());
    });
  }

  get isEmpty(): boolean {
    return Object.keys(this.byRun).length === 0;
  }
}
