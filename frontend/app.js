/**
 * Starts the pages. Asks at once for all that is needed, before any module has told what it imports: the modules would
 * otherwise come one layer after the other, and Plotly.js, most of the bytes, last.
 */

if (/^\/(runs\/.|compare)/.test(location.pathname)) {
  // Most of the bytes: they come while the rest does. Run they are when the charts have asked for their windows, so that the
  // server works meanwhile (charts/plotly.js).
  preload({ rel: "preload", as: "script", href: document.querySelector('meta[name="plotly-src"]').content });
}

const { imports } = JSON.parse(document.querySelector('script[type="importmap"]').textContent);
for (const href of Object.values(imports)) preload({ rel: "modulepreload", href });

import("vramscope/frame.js");

function preload(attributes) {
  document.head.append(Object.assign(document.createElement("link"), attributes));
}
