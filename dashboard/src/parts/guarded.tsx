import type { ComponentChildren } from "preact";
import { useErrorBoundary } from "preact/hooks";

/** A page, or a line and a way back if it cannot be drawn. */
export function Guarded({ children }: { children: ComponentChildren }) {
  const [error, forget] = useErrorBoundary();
  if (!error) return <>{children}</>;
  const leave = () => {
    location.hash = "#/cluster";
    forget();
  };
  return (
    <div class="empty">
      <h1>This page cannot be shown</h1>
      <p class="error" role="alert">
        {String(error)}
      </p>
      <p>
        <button type="button" onClick={leave}>
          To the cluster
        </button>
      </p>
    </div>
  );
}
