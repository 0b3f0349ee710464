// The table of claims: a search, two filters, and columns that sort by a click on their name.

function searchable(form, table) {
  const rows = [...table.tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const update = () => {
    const { text, ...wanted } = Object.fromEntries(new FormData(form));
    const words = text.toLowerCase().split(/\s+/);
    rows.forEach((row, i) => {
      const fits = Object.entries(wanted).every(([name, value]) => !value || row.dataset[name] === value);
      row.hidden = !(fits && words.every((word) => texts[i].includes(word)));
    });
    form.querySelector("output").textContent = `${rows.filter((row) => !row.hidden).length} / ${rows.length}`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}

function sortable(table) {
  table.querySelectorAll("th").forEach((head, column) => {
    const text = (row) => row.cells[column].textContent.trim();
    const number = (row) => (isNaN(parseFloat(text(row))) ? Infinity : parseFloat(text(row)));
    const words = (a, b) => text(a).localeCompare(text(b), undefined, { numeric: true });
    const order = "number" in head.dataset ? (a, b) => number(a) - number(b) || 0 : words;
    const sort = () => {
      const down = head.ariaSort === "ascending";
      const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
      table.tBodies[0].append(...rows);
      table.querySelectorAll("th").forEach((other) => (other.ariaSort = null));
      head.ariaSort = down ? "descending" : "ascending";
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
}

document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.claims");
  if (table) {
    searchable(document.querySelector("form.filters"), table);
    sortable(table);
  }
  document.querySelectorAll("nav summary").forEach((summary) => {
    const link = summary.closest("li")?.querySelector("a"); // the theme gives folds of its menu no name
    if (link) summary.setAttribute("aria-label", link.textContent.trim());
  });
});
