import { useMemo } from "preact/hooks";
import type { JobSeries } from "../api";
import { number, percent, times } from "../format";
import { Chart, type Line } from "./chart";
import { Panel } from "./panel";

/** A job over its life, its resizes marked. */
export function JobCurves({ series, gpusPerReplica }: { series: JobSeries; gpusPerReplica: number }) {
  const drawn = useMemo(() => curves(series, gpusPerReplica), [series, gpusPerReplica]);
  const { at, marks, lines } = drawn;
  return (
    <Panel title="Over its life" beside={<span class="soft">dashed lines mark changes of its GPUs</span>}>
      {at.length === 0 ? (
        <p class="soft pad">No data: the job has not had GPUs yet, or it finished long ago.</p>
      ) : (
        <div class="charts">
          <Chart title="GPUs" at={at} marks={marks} lines={lines.gpus} say={number} sync="job" />
          <Chart title="Batch size" at={at} marks={marks} lines={lines.batch} say={number} sync="job" />
          <Chart title="Learning-rate factor" at={at} marks={marks} lines={lines.rate} say={times} sync="job" />
          <Chart title="Samples/s" at={at} marks={marks} lines={lines.speed} say={number} sync="job" />
          <Chart
            title="Statistical efficiency"
            at={at}
            marks={marks}
            lines={lines.efficiency}
            say={(part) => percent(part)}
            max={1.02}
            sync="job"
          />
          <Chart title="Gradient noise scale" at={at} marks={marks} lines={lines.noise} say={number} sync="job" />
        </div>
      )}
    </Panel>
  );
}

function curves(series: JobSeries, gpusPerReplica: number) {
  const at = series.at_ms.map((ms) => ms / 1_000);
  const marks = at.filter((_, idx) => idx > 0 && series.replicas[idx] !== series.replicas[idx - 1]);
  const held = series.replicas.map((replicas) => replicas * gpusPerReplica);
  const one = (label: string, values: Line["values"], isStepped = false): Line[] => [
    { label, colour: "--accent", values, isStepped, isFilled: true },
  ];
  const speed: Line[] = [
    { label: "throughput", colour: "--soft", values: series.samples_per_s },
    { label: "goodput", colour: "--accent", values: series.goodput, isFilled: true },
  ];
  return {
    at,
    marks,
    lines: {
      gpus: one("GPUs", held, true),
      batch: one("batch", series.batch_size, true),
      rate: one("factor", series.learning_rate_factor),
      speed,
      efficiency: one("efficiency", series.efficiency),
      noise: one("noise scale", series.noise_scale),
    },
  };
}
