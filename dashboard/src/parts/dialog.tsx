import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
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
  return asked && <Confirmation key={asked.title} asked={asked} close={close} />;
}

function Confirmation({ asked, close }: { asked: Question; close: () => void }) {
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const act = async () => {
    setBusy(true);
    try {
      await asked.act();
      close();
    } catch (refusal) {
      setError(reason(refusal));
      setBusy(false);
    }
  };
  return (
    <Dialog title={asked.title} close={close}>
      <p>{asked.text}</p>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <div class="dialog-actions">
        <button type="button" onClick={close}>
          Keep as it is
        </button>
        <button type="button" class={asked.isDangerous ? "danger" : "primary"} disabled={isBusy} onClick={act}>
          {asked.verb}
        </button>
      </div>
    </Dialog>
  );
}

/** A window above the page that keeps the keyboard until it is closed. */
export function Dialog(props: { title: string; close: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-labelledby="dialog-title" onClose={props.close}>
      <h2 id="dialog-title">{props.title}</h2>
      {props.children}
    </dialog>
  );
}
