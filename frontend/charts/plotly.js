/** Loads Plotly.js from the plotly wheel, once, when the first chart needs it. */

import { h } from "vramscope/dom.js";

let plotlyLoading = null;

/** Promise of `window.Plotly`. */
export function loadPlotly() {
  plotlyLoading ??= new Promise((resolve, reject) => {
    if (window.Plotly) return resolve(window.Plotly);
    const source = document.querySelector('meta[name="plotly-src"]')?.content;
    const script = h("script", { src: source, async: true });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      plotlyLoading = null;
      script.remove();
      reject(new Error("Plotly.js could not be loaded from this server."));
    });
    document.head.append(script);
  });
  return plotlyLoading;
}
