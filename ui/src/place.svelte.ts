/** Where the user is: the address bar, as state. */

import { type ChartView, format, parse, type Route } from "./model/route";

class Place {
  route = $state<Route>(parse(location.hash));

  constructor() {
    addEventListener("hashchange", () => (this.route = parse(location.hash)));
  }

  go(route: Route): void {
    location.hash = format(route);
  }

  /** Change the address without a step in the history: for sliders and searches. */
  adjust(route: Route): void {
    history.replaceState(null, "", format(route));
    this.route = route;
  }

  adjustView(change: Partial<ChartView>): void {
    if (this.route.page === "run") this.adjust({ ...this.route, view: { ...this.route.view, ...change } });
  }
}

export const place = new Place();
