/**
 * Starts the pages. The server's document preloads the modules of the page that was asked for; those of the other pages
 * follow when this one has been drawn, so that a change of the tab need not wait for them.
 */

const OTHERS_AFTER_MS = 2_000;

const whenIdle = globalThis.requestIdleCallback ?? setTimeout; // Safari has none

import("vramscope/frame.js");

addEventListener("load", () => setTimeout(() => whenIdle(preloadOthers), OTHERS_AFTER_MS));

function preloadOthers() {
  const { imports } = JSON.parse(document.querySelector('script[type="importmap"]').textContent);
  const present = new Set([...document.querySelectorAll("link[rel=modulepreload]")].map((link) => link.getAttribute("href")));
  for (const href of Object.values(imports))
    if (!present.has(href)) document.head.append(Object.assign(document.createElement("link"), { rel: "modulepreload", href }));
}
