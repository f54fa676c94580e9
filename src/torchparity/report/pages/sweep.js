"use strict";
(() => {
  const field = (name) => document.getElementById(name);
  const body = field("matrix").tBodies[0];
  const rows = [...body.rows];
  rows.forEach((row, place) => { row.dataset.place = String(place); });

  // Search, filters and order of the matrix. Rows are hidden, not removed.
  const has = (row, name, wanted) => wanted === "" || row.dataset[name].split(" ").includes(wanted);
  const filter = () => {
    const typed = field("search").value.toLowerCase();
    const chosen = { status: field("by-status").value, word: field("by-word").value, label: field("by-label")?.value ?? "" };
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.dataset.title.includes(typed) || !Object.entries(chosen).every(([name, wanted]) => has(row, name, wanted));
      shown += row.hidden ? 0 : 1;
    }
    field("count").textContent = `${shown} of ${rows.length} models`;
  };
  const order = () => {
    const by = field("order").value;
    const key = { place: (row) => Number(row.dataset.place), worst: (row) => -Number(row.dataset.worst), seconds: (row) => -Number(row.dataset.seconds) }[by];
    const compare = key ? (a, b) => key(a) - key(b) || a.dataset.place - b.dataset.place : (a, b) => a.dataset.title.localeCompare(b.dataset.title);
    body.append(...[...rows].sort(compare));
  };
  for (const name of ["search", "by-status", "by-word", "by-label"]) field(name)?.addEventListener("input", filter);
  field("order").addEventListener("input", order);
  filter();

  // A click on a cell shows what was said of it.
  const told = new Map([...field("cells-data").content.children].map((entry) => [entry.dataset.cell, entry.dataset]));
  const detail = field("detail");
  const line = (list, name, value) => {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    text.append(value);
    list.append(term, text);
  };
  const code = (text) => { const made = document.createElement("code"); made.textContent = text; return made; };
  const spark = (letters) => {
    const made = document.createElement("span");
    made.className = "spark";
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", `earlier sweeps, the oldest first: ${letters}`);
    for (const letter of letters) { const bar = document.createElement("i"); bar.className = letter; made.append(bar); }
    return made;
  };
  field("matrix").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-cell]");
    if (!button) return;
    const cell = told.get(button.dataset.cell);
    field("detail-title").textContent = `${cell.title}: ${cell.status || "waiting"}`;
    const list = detail.querySelector("dl");
    list.replaceChildren();
    const facts = { options: cell.options, kind: cell.kind, severity: cell.severity, why: cell.reason, leaves: cell.leaves, baseline: cell.baseline, stage: cell.stage.trim(), "your line": cell.place, since: cell.since };
    for (const [name, value] of Object.entries(facts)) if (value) line(list, name, value);
    if (Number(cell.seconds)) line(list, "took", `${Number(cell.seconds).toFixed(1)} s${Number(cell.peak) ? `, ${(cell.peak / 2 ** 30).toFixed(2)} GiB` : ""}`);
    if (cell.history) line(list, "earlier", spark(cell.history));
    if (cell.fingerprint) line(list, "fingerprint", code(cell.fingerprint));
    line(list, "again", code(cell.command));
    if (cell.folder) { const link = document.createElement("a"); link.href = `${cell.folder}/index.html`; link.textContent = "the diagnosis"; line(list, "diagnosis", link); }
    detail.showModal();
  });
})();
