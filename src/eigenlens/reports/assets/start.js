"use strict";
// Everything begins here, once the data is unpacked.
(() => {
  const { eigenlens: lens } = window;

  const start = async () => {
    await lens.load();
    lens.startSaving();
    lens.startFigures();
    lens.startTables();
    lens.startHeads();
    lens.startOverlaps();
    lens.startPatterns();
    const theme = document.getElementById("theme");
    theme.addEventListener("change", () => {
      document.documentElement.dataset.theme = theme.value;
      lens.redraw();
    });
    await lens.drawRest();
  };

  start();
})();
