import { useEffect, useState } from "preact/hooks";
import type { Change, Completion, JobForecast, TrainsLike, WhatIf, WhatIfChoices } from "../api";
import { choose, chosen, told } from "../changes";
import { get, post, reason } from "../client";
import { duration, gpus, percent, sanitize, UNKNOWN } from "../format";
import { cluster, liveJobs, nodes } from "../live";
import { JobLink, PhaseBadge } from "../parts/job";
import { Field } from "../parts/submit";

/** Differences below this are none to people. */
const SAME_S = 1;

/** Both futures: the cluster left as it is, and with changes. */
export function WhatIfPage() {
  const { changes, problem } = chosen();
  const { answer, error, isBusy, again } = useAnswer(changes, problem === "");
  const add = (change: Change) => choose([...changes, change]);
  return (
    <div class="what-if">
      <div class="toolbar">
        <h1>What if</h1>
        <span class="soft" role="status">
          {isBusy && !answer
            ? "Both futures are being simulated, which takes up to 8 s…"
            : "The simulator plays the cluster on from now, with what jobs have told of themselves."}
        </span>
        <span class="top-gap" />
        <button type="button" disabled={isBusy || problem !== ""} onClick={again}>
          {isBusy ? "Simulating…" : "Ask again"}
        </button>
      </div>
      <Questions add={add} />
      <ul class="changes" aria-label="Changes">
        {changes.map((change, idx) => (
          <li key={JSON.stringify(change)} class="tag">
            {told(change)}
            <button
              type="button"
              class="more"
              aria-label={`without: ${told(change)}`}
              onClick={() => choose(changes.filter((_, other) => other !== idx))}
            >
              ×
            </button>
          </li>
        ))}
        {changes.length === 0 && !problem && (
          <li class="soft">Nothing is changed: this is where the cluster is heading.</li>
        )}
      </ul>
      {(problem || error) && (
        <p class="error" role="alert">
          {problem || error}
        </p>
      )}
      {answer && <Answer answer={answer} isSame={changes.length === 0} />}
    </div>
  );
}

interface Answered {
  asked: string;
  answer: WhatIf | null;
  error: string;
}

/** The answer to this question, and to no other; whoever asks another one does not wait for the first. */
function useAnswer(changes: Change[], isAsked: boolean) {
  const [answered, setAnswered] = useState<Answered | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [round, setRound] = useState(0);
  const asked = JSON.stringify(changes);
  useEffect(() => {
    if (!isAsked) return;
    const stop = new AbortController();
    const settle = (answer: WhatIf | null, error: string) => {
      if (stop.signal.aborted) return;
      setAnswered({ asked, answer, error });
      setBusy(false);
    };
    setBusy(true);
    post<WhatIf>("/v1/what-if", { changes: JSON.parse(asked) }, stop.signal).then(
      (told) => settle(told, ""),
      (problem) => settle(null, reason(problem)),
    );
    return () => stop.abort();
  }, [asked, isAsked, round]);
  const known = answered?.asked === asked ? answered : null;
  return { answer: known?.answer, error: known?.error, isBusy: isAsked && isBusy, again: () => setRound(round + 1) };
}

/** What changes may name, as the server knows it. */
function useChoices(): WhatIfChoices {
  const [choices, setChoices] = useState<WhatIfChoices>({ policies: [], applications: [] });
  useEffect(() => {
    const stop = new AbortController();
    get<WhatIfChoices>("/v1/what-if", stop.signal).then(setChoices, () => undefined);
    return () => stop.abort();
  }, []);
  return choices;
}

