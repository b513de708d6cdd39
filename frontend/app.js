/**
 * Starts the pages. Preloads all scripts: otherwise modules arrive one import level after the other, and Plotly.js, the
 * largest file, comes last.
 */

if (/^\/(runs\/.|compare)/.test(location.pathname)) {
  // Plotly.js is the largest file. It downloads in parallel and runs only after the charts have requested their data
  // (charts/plotly.js).
  preload({ rel: "preload", as: "script", href: document.querySelector('meta[name="plotly-src"]').content });
}

const { imports } = JSON.parse(document.querySelector('script[type="importmap"]').textContent);
for (const href of Object.values(imports)) preload({ rel: "modulepreload", href });

import("vramscope/frame.js");

function preload(attributes) {
  document.head.append(Object.assign(document.createElement("link"), attributes));
}
