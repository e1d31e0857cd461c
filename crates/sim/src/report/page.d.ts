// What the dashboard draws reports with.

/** Draws the data of a report into an element. */
export function drawPage(data: unknown, page: HTMLElement): void;
