import { useState } from "preact/hooks";
import { complaint, reason } from "../client";
import { logIn } from "../session";

/** Asks for a token, and tries it. */
export function LoginPage() {
  const [error, setError] = useState("");
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const given = `${form.get("token")}`.trim();
    try {
      const response = await fetch("/v1/cluster", { headers: { authorization: `Bearer ${given}` }, cache: "no-store" });
      const isStranger = response.status === 401 || response.status === 403;
      if (response.ok) logIn(given);
      else if (isStranger) setError("This token opens nothing here. `pollux token` prints one that does.");
      else setError(await complaint(response));
    } catch (problem) {
      setError(reason(problem));
    }
  };
  return (
    <main class="login">
      <form class="card" onSubmit={submit} autocomplete="off">
        <h1>Pollux</h1>
        <label for="token">Token</label>
        <input id="token" name="token" type="password" required spellcheck={false} autocomplete="off" />
        {error && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
        <button type="submit" class="primary">
          Log in
        </button>
        <p class="soft">
          <code>pollux token</code> prints it on the machine that schedules; <code>pollux dashboard</code> prints a link
          that needs none. It stays in this tab.
        </p>
      </form>
    </main>
  );
}
