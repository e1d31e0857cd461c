import type { Explanation, JobDetail, SizeOutlook } from "../api";
import { number, plural } from "../format";

const [WIDTH, HEIGHT] = [520, 236];
const EDGE = { left: 46, right: 14, top: 14, bottom: 30 };

type Size = SizeOutlook & { gpus: number };

/** What a job would do on other numbers of GPUs: where it is, what it may have, and how far its model was measured. */
export function GoodputCurve({ explanation, job }: { explanation: Explanation; job: JobDetail }) {
  const each = explanation.gpus_per_replica ?? 1;
  const sizes = explanation.sizes
    .filter((size) => size.goodput > 0)
    .map((size) => ({ ...size, gpus: size.replicas * each }));
  if (sizes.length === 0) {
    return <p class="soft pad">No model yet: it appears once the job has trained for a while.</p>;
  }
  const most = Math.max(...sizes.map((size) => size.gpus));
  const top = Math.max(...sizes.map((size) => size.goodput)) * 1.1;
  const x = (gpus: number) => EDGE.left + ((gpus - 0.5) / most) * (WIDTH - EDGE.left - EDGE.right);
  const y = (goodput: number) => HEIGHT - EDGE.bottom - (goodput / top) * (HEIGHT - EDGE.top - EDGE.bottom);
  const line = (some: Size[]) =>
    some.map((size) => `${x(size.gpus).toFixed(1)},${y(size.goodput).toFixed(1)}`).join(" ");
  const measured = sizes.filter((size) => size.is_measured);
  const beyond = sizes.slice(Math.max(0, measured.length - 1));
  const current = sizes.find((size) => size.replicas === explanation.replicas);
  const profiled = job.replicas_profiled;
  const share = explanation.fair_share;
  return (
    <figure class="goodput">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={told(sizes, current)}>
        {ticks(top).map((value) => (
          <g key={value}>
            <line class="gridline" x1={EDGE.left} x2={WIDTH - EDGE.right} y1={y(value)} y2={y(value)} />
            <text x={EDGE.left - 6} y={y(value) + 4} text-anchor="end">
              {number(value)}
            </text>
          </g>
        ))}
        {labels(sizes).map((gpus) => (
          <text key={gpus} x={x(gpus)} y={HEIGHT - 10} text-anchor="middle">
            {gpus}
          </text>
        ))}
        {share != null && share <= most + 0.5 && (
          <line
            class="share"
            x1={x(Math.max(share, 0.5))}
            x2={x(Math.max(share, 0.5))}
            y1={EDGE.top}
            y2={HEIGHT - EDGE.bottom}
          />
        )}
        <polyline class="beyond" points={line(beyond)} />
        <polyline class="measured" points={line(measured)} />
        {sizes.map((size) => (
          <circle
            key={size.replicas}
            class={size.is_measured ? "point" : "point point-beyond"}
            cx={x(size.gpus)}
            cy={y(size.goodput)}
            r="3"
          >
            <title>{`${plural(size.gpus, "GPU")}: goodput ${number(size.goodput)}, batch ${size.batch_size}`}</title>
          </circle>
        ))}
        {current && <circle class="current" cx={x(current.gpus)} cy={y(current.goodput)} r="6.5" />}
      </svg>
      <figcaption>
        {current && (
          <span>
            <i class="dot ring" /> now, {plural(current.gpus, "GPU")}
          </span>
        )}
        <span>
          <i class="dash" /> measured{profiled != null && ` up to ${profiled * each}`}, dashed beyond
        </span>
        {share != null && (
          <span>
            <i class="bar" /> equal share
          </span>
        )}
        <span>
          may have {(job.spec.replicas_min ?? 1) * each} to{" "}
          {job.spec.replicas_max == null ? "any" : job.spec.replicas_max * each}
        </span>
      </figcaption>
    </figure>
  );
}

function told(sizes: Size[], current: Size | undefined): string {
  const best = sizes.reduce((a, b) => (b.goodput > a.goodput ? b : a));
  const now = current ? `${number(current.goodput)} on the ${plural(current.gpus, "GPU")} it has` : "none now";
  return `Predicted goodput: ${now}; at most ${number(best.goodput)}, on ${plural(best.gpus, "GPU")}`;
}

function ticks(top: number): number[] {
  const raw = top / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((value) => value >= raw) ?? raw;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, idx) => idx * step);
}

/** As many numbers as there is room for. */
function labels(sizes: Size[]): number[] {
  const every = Math.ceil(sizes.length / 16);
  return sizes.filter((_, idx) => idx % every === 0).map((size) => size.gpus);
}
