"use strict";
// Tables that sort by the values behind them, and save all their columns.
(() => {
  const { eigenlens: lens } = window;

  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };

  /** What a column prints, by the numbers of its rows. */
  const printed = (table, header) => {
    const values = [];
    for (const row of table.tBodies[0].rows) values[row.dataset.row] = row.cells[header.cellIndex].textContent;
    return values;
  };

  const sort = (table, header) => {
    const values = "labels" in header.dataset ? printed(table, header) : lens.data.tables[table.dataset.table][header.dataset.column];
    const falling = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    const sign = falling ? -1 : 1;
    rows.sort((a, b) => {
      const [x, y] = [values[a.dataset.row], values[b.dataset.row]];
      const none = (x === null) - (y === null);
      return none || sign * compare(x, y); // what is not known stays below
    });
    table.tBodies[0].append(...rows);
  };

  lens.startTables = () => {
    document.addEventListener("click", (event) => {
      const header = event.target.closest(".sortable th");
      if (header) sort(header.closest("table"), header);
      const saving = event.target.closest("[data-csv]");
      if (saving) {
        const { csv } = saving.dataset;
        lens.save(lens.fileOf(csv, "csv"), lens.csv(lens.rows(lens.data.tables[csv])), "text/csv");
      }
    });
  };
})();
