export function types(document: object): string;
