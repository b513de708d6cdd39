/** Every request to the server, in one file. Answers are JSON; refusals become a `Problem` with words for people. */

const BASE = "/api/v1";

/** Why a request failed. `status` 0: the server could not be reached. */
export class Problem extends Error {
  constructor({ status = 0, title, detail, type = "", ...rest }) {
    super(detail || title || `the server answered ${status}`);
    this.name = "Problem";
    this.status = status;
    this.title = title || (status ? `Status ${status}` : "No connection");
    this.detail = detail || "";
    this.type = type;
    this.suggestions = rest.suggestions ?? [];
    this.field = rest.field ?? null;
    this.seen = rest.seen;
    this.expected = rest.expected;
  }
}

/** Called when a request is refused for want of a token. Set by app.js. */
export const onUnauthorized = { call: () => {} };

async function request(method, path, { body, signal } = {}) {
  let response;
  try {
    response = await fetch(BASE + path, {
      method,
      signal,
      credentials: "same-origin",
      headers: body === undefined ? { Accept: "application/json" } : { Accept: "application/json", "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "The server does not answer", detail: `${location.host} could not be reached. Is vramscope server still running?` });
  }
  if (response.status === 204) return null;
  const isJson = (response.headers.get("Content-Type") ?? "").includes("json");
  const answer = isJson ? await response.json() : null;
  if (response.ok) return answer;
  const problem = new Problem({ ...(answer ?? {}), status: response.status, title: answer?.title ?? response.statusText });
  if (response.status === 401) onUnauthorized.call();
  throw problem;
}

/** `{a: 1, b: null}` -> "?a=1". */
export function queryString(parameters = {}) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value === null || value === undefined || value === "") continue;
    search.set(key, String(value));
  }
  const text = search.toString();
  return text ? `?${text}` : "";
}

const at = encodeURIComponent;

export const api = {
  runs: (parameters, signal) => request("GET", `/runs${queryString(parameters)}`, { signal }),
  run: (run, signal) => request("GET", `/runs/${at(run)}`, { signal }),
  changeRun: (run, patch) => request("PATCH", `/runs/${at(run)}`, { body: patch }),
  deleteRun: (run) => request("DELETE", `/runs/${at(run)}`),
  series: (run, parameters, signal) => request("GET", `/runs/${at(run)}/series${queryString(parameters)}`, { signal }),
  steps: (run, parameters, signal) => request("GET", `/runs/${at(run)}/steps${queryString(parameters)}`, { signal }),
  leaks: (run, parameters, signal) => request("GET", `/runs/${at(run)}/leaks${queryString(parameters)}`, { signal }),
  recordings: (run, signal) => request("GET", `/runs/${at(run)}/recordings`, { signal }),
  askForRecording: (run, parameters) => request("POST", `/runs/${at(run)}/recordings${queryString(parameters)}`),
  deleteRecording: (recording) => request("DELETE", `/recordings/${at(recording)}`),
  recording: (recording, part, parameters, signal) => request("GET", `/recordings/${at(recording)}/${part}${queryString(parameters)}`, { signal }),
  askWhatIf: (recording, question, signal) => request("POST", `/recordings/${at(recording)}/whatif`, { body: question, signal }),
  whatIf: (recording, job, signal) => request("GET", `/recordings/${at(recording)}/whatif/${at(job)}`, { signal }),
  figure: (run, name, parameters, signal) => request("GET", `/runs/${at(run)}/figures/${at(name)}${queryString(parameters)}`, { signal }),
  compare: (parameters, signal) => request("GET", `/compare${queryString(parameters)}`, { signal }),
  compareFigure: (name, parameters, signal) => request("GET", `/compare/figures/${at(name)}${queryString(parameters)}`, { signal }),
  predictions: (parameters, signal) => request("GET", `/compare/predictions${queryString(parameters)}`, { signal }),
  delta: (parameters, signal) => request("GET", `/live/delta${queryString(parameters)}`, { signal }),
  session: () => request("GET", "/session"),
  signIn: (token) => request("POST", "/session", { body: { token } }),
  signOut: () => request("DELETE", "/session"),
  server: (signal) => request("GET", "/server", { signal }),
  tokens: () => request("GET", "/tokens"),
  createToken: (name, scopes) => request("POST", "/tokens", { body: { name, scopes } }),
  revokeToken: (id) => request("DELETE", `/tokens/${at(id)}`),
};

/** Where server-sent events come from. */
export const liveUrl = (parameters) => `${BASE}/live${queryString(parameters)}`;