/** A form for each kind of change. */
function Questions({ add }: { add: (change: Change) => void }) {
  const jobs = [...liveJobs.value.values()];
  const { policies, applications } = useChoices();
  const others = policies.filter((name) => name !== cluster.value?.policy);
  const form = (title: string, make: (form: FormData) => Change | null, fields: preact.ComponentChildren) => (
    <form
      class="card form question"
      onSubmit={(event) => {
        event.preventDefault();
        const change = make(new FormData(event.currentTarget));
        if (change) add(change);
      }}
    >
      <h2>{title}</h2>
      {fields}
      <button type="submit">Add</button>
    </form>
  );
  return (
    <div class="questions">
      {form(
        "Submit a job",
        submission,
        <>
          <label>
            that trains like
            <select name="like">
              {jobs.map((job) => (
                <option key={job.id} value={`${job.id}`}>
                  {sanitize(job.name)} (job {job.id})
                </option>
              ))}
              {applications.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
          <div class="form-row">
            <Field name="most" label="GPUs at most" isNumber value="4" />
            <Field name="epochs" label="Epochs" isNumber hint="as it" />
          </div>
        </>,
      )}
      {form(
        "Add nodes",
        (given) => ({ add_nodes: { count: numberOf(given, "count") ?? 1, gpus: numberOf(given, "gpus") ?? 1 } }),
        <div class="form-row">
          <Field name="count" label="Nodes" isNumber value="2" isRequired />
          <Field name="gpus" label="GPUs each" isNumber value={`${nodes.value[0]?.gpus ?? 4}`} isRequired />
        </div>,
      )}
      {form(
        "Another policy",
        (given) => ({ policy: { name: `${given.get("name")}` } }),
        <label>
          decides
          <select name="name">
            {others.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>,
      )}
      {jobs.length > 0 &&
        form(
          "Without a job",
          (given) => {
            const job = Number(given.get("job"));
            return given.get("how") === "pause" ? { pause: { job } } : { cancel: { job } };
          },
          <>
            <label>
              job
              <select name="job">
                {jobs.map((job) => (
                  <option key={job.id} value={`${job.id}`}>
                    {sanitize(job.name)} ({job.id})
                  </option>
                ))}
              </select>
            </label>
            <label>
              is
              <select name="how">
                <option value="cancel">cancelled</option>
                <option value="pause">paused</option>
              </select>
            </label>
          </>,
        )}
      {form(
        "Without a node",
        (given) => ({ drain: { node: `${given.get("node")}` } }),
        <label>
          drained
          <select name="node">
            {nodes.value.map((node) => (
              <option key={node.name} value={node.name}>
                {sanitize(node.name)}
              </option>
            ))}
          </select>
        </label>,
      )}
    </div>
  );
}

function submission(form: FormData): Change {
  const like = `${form.get("like")}`;
  const trains_like: TrainsLike = /^\d+$/.test(like) ? { job: Number(like) } : { application: like };
  const [most, epochs] = [numberOf(form, "most"), numberOf(form, "epochs")];
  return {
    submit: {
      trains_like,
      ...(most === null ? {} : { replicas_max: most }),
      ...(epochs === null ? {} : { work: { epochs } }),
    },
  };
}

function numberOf(form: FormData, name: string): number | null {
  const text = `${form.get(name) ?? ""}`.trim();
  return text === "" ? null : Number(text);
}

function Answer({ answer, isSame }: { answer: WhatIf; isSame: boolean }) {
  const { average_completion_s: average, makespan_s: makespan, gpu_utilisation: used } = answer;
  const longest = Math.max(1, ...answer.jobs.flatMap(({ before, after }) => [before, after].map(seconds)));
  return (
    <>
      <dl class="tiles">
        <Pair name="Average time left" before={average?.before} after={average?.after} say={duration} isSame={isSame} />
        <Pair
          name="The last is done in"
          before={makespan.before}
          after={makespan.after}
          say={duration}
          isSame={isSame}
        />
        <Pair name="GPUs in use until then" before={used.before} after={used.after} say={percent} isSame={isSame} />
      </dl>
      <section class="card scroll" aria-label="Jobs in both futures">
        <table class="forecast">
          <thead>
            <tr>
              <th scope="col">Job</th>
              <th scope="col">Phase</th>
              <th scope="col" class="num">
                GPUs
              </th>
              <th scope="col" class="num">
                {isSame ? "Done in" : "As it is"}
              </th>
              {!isSame && (
                <>
                  <th scope="col" class="num">
                    Changed
                  </th>
                  <th scope="col" class="num">
                    Difference
                  </th>
                </>
              )}
              <th scope="col" class="forecast-bars">
                <span class="unseen">Compared</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {answer.jobs.map((job, idx) => (
              <Forecast key={job.id ?? `new-${idx}`} job={job} longest={longest} isSame={isSame} />
            ))}
          </tbody>
        </table>
        {answer.jobs.length === 0 && <p class="soft pad">There are no jobs.</p>}
      </section>
      {answer.notes.length > 0 && (
        <ul class="soft notes">
          {answer.notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
    </>
  );
}

interface PairProps {
  name: string;
  before: number | null | undefined;
  after: number | null | undefined;
  say: (value: number | null | undefined) => string;
  isSame: boolean;
}

function Pair({ name, before, after, say, isSame }: PairProps) {
  return (
    <div class="tile card">
      <dt>{name}</dt>
      <dd>
        <span class="tile-value">{say(after)}</span>
        <span class="soft">{isSame ? "if nothing changes" : `instead of ${say(before)}`}</span>
      </dd>
    </div>
  );
}

const seconds = ({ completion_s }: Completion) => completion_s ?? 0;

function Forecast({ job, longest, isSame }: { job: JobForecast; longest: number; isSame: boolean }) {
  const { before, after } = job;
  const gain =
    before.completion_s != null && after.completion_s != null ? after.completion_s - before.completion_s : null;
  const how = gain === null || Math.abs(gain) < SAME_S ? "" : gain < 0 ? "good" : "bad";
  const width = (completion: Completion) => ({ width: `${(100 * seconds(completion)) / longest}%` });
  return (
    <tr>
      <td>{job.id == null ? <b>{sanitize(job.name)}, new</b> : <JobLink id={job.id} name={job.name} />}</td>
      <td>{job.phase == null ? <span class="tag">what if</span> : <PhaseBadge phase={job.phase} />}</td>
      <td class="num">{job.replicas > 0 ? gpus(job) : UNKNOWN}</td>
      <When completion={before} />
      {!isSame && (
        <>
          <When completion={after} />
          <td class={`num ${how}`}>{difference(gain)}</td>
        </>
      )}
      <td class="forecast-bars" aria-hidden="true">
        <span class="before" style={width(before)} />
        {!isSame && <span class={`after ${how}`} style={width(after)} />}
      </td>
    </tr>
  );
}

function When({ completion }: { completion: Completion }) {
  if (completion.completion_s != null) return <td class="num">{duration(completion.completion_s)}</td>;
  return <td class="num soft why-not">{completion.why ?? UNKNOWN}</td>;
}

function difference(gain: number | null): string {
  if (gain === null) return UNKNOWN;
  if (Math.abs(gain) < SAME_S) return "same";
  return `${duration(Math.abs(gain))} ${gain < 0 ? "sooner" : "later"}`;
}
