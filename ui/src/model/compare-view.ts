/** The view of the compare page, as the address holds it. */

export const compareTabs = ["charts", "differences", "sweep", "verdict"] as const;
export type CompareTab = (typeof compareTabs)[number];

export interface CompareView {
  search: string;
}

export const defaultCompareView: CompareView = { search: "" };

export function readCompareView(parameters: URLSearchParams): CompareView {
  return { search: parameters.get("q") ?? "" };
}

export function writeCompareView(view: CompareView, parameters: URLSearchParams): void {
  if (view.search) parameters.set("q", view.search);
}
