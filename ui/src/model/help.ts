/** Which page of the documentation explains a page of the dashboard. */

import type { Route, Tab } from "./route";

const pages: Partial<Record<Tab, string>> = {
  timeline: "spans",
  health: "diagnosis",
  log: "zero_code",
  events: "journal",
  completions: "completions",
  control: "control",
};

export function helpAddress(route: Route): string {
  if (route.page === "compare") return "help/comparing";
  if (route.page === "workspace") return "help/dashboard";
  if (route.page !== "run") return "help/runs";
  return `help/${pages[route.tab] ?? "dashboard"}`;
}
