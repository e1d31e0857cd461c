import type { Flexibility, Job, JobSpec } from "../api";
import { post } from "../client";
import { words } from "../words";
import { Dialog } from "./dialog";

/** Asks for what a job needs, and hands it in. */
export function SubmitDialog({ close }: { close: () => void }) {
  const submit = async (form: FormData) => {
    const job = await post<Job>("/v1/jobs", spec(form));
    if (job) location.hash = `#/jobs/${job.id}`;
  };
  return (
    <Dialog title="Submit a job" keep="Close" verb="Submit" act={submit} close={close}>
      <Field name="command" label="Command" hint="program and arguments, quoted as in a shell" isRequired />
      <Field name="working_dir" label="Folder" hint="where it starts; absolute" isRequired />
      <Field name="name" label="Name" hint="the program’s, if left out" />
      <div class="form-row">
        <Field name="replicas" label="GPUs to begin with" isNumber value="1" />
        <Field name="replicas_min" label="at least" isNumber value="1" />
        <Field name="replicas_max" label="at most" isNumber />
      </div>
      <div class="form-row">
        <Field name="epochs" label="Epochs" isNumber hint="makes predictions possible" />
        <Field name="priority" label="Priority" isNumber value="0" />
        <label>
          Flexibility
          <select name="flexibility">
            <option value="elastic">elastic</option>
            <option value="non_preemptible">keeps its GPUs</option>
            <option value="rigid">rigid</option>
          </select>
        </label>
      </div>
      <label>
        Variables
        <textarea name="env" rows={2} placeholder="NAME=value, one per line" spellcheck={false} />
      </label>
    </Dialog>
  );
}

interface FieldProps {
  name: string;
  label: string;
  hint?: string;
  isNumber?: boolean;
  value?: string;
  isRequired?: boolean;
}

export function Field({ name, label, hint = "", isNumber, value = "", isRequired = false }: FieldProps) {
  return (
    <label>
      {label}
      <input
        type="text"
        name={name}
        placeholder={hint}
        required={isRequired}
        spellcheck={false}
        defaultValue={value}
        inputMode={isNumber ? "numeric" : "text"}
        {...(isNumber ? { pattern: "-?[0-9]*" } : {})}
      />
    </label>
  );
}

function spec(form: FormData): JobSpec {
  const text = (name: string) => `${form.get(name) ?? ""}`.trim();
  const whole = (name: string) => (text(name) === "" ? undefined : Number(text(name)));
  const asked: JobSpec = {
    command: words(text("command")),
    working_dir: text("working_dir"),
    flexibility: text("flexibility") as Flexibility,
    replicas: whole("replicas") ?? 1,
    replicas_min: whole("replicas_min") ?? 1,
    priority: whole("priority") ?? 0,
  };
  const [name, most, epochs] = [text("name"), whole("replicas_max"), whole("epochs")];
  if (name) asked.name = name;
  if (most !== undefined) asked.replicas_max = most;
  if (epochs !== undefined) asked.work = { epochs };
  const lines = text("env")
    .split("\n")
    .filter((line) => line.trim() !== "");
  if (lines.length > 0) asked.env = Object.fromEntries(lines.map(variable));
  return asked;
}

function variable(line: string): [string, string] {
  const [name = "", ...value] = line.split("=");
  return [name.trim(), value.join("=")];
}
