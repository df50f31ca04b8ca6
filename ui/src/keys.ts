/** Whether a key is meant for the page: not for a field, a dialog or the browser. */
export function isForThePage(event: KeyboardEvent): boolean {
  const at = event.target as HTMLElement;
  const isTyped = at.matches("input:not([type=checkbox]):not([type=range]), select, textarea");
  return (
    !isTyped && !event.ctrlKey && !event.metaKey && !event.altKey && document.querySelector("dialog[open]") === null
  );
}
