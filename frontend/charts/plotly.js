/** Plotly.js, out of the plotly wheel: loaded once, and only where a chart is wanted. */

import { h } from "vramscope/dom.js";

let plotlyLoading = null;

/** `window.Plotly`, once it is here. */
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
