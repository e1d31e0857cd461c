// The page is in the fragment of the address, with its filters, so that a reload or a link shows the same.

import { signal } from "@preact/signals";

export interface Route {
  page: string;
  argument: string;
  query: URLSearchParams;
}

export const route = signal<Route>(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page = "", argument = ""] = path.split("/");
  return { page: page || "cluster", argument, query: new URLSearchParams(query) };
}

/** Changes filters of this page without another entry in the history. */
export function refine(changes: Record<string, string>): void {
  const { page, argument, query } = route.value;
  const refined = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "") refined.delete(name);
    else refined.set(name, value);
  }
  const text = refined.toString();
  const hash = `#/${page}${argument ? `/${argument}` : ""}${text ? `?${text}` : ""}`;
  history.replaceState(null, "", hash);
  route.value = parse(hash);
}
