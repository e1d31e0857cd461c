import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { reason } from "../client";

interface Question {
  title: string;
  text: string;
  verb: string;
  isDangerous?: boolean;
  act: () => Promise<unknown>;
}

const question = signal<Question | null>(null);

/** Asks before something is done. */
export function confirm(asked: Question): void {
  question.value = asked;
}

/** Where questions are asked. */
export function Questions() {
  const asked = question.value;
  const close = () => {
    question.value = null;
  };
  return (
    asked && (
      <Dialog key={asked.title} {...asked} keep="Keep as it is" close={close}>
        <p>{asked.text}</p>
      </Dialog>
    )
  );
}

interface Props {
  title: string;
  /** What the button says that does nothing. */
  keep: string;
  verb: string;
  isDangerous?: boolean;
  /** Done once, however often it is asked for; what is refused is said here. */
  act: (form: FormData) => Promise<unknown>;
  close: () => void;
  children: ComponentChildren;
}

/** A window above the page that keeps the keyboard until it is closed, and then gives it back. */
export function Dialog({ title, keep, verb, isDangerous, act, close, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const isBusy = useSignal(false);
  const [error, setError] = useState("");
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      const back = before?.isConnected ? before : document.getElementById("content");
      if (back instanceof HTMLElement) requestAnimationFrame(() => back.focus());
    };
  }, []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    if (isBusy.value) return;
    isBusy.value = true;
    setError("");
    try {
      await act(new FormData(event.currentTarget as HTMLFormElement));
      close();
    } catch (refusal) {
      isBusy.value = false;
      setError(reason(refusal));
    }
  };
  return (
    <dialog ref={dialog} aria-labelledby="dialog-title" onClose={close}>
      <h2 id="dialog-title">{title}</h2>
      <form class="form" onSubmit={submit} autocomplete="off">
        {children}
        {error && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
        <div class="dialog-actions">
          <button type="button" onClick={close}>
            {keep}
          </button>
          <button type="submit" class={isDangerous ? "danger" : "primary"} disabled={isBusy.value}>
            {isBusy.value ? "Asking…" : verb}
          </button>
        </div>
      </form>
    </dialog>
  );
}
