/** The current route, kept in the URL's hash. */

import type { CompareView } from "./model/compare-view";
import { type ChartView, format, parse, type Route } from "./model/route";

class Router {
  route = $state<Route>(parse(location.hash));

  constructor() {
    addEventListener("hashchange", () => (this.route = parse(location.hash)));
  }

  /** Go to a route and add it to the history. */
  navigate(route: Route): void {
    location.hash = format(route);
  }

  /** Change the route without adding to the history, as sliders and search fields do. */
  replace(route: Route): void {
    history.replaceState(null, "", format(route));
    this.route = route;
  }

  replaceCompareView(change: Partial<CompareView>): void {
    if (this.route.page === "compare") this.replace({ ...this.route, view: { ...this.route.view, ...change } });
  }

  replaceView(change: Partial<ChartView>): void {
    if (this.route.page === "run") this.replace({ ...this.route, view: { ...this.route.view, ...change } });
  }
}

export const router = new Router();
