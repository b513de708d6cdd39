/**
 * All requests to the server. Answers are JSON or text. A refused request throws a `Problem` with a message for people.
 */

const BASE = "/api/v1";

/** Reason why a request failed. `status` is 0 if the server could not be reached. */
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

/** Called when a request needs a token. Set by frame.js. */
export const onUnauthorized = { call: () => {} };
/** Called with the promise of each request for a recording. Set by frame.js. */
export const onRecordingRequest = { call: () => {} };

/** `body` is sent as JSON; `bytes`, a Blob, as it is. */
async function request(method, path, { body, bytes, signal } = {}) {
  const kind = bytes ? "application/octet-stream" : body === undefined ? null : "application/json";
  let response;
  try {
    response = await fetch(BASE + path, {
      method,
      signal,
      credentials: "same-origin",
      headers: { Accept: "application/json", ...(kind && { "Content-Type": kind }) },
      body: bytes ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "The server does not answer",
      detail: `${location.host} could not be reached. Is vramscope server still running?`,
    });
  }
  if (response.status === 204) return null;
  const isJson = (response.headers.get("Content-Type") ?? "").includes("json");
  const answer = isJson ? await response.json() : null;
  if (response.ok) return isJson ? answer : response.text();
  const problem = new Problem({
    ...(answer ?? {}),
    status: response.status,
    title: answer?.title ?? response.statusText,
  });
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
  alerts: () => request("GET", "/alerts"),
  changeAlerts: (rules) => request("PATCH", "/alerts", { body: rules }),
  notifications: () => request("GET", "/notifications"),
  testNotifications: () => request("POST", "/notifications/test"),
  runs: (parameters, signal) => request("GET", `/runs${queryString(parameters)}`, { signal }),
  run: (run, signal) => request("GET", `/runs/${at(run)}`, { signal }),
  changeRun: (run, patch) => request("PATCH", `/runs/${at(run)}`, { body: patch }),
  deleteRun: (run) => request("DELETE", `/runs/${at(run)}`),
  series: (run, parameters, signal) => request("GET", `/runs/${at(run)}/series${queryString(parameters)}`, { signal }),
  peak: (run, parameters) => request("GET", `/runs/${at(run)}/peak${queryString(parameters)}`),
  steps: (run, parameters, signal) => request("GET", `/runs/${at(run)}/steps${queryString(parameters)}`, { signal }),
  nextChange: (run, signal) => request("GET", `/runs/${at(run)}/next-change`, { signal }),
  leaks: (run, parameters, signal) => request("GET", `/runs/${at(run)}/leaks${queryString(parameters)}`, { signal }),
  leakReplay: (run, leak, signal) => request("GET", `/runs/${at(run)}/leaks/${at(leak)}/replay`, { signal }),
  oom: (run, signal) => request("GET", `/runs/${at(run)}/oom`, { signal }),
  oomError: (record, signal) => request("GET", `/oom/${at(record)}`, { signal }),
  explainText: (text, signal) => request("POST", "/oom/text", { body: { text }, signal }),
  oomPart: (record, part, parameters, signal) =>
    request("GET", `/oom/${at(record)}/${part}${queryString(parameters)}`, { signal }),
  oomFigure: (record, signal) => request("GET", `/oom/${at(record)}/figure`, { signal }),
  recordings: (run, signal) => request("GET", `/runs/${at(run)}/recordings`, { signal }),
  askForRecording: (run, parameters) => request("POST", `/runs/${at(run)}/recordings${queryString(parameters)}`),
  deleteRecording: (recording) => request("DELETE", `/recordings/${at(recording)}`),
  recording: (recording, part, parameters, signal) => {
    const answer = request("GET", `/recordings/${at(recording)}/${part}${queryString(parameters)}`, { signal });
    onRecordingRequest.call(answer);
    return answer;
  },
  exportUrl: (recording, parameters) => `${BASE}/recordings/${at(recording)}/export${queryString(parameters)}`,
  snapshots: (signal) => request("GET", "/snapshots", { signal }),
  snapshot: (snapshot, signal) => request("GET", `/snapshots/${at(snapshot)}`, { signal }),
  deleteSnapshot: (snapshot) => request("DELETE", `/snapshots/${at(snapshot)}`),
  startUpload: (name, size, project, signal) =>
    request("POST", "/snapshots/uploads", { body: { name, size_bytes: size, ...(project && { project }) }, signal }),
  upload: (upload, signal) => request("GET", `/snapshots/uploads/${at(upload)}`, { signal }),
  sendPart: (upload, offset, bytes, signal) =>
    request("PUT", `/snapshots/uploads/${at(upload)}${queryString({ offset })}`, { bytes, signal }),
  completeUpload: (upload, signal) => request("POST", `/snapshots/uploads/${at(upload)}/complete`, { signal }),
  askWhatIf: (recording, question, signal) =>
    request("POST", `/recordings/${at(recording)}/whatif`, { body: question, signal }),
  whatIf: (recording, job, signal) => request("GET", `/recordings/${at(recording)}/whatif/${at(job)}`, { signal }),
  profiles: (run, signal) => request("GET", `/runs/${at(run)}/profiles`, { signal }),
  askForProfile: (run, parameters) => request("POST", `/runs/${at(run)}/profiles${queryString(parameters)}`),
  profile: (profile, signal) => request("GET", `/profiles/${at(profile)}`, { signal }),
  profileTable: (profile, table, parameters, signal) =>
    request("GET", `/profiles/${at(profile)}/tables/${at(table)}${queryString(parameters)}`, { signal }),
  profileFigure: (profile, name, parameters, signal) =>
    request("GET", `/profiles/${at(profile)}/figures/${at(name)}${queryString(parameters)}`, { signal }),
  deleteProfile: (profile) => request("DELETE", `/profiles/${at(profile)}`),
  figure: (run, name, parameters, signal) =>
    request("GET", `/runs/${at(run)}/figures/${at(name)}${queryString(parameters)}`, { signal }),
  compare: (parameters, signal) => request("GET", `/compare${queryString(parameters)}`, { signal }),
  compareTable: (parameters, signal) => request("GET", `/compare/table${queryString(parameters)}`, { signal }),
  tableUrl: (name, parameters) => `${BASE}/tables/${at(name)}${queryString(parameters)}`,
  compareReportUrl: (parameters) => `${BASE}/compare/report${queryString(parameters)}`,
  compareSites: (parameters, signal) => request("GET", `/compare/sites${queryString(parameters)}`, { signal }),
  compareTimelines: (parameters, signal) => request("GET", `/compare/timelines${queryString(parameters)}`, { signal }),
  compareFigure: (name, parameters, signal) =>
    request("GET", `/compare/figures/${at(name)}${queryString(parameters)}`, { signal }),
  predictions: (parameters, signal) => request("GET", `/compare/predictions${queryString(parameters)}`, { signal }),
  techniquePredictions: (parameters, signal) =>
    request("GET", `/compare/techniques${queryString(parameters)}`, { signal }),
  delta: (parameters, signal) => request("GET", `/live/delta${queryString(parameters)}`, { signal }),
  session: () => request("GET", "/session"),
  signIn: (token) => request("POST", "/session", { body: { token } }),
  signOut: () => request("DELETE", "/session"),
  demo: (signal) => request("GET", "/demo", { signal }),
  startDemo: () => request("POST", "/demo"),
  server: (signal) => request("GET", "/server", { signal }),
  tokens: () => request("GET", "/tokens"),
  audit: (parameters, signal) => request("GET", `/audit${queryString(parameters)}`, { signal }),
  createToken: (name, role, projects = []) =>
    request("POST", "/tokens", { body: { name, role, ...(projects.length > 0 && { projects }) } }),
  revokeToken: (id) => request("DELETE", `/tokens/${at(id)}`),
};

/** URL of the HTML export of an out-of-memory record. */
export const exportLink = (record) => `${BASE}/oom/${at(record)}/export`;
