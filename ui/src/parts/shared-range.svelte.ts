/** The range of the x axis that all charts of a page show. */

import { keepEqual } from "../model/equal";

interface Zoom {
  low: number | null;
  high: number | null;
  /** A logarithmic axis starts at the first positive position of each chart. */
  isLogX?: boolean;
}

export class SharedRange {
  /** The range of the points of all charts. Only valid for its scope. */
  #extent = $state.raw<{ scope: object; low: number; high: number } | null>(null);
  readonly #scope: () => object;
  readonly #zoom: () => Zoom;

  /** Other points, such as those of another axis, must have another scope: an object that is compared by identity. */
  constructor(scope: () => object, zoom: () => Zoom) {
    this.#scope = scope;
    this.#zoom = zoom;
  }

  isZoomed = $derived.by(() => this.#zoom().low !== null || this.#zoom().high !== null);

  /** What the user chose, else the range of all points; null before there are any. */
  value = $derived.by(
    keepEqual((): [number | null, number | null] => {
      const { low, high, isLogX = false } = this.#zoom();
      const known = this.#known();
      return [low ?? (isLogX ? null : (known?.low ?? null)), high ?? known?.high ?? null];
    }),
  );

  /** The range to zoom to; none if it has the points of all charts. */
  limit(low: number | null, high: number | null): [low: number | null, high: number | null] {
    const known = this.#known();
    const isWhole = known !== null && low !== null && high !== null && low <= known.low && high >= known.high;
    return isWhole ? [null, null] : [low, high];
  }

  /** A chart has points from `low` to `high`. */
  extend(low: number, high: number): void {
    if (this.isZoomed) return;
    const known = this.#known();
    if (known && known.low <= low && known.high >= high) return;
    this.#extent = {
      scope: this.#scope(),
      low: Math.min(known?.low ?? low, low),
      high: Math.max(known?.high ?? high, high),
    };
  }

  #known(): { low: number; high: number } | null {
    return this.#extent?.scope === this.#scope() ? this.#extent : null;
  }
}
