/** Sends a file to the server in parts, and goes on where it was after a lost connection. */

import { api } from "vramscope/api.js";

/** Pauses before the tries after a lost connection, in milliseconds. */
const PAUSES = [1000, 2000, 4000, 8000, 15_000, 30_000, 30_000];
/** Answers of proxies, and of a server that starts again. */
const PASSING = [0, 408, 429, 502, 503, 504];

/** The stored snapshot. `onProgress(bytes)`: called after each part. Throws a Problem after the last try. */
export async function uploadInParts(file, { onProgress, signal }) {
  let state = await api.startUpload(file.name.slice(0, 200), file.size, signal);
  while (state.received_bytes < file.size) {
    const { upload, received_bytes: offset, part_bytes: size } = state;
    state = await patiently(
      () => api.sendPart(upload, offset, file.slice(offset, offset + size), signal),
      () => api.upload(upload, signal),
      signal,
    );
    onProgress(state.received_bytes);
  }
  return api.completeUpload(state.upload, signal);
}

async function patiently(send, look, signal) {
  let last;
  try {
    return await send();
  } catch (problem) {
    if (!PASSING.includes(problem.status)) throw problem;
    last = problem;
  }
  for (const pause of PAUSES) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    signal.throwIfAborted();
    try {
      return await look();
    } catch (problem) {
      if (!PASSING.includes(problem.status)) throw problem;
      last = problem;
    }
  }
  throw last;
}
