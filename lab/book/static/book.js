// Filters of claims and errata, tables that sort by a click on their head, figures that open large.

function element(name, words = {}, ...children) {
  const made = Object.assign(document.createElement(name), words);
  made.append(...children);
  return made;
}

function filter(form) {
  const items = [...document.querySelectorAll(form.dataset.items)];
  const texts = items.map((item) => item.textContent.toLowerCase());
  const shown = form.querySelector(".shown");
  const update = () => {
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
    delete wanted.text;
    items.forEach((item, i) => {
      const fits = Object.entries(wanted).every(([name, value]) => !value || item.dataset[name].split("|").includes(value));
      item.hidden = !(fits && words.every((word) => texts[i].includes(word)));
    });
    shown.textContent = `${items.filter((item) => !item.hidden).length} / ${items.length}`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  const named = new URLSearchParams(location.search); // scoreboard.html?verdict=refuted
  for (const [name, value] of named) if (form.elements[name]) form.elements[name].value = value;
  update();
}

function sortable(table) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const key = (row) => row.cells[column].textContent.trim();
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        const order = x !== "" && y !== "" && !isNaN(x) && !isNaN(y) ? x - y : x.localeCompare(y);
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
}

// A figure opens large on a click, with the rows behind it beside it where the page has them.
function large(image) {
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  const open = () => {
    const dialog = element("dialog", { className: "large" }, element("img", { src: image.src, alt: image.alt }));
    const section = image.closest("section");
    const table = section?.querySelectorAll("img").length === 1 && section.querySelector(".scrolls");
    if (table) {
      const beside = table.cloneNode(true);
      beside.tabIndex = 0;
      dialog.classList.add("beside");
      dialog.append(beside);
    }
    const caption = image.parentElement.querySelector("figcaption");
    if (caption && !table) dialog.append(caption.cloneNode(true));
    dialog.setAttribute("aria-label", image.alt);
    dialog.addEventListener("click", (event) => event.target.closest(".scrolls, a") || dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  image.addEventListener("click", open);
  image.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), open()));
}

// A verdict's card on one screen: its claim, prediction, effect and verdict; the rest by a click.
const kept = ["measured", "predicted", "effect", "verdict", "所测", "预测", "效应", "判定"];
function folded(table) {
  const rest = [...(table.tBodies[0]?.rows ?? [])].filter((row) => !kept.includes(row.cells[0].textContent.trim()));
  if (rest.length < 2 || table.tBodies[0].rows.length - rest.length < 2) return;
  const button = element("button", { className: "more", type: "button", textContent: "+" });
  const show = (open) => {
    rest.forEach((row) => (row.hidden = !open));
    button.setAttribute("aria-expanded", open);
    button.textContent = open ? "−" : `+ ${rest.map((row) => row.cells[0].textContent.trim()).join(", ")}`;
  };
  button.addEventListener("click", () => show(rest[0].hidden));
  show(false);
  table.after(button);
}

// What the theme names otherwise than it says, or not at all.
function named() {
  document.querySelectorAll("summary[aria-label], .search-button-field").forEach((item) => item.removeAttribute("aria-label"));
  document.querySelectorAll("nav summary").forEach((summary) => {
    const link = summary.closest("li")?.querySelector("a");
    if (link) summary.setAttribute("aria-label", link.textContent.trim());
  });
}

document.addEventListener("DOMContentLoaded", () => {
  named();
  document.querySelectorAll(".cell_output table:not(.lab):not(.dataframe)").forEach(folded);
  document.querySelectorAll("form.filters").forEach(filter);
  document.querySelectorAll("table.lab").forEach(sortable);
  for (const part of document.querySelectorAll(".scrolls, .bd-article table"))
    if (part.scrollWidth > part.clientWidth || part.scrollHeight > part.clientHeight) part.tabIndex = 0; // by keys too
  document.querySelectorAll(".cell_output img, section > p > img").forEach(large);
});
