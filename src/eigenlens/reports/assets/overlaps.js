"use strict";
// Overlap matrices in the order of layers, or of clusters.
(() => {
  const { eigenlens: lens } = window;

  const rowsOf = (record, order) => {
    const values = lens.array(record.matrix);
    const across = record.right.length;
    const [down, right] = record.orders[order].map((list) => {
      const place = [];
      list.forEach((index, at) => { place[index] = at; });
      return place;
    });
    return Array.from(values, (value, at) => {
      const [i, j] = [Math.floor(at / across), at % across];
      return { left: record.left[i], right: record.right[j], row: down[i], column: right[j], overlap: Number((value / 65535).toFixed(4)), chance: record.chance };
    });
  };

  lens.startOverlaps = () => {
    for (const root of document.querySelectorAll("[data-matrices]")) {
      const records = lens.data.matrices[root.dataset.matrices];
      const [which, order] = [root.querySelector("[data-which]"), root.querySelector("[data-order]")];
      const show = () => {
        for (const part of root.querySelectorAll("[data-matrix]")) part.hidden = part.dataset.matrix !== which.value;
        const record = records[which.value];
        lens.show(record.figure, rowsOf(record, order.value), `by ${order.value}`);
      };
      which.addEventListener("change", show);
      order.addEventListener("change", show);
      for (const record of records) lens.show(record.figure, rowsOf(record, order.value), `by ${order.value}`);
    }
  };
})();
