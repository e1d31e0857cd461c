import { useEffect, useMemo, useState } from "preact/hooks";
import type { ClusterSeries, PlanStatus } from "../api";
import { get, reason } from "../client";
import { coalesced } from "../coalesced";
import { duration, moment, number, percent, times, whole } from "../format";
import { cluster, connection, events, heldBack, isLoaded, looks, nodes, now, plan } from "../live";
import { Chart } from "../parts/chart";
import { EventList } from "../parts/events";
import { GpuGrid, HeldBack, Holders } from "../parts/gpu-grid";
import { JobLink } from "../parts/job";
import { Panel } from "../parts/panel";
import { refine, route } from "../router";

const SPANS = [
  ["600", "10 min"],
  ["7200", "2 h"],
  ["86400", "1 day"],
  ["1209600", "2 weeks"],
] as const;

/** What the cluster does, and why. */
export function ClusterPage() {
  const { series, error } = useSeries();
  if (!isLoaded.value) return <p class="soft pad">Loading…</p>;
  return (
    <div class="cluster">
      <h1 class="unseen">Cluster</h1>
      <Tiles series={series} />
      <div class="columns">
        <Panel title="GPUs by job">
          {nodes.value.length > 0 ? <GpuGrid nodes={nodes.value} /> : <p class="soft pad">No node is up yet.</p>}
          <Holders nodes={nodes.value} />
          <HeldBack nodes={heldBack.value} />
        </Panel>
        <Panel title="Last plan">{plan.value && <Plan plan={plan.value} />}</Panel>
      </div>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <Curves series={series} />
      <Panel title="Events">
        <EventList events={events.value.slice(0, 100)} />
      </Panel>
    </div>
  );
}

/** The curves of the chosen span, asked for again as time goes on. */
function useSeries() {
  const [series, setSeries] = useState<ClusterSeries | null>(null);
  const [error, setError] = useState("");
  const span = route.value.query.get("span") ?? "600";
  useEffect(() => {
    const stop = new AbortController();
    const look = coalesced(async () => {
      try {
        setSeries(await get<ClusterSeries>(`/v1/cluster/series?span_s=${span}`, stop.signal));
        setError("");
      } catch (problem) {
        if (!stop.signal.aborted && connection.value === "live") setError(reason(problem));
      }
    });
    let count = 0;
    // Two weeks do not change in two seconds.
    const leave = looks.subscribe(() => {
      if (count++ % (span === "600" ? 1 : 10) === 0) void look();
    });
    return () => {
      stop.abort();
      leave();
    };
  }, [span]);
  return { series, error };
}

function Tiles({ series }: { series: ClusterSeries | null }) {
  const status = cluster.value;
  if (!status) return null;
  const { jobs } = status;
  const training = (jobs.running ?? 0) + (jobs.resizing ?? 0) + (jobs.starting ?? 0);
  const worst = series?.unfairness_worst.at(-1);
  return (
    <dl class="tiles">
      <Tile name="GPUs in use" value={`${whole(status.gpus_held)} / ${whole(status.gpus)}`}>
        {percent(status.gpus > 0 ? status.gpus_held / status.gpus : 0)} utilised
      </Tile>
      <Tile name="Goodput" value={number(status.goodput)}>
        useful samples/s
      </Tile>
      <Tile name="Efficiency" value={percent(series?.efficiency.at(-1))}>
        progress per sample
      </Tile>
      <Tile name="Training" value={whole(training)}>
        {whole(jobs.paused ?? 0)} paused
      </Tile>
      <Tile name="Queue" value={whole(jobs.queued ?? 0)}>
        waiting for GPUs
      </Tile>
      <Tile name="Worst finish time" value={times(worst)}>
        against an equal share
      </Tile>
    </dl>
  );
}

function Tile(props: { name: string; value: string; children: preact.ComponentChildren }) {
  return (
    <div class="tile card">
      <dt>{props.name}</dt>
      <dd>
        <span class="tile-value">{props.value}</span>
        <span class="soft">{props.children}</span>
      </dd>
    </div>
  );
}

