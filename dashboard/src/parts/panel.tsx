import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

/** A part of a page under a title; `beside` stands next to that. */
export function Panel(props: { title: string; beside?: ComponentChildren; children: ComponentChildren }) {
  const id = useId();
  return (
    <section class="card" aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>{props.title}</h2>
        {props.beside}
      </div>
      {props.children}
    </section>
  );
}
