/** Sends a file to the server in parts, and goes on where it was after a lost connection. */

import { api } from "vramscope/api.js";

/** Pauses before the tries of a part after a lost connection, in milliseconds. */
const PAUSES = [1000, 2000, 4000, 8000, 15_000, 30_000, 30_000];
/** Answers of proxies, and of a server that starts again. */
const PASSING = [0, 408, 429, 502, 503, 504];

/** The stored snapshot. `onProgress(bytes)`: called after each part. Throws a Problem after the last try of a part.
 *
 *  project  project that the file belongs to; null leaves the choice to the server
 */
export async function uploadInParts(file, { onProgress, project = null, signal }) {
  let state = await api.startUpload(file.name.slice(0, 200), file.size, project, signal);
  let failures = 0;
  while (state.received_bytes < file.size) {
    const { upload, received_bytes: offset, part_bytes: size } = state;
    try {
      state = await api.sendPart(upload, offset, file.slice(offset, offset + size), signal);
      failures = 0;
    } catch (problem) {
      if (!PASSING.includes(problem.status) || failures === PAUSES.length) throw problem;
      await new Promise((resolve) => setTimeout(resolve, PAUSES[failures++]));
      state = await api.upload(upload, signal).catch((again) => {
        if (PASSING.includes(again.status)) return state;
        throw again;
      });
    }
    onProgress(state.received_bytes);
  }
  return api.completeUpload(state.upload, signal);
}
