/** As many as can be told apart; `style/tokens.css` says which. */
const COLOURS = 12;

/** A job has the same colour wherever it is shown. */
export function jobColour(id: number): string {
  return `var(--j${id % COLOURS})`;
}

export function jobColourName(id: number): string {
  return `--j${id % COLOURS}`;
}
