// Numbers as people read them. What is unknown is a dash.

export const UNKNOWN = "–";

type Maybe = number | null | undefined;

/** At most four digits: 0.42, 7.35, 812, 14.2k. */
export function number(value: Maybe): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function whole(value: Maybe): string {
  return value === null || value === undefined ? UNKNOWN : value.toLocaleString("en-GB");
}

export function percent(part: Maybe, digits = 0): string {
  return part === null || part === undefined ? UNKNOWN : `${(part * 100).toFixed(digits)}%`;
}

export function change(part: number): string {
  const digits = Math.abs(part) < 0.1 ? 1 : 0;
  return `${part < 0 ? "−" : "+"}${(Math.abs(part) * 100).toFixed(digits)}%`;
}

export function times(ratio: Maybe): string {
  return ratio === null || ratio === undefined ? UNKNOWN : `${ratio.toFixed(2)}×`;
}

/** Two units at most: 42 s, 3 m 20 s, 5 h 07 m, 2 d 4 h. */
export function duration(seconds: Maybe): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return UNKNOWN;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3_600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
  if (s < 86_400) return `${Math.floor(s / 3_600)} h ${two(Math.floor((s % 3_600) / 60))} m`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3_600)} h`;
}

const two = (value: number) => `${value}`.padStart(2, "0");

/** Time of day, with the date if that is another one. */
export function moment(ms: Maybe): string {
  if (ms === null || ms === undefined) return UNKNOWN;
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** Names and sentences of others, without what would turn around the text after them. */
export function sanitize(text: string): string {
  return text.replaceAll(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** GPUs of a group: replicas have several where they asked for that. */
export function gpus(job: { replicas: number; gpus_per_replica?: number }): number {
  return job.replicas * (job.gpus_per_replica ?? 1);
}

export function plural(count: number, thing: string): string {
  return `${whole(count)} ${thing}${count === 1 ? "" : "s"}`;
}
