/**
 * Starts the pages. Asks at once for all that is needed, before any module has told what it imports: the modules would
 * otherwise come one layer after the other, and Plotly.js, most of the bytes, last.
 */

if (/^\/(runs\/.|compare)/.test(location.pathname)) {
  const script = document.createElement("script");
  script.id = "plotly";
  script.async = true;
  script.fetchPriority = "high"; // it is most of the bytes, and most of the time until the first chart
  script.src = document.querySelector('meta[name="plotly-src"]').content;
  document.head.append(script);
}

const { imports } = JSON.parse(document.querySelector('script[type="importmap"]').textContent);
for (const href of Object.values(imports)) {
  const link = document.createElement("link");
  link.rel = "modulepreload";
  link.href = href;
  document.head.append(link);
}

import("vramscope/frame.js");
