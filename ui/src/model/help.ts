/** Which page of the documentation explains a page of the dashboard. */

import type { Route, Tab } from "./route";

const pages: Partial<Record<Tab, string>> = {
  timeline: "spans",
  health: "diagnosis",
  events: "journal",
  completions: "completions",
  control: "control",
};

export function helpAddress(route: Route): string {
  if (route.page === "runs") return "help/runs";
  return `help/${pages[route.tab] ?? "dashboard"}`;
}