function Plan({ plan }: { plan: PlanStatus }) {
  if (plan.at_ms == null) return <p class="soft pad">No plan yet: one is made when a job comes.</p>;
  const ago = (ms: number) => duration((now.value - ms) / 1_000);
  const changes = plan.changed_ms != null && plan.changes.length > 0 && <Changes plan={plan} at={plan.changed_ms} />;
  const isNew = plan.changed_ms === plan.at_ms;
  return (
    <div class="plan">
      <p class="soft">
        Made {ago(plan.at_ms)} ago
        {plan.next_round_ms != null && `, the next in ${duration((plan.next_round_ms - now.value) / 1_000)}`}.{" "}
        {bound(plan)}
      </p>
      {isNew && changes}
      {plan.kept.length > 0 && (
        <>
          <h3>Left as they are</h3>
          <ul class="plan-rows">
            {plan.kept.map((one) => (
              <li key={one.id}>
                <JobLink id={one.id} name={one.name} />
                <span class="plan-size">{one.gpus}</span>
                <span class="plan-why">{one.text}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      {!isNew && changes}
    </div>
  );
}

/** How much better any plan could be: the bound is what GPUs that are cut at will would give, which none are. */
function bound({ objective, upper_bound: most }: PlanStatus): string {
  if (!objective || !most) return "";
  const ratio = most / objective;
  return ratio < 1.005 ? "This plan is the best possible." : `Within ${percent(ratio - 1)} of the theoretical best.`;
}

function Changes({ plan, at }: { plan: PlanStatus; at: number }) {
  return (
    <>
      <h3>
        {at === plan.at_ms ? "Changed" : "Last change"} <span class="soft">at {moment(at)}</span>
      </h3>
      <ul class="plan-rows">
        {plan.changes.map((one) => (
          <li key={one.id}>
            <JobLink id={one.id} name={one.name} />
            <span class="plan-size">
              {one.from} → {one.to}
            </span>
            <span class={`plan-why ${(one.goodput_change ?? 0) > 0 ? "good" : ""}`}>{one.text}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

function Curves({ series }: { series: ClusterSeries | null }) {
  const span = route.value.query.get("span") ?? "600";
  const data = useMemo(() => {
    if (!series) return null;
    const at = series.at_ms.map((ms) => ms / 1_000);
    const end = at.at(-1) ?? 0;
    const range = [Math.max(at[0] ?? 0, end - Number(span)), end] as const;
    return {
      at,
      range,
      used: [
        {
          label: "used",
          colour: "--accent",
          values: series.gpus_held.map((held, idx) => share(held, series.gpus[idx])),
          isFilled: true,
          isStepped: true,
        },
      ],
      goodput: [{ label: "goodput", colour: "--accent", values: series.goodput, isFilled: true }],
      efficiency: [{ label: "efficiency", colour: "--accent", values: series.efficiency, isFilled: true }],
      queue: [
        { label: "queued", colour: "--accent", values: series.queued, isStepped: true, isFilled: true },
        { label: "training", colour: "--soft", values: series.running, isStepped: true },
      ],
      fairness: [
        { label: "worst", colour: "--accent", values: series.unfairness_worst },
        { label: "average", colour: "--soft", values: series.unfairness_average },
        { label: "fair", colour: "--mark", values: at.map(() => 1), isRuler: true },
      ],
    };
  }, [series, span]);
  return (
    <Panel
      title="Over time"
      beside={
        <div class="choice" role="group" aria-label="Span">
          {SPANS.map(([value, title]) => (
            <button
              key={value}
              type="button"
              aria-pressed={value === span}
              onClick={() => refine({ span: value === "600" ? "" : value })}
            >
              {title}
            </button>
          ))}
        </div>
      }
    >
      {data && (
        <div class="charts charts-small">
          <Chart
            title="Utilisation"
            at={data.at}
            range={data.range}
            lines={data.used}
            say={(part) => percent(part)}
            max={1.02}
            sync="cluster"
          />
          <Chart
            title="Goodput, samples/s"
            at={data.at}
            range={data.range}
            lines={data.goodput}
            say={number}
            sync="cluster"
          />
          <Chart
            title="Efficiency"
            at={data.at}
            range={data.range}
            lines={data.efficiency}
            say={(part) => percent(part)}
            max={1.02}
            sync="cluster"
          />
          <Chart
            title="Jobs"
            at={data.at}
            range={data.range}
            lines={data.queue}
            say={(count) => number(count)}
            sync="cluster"
          />
          <Chart
            title="Finish time vs share"
            at={data.at}
            range={data.range}
            lines={data.fairness}
            say={times}
            sync="cluster"
          />
        </div>
      )}
    </Panel>
  );
}

function share(part: number, all: number | undefined): number | null {
  return all ? part / all : null;
}
