import type { Event } from "../api";
import { moment, sanitize } from "../format";
import { endedJobs, liveJobs } from "../live";
import { JobLink } from "./job";

/** What happened, the newest first. */
export function EventList({ events, isOfOneJob }: { events: readonly Event[]; isOfOneJob?: boolean }) {
  if (events.length === 0) return <p class="soft pad">Nothing has happened yet.</p>;
  return (
    <ol class="events" tabIndex={0} aria-label="Events">
      {events.map((event) => (
        <li key={event.sequence}>
          <time>{moment(event.at_ms)}</time>
          {!isOfOneJob && event.job != null && <JobLink id={event.job} name={nameOf(event.job)} />}
          <span class="event-text">{sanitize(event.text)}</span>
        </li>
      ))}
    </ol>
  );
}

function nameOf(id: number): string {
  return (liveJobs.value.get(id) ?? endedJobs.value.get(id))?.name ?? `job ${id}`;
}
