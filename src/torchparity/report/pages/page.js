"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  document.documentElement.classList.add("js");

  // Tables: a click on a column's name sorts by it; text that was typed leaves the rows that hold it.
  // In a grouped table every body is one entry: a row, and below it what the row opens.
  const entriesOf = (table) => (table.classList.contains("grouped") ? [...table.tBodies] : [...(table.tBodies[0]?.rows ?? [])]);
  const valueOf = (entry, column) => {
    const cell = (entry.rows?.[0] ?? entry).cells[column];
    return cell.dataset.value ?? cell.textContent.trim();
  };
  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const descending = head.hasAttribute("data-numeric") ? head.ariaSort !== "descending" : head.ariaSort === "ascending";
        all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const numeric = head.hasAttribute("data-numeric");
        const key = (row) => {
          const value = valueOf(row, column);
          return numeric ? (value === "inf" ? Infinity : value === "nan" || value === "" ? -Infinity : Number(value)) : value;
        };
        const order = (a, b) => (numeric ? (a < b ? -1 : a > b ? 1 : 0) : a.localeCompare(b, undefined, { numeric: true }));
        const rows = entriesOf(table).map((row) => [key(row), row]);
        rows.sort((a, b) => (descending ? order(b[0], a[0]) : order(a[0], b[0])));
        (table.classList.contains("grouped") ? table : table.tBodies[0]).append(...rows.map((pair) => pair[1]));
      });
    });
  }
  const applyFilters = (name) => {
    const table = document.getElementById(name);
    const typed = (document.querySelector(`[data-filter="${name}"]`)?.value ?? "").toLowerCase();
    const status = document.querySelector(`[data-filter-status="${name}"]`)?.value ?? "";
    const chosen = all(`[data-filter-table="${name}"]`).filter((field) => field.value !== "");
    const entries = entriesOf(table);
    let shown = 0;
    for (const row of entries) {
      const fits = chosen.every((field) => row.dataset[field.dataset.filterBy] === field.value) && (status === "" || row.dataset.status === status);
      row.hidden = !fits || !row.textContent.toLowerCase().includes(typed);
      shown += row.hidden ? 0 : 1;
    }
    const count = document.querySelector(`[data-count="${name}"]`);
    if (count) count.textContent = `${shown} of ${entries.length}`;
  };
  for (const field of all("[data-filter], [data-filter-status], [data-filter-table]")) {
    const name = field.dataset.filter ?? field.dataset.filterStatus ?? field.dataset.filterTable;
    field.addEventListener("input", () => applyFilters(name));
  }

  // Rows that open: a name becomes a button that shows the row below; so does a click anywhere on its row.
  const openers = new Map();
  const open = (button, shown) => {
    button.setAttribute("aria-expanded", String(shown));
    openers.get(button).hidden = !shown;
  };
  for (const name of all("[data-opens]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name.textContent;
    button.setAttribute("aria-controls", name.dataset.opens);
    name.replaceChildren(button);
    openers.set(button, document.getElementById(name.dataset.opens));
    open(button, false);
    name.closest("tr").addEventListener("click", (event) => {
      if (event.target.closest("a") || (!event.target.closest("button") && String(getSelection()) !== "")) return;
      open(button, button.ariaExpanded !== "true");
    });
  }
  for (const button of all("[data-open-all]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const own = [...openers.keys()].filter((opener) => opener.closest("table").id === button.dataset.openAll);
      const shown = own.some((opener) => opener.ariaExpanded !== "true");
      own.forEach((opener) => open(opener, shown));
      button.textContent = shown ? "Close all" : "Open all";
    });
  }
  const follow = () => {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    const button = target?.querySelector("[data-opens] button");
    if (!button) return;
    target.hidden = false;
    open(button, true);
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", follow);
  follow();

  // Copy buttons. A page opened as a file may not be allowed to use the clipboard directly.
  const copyText = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };
  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      const done = await copyText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = done ? "Copied" : "Select and copy by hand";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }

  window.addEventListener("beforeprint", () => all("details").forEach((element) => (element.open = true)));

  // The graph.
  const svg = document.getElementById("graph-svg");
  if (!svg) return;
  const boxes = new Map(JSON.parse(document.getElementById("graph-data").textContent).map((box) => [box.number, box]));
  const groups = new Map(all(".node", svg).map((group) => [Number(group.dataset.node), group]));
  const panel = document.getElementById("node-panel");
  const width = Number(svg.dataset.width);
  const height = Number(svg.dataset.height);
  const users = new Map();
  for (const box of boxes.values()) for (const input of box.inputs) users.set(input, [...(users.get(input) ?? []), box.number]);
  const view = { x: 0, y: 0, w: width, h: height };
  const shape = () => Math.max(1, svg.clientWidth) / Math.max(1, svg.clientHeight);
  const show = () => svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
  const whole = () => {
    const ratio = shape();
    view.w = Math.max(width, height * ratio) * 1.04;
    view.h = view.w / ratio;
    view.x = (width - view.w) / 2;
    view.y = (height - view.h) / 2;
    show();
  };
  const zoom = (factor, x = view.x + view.w / 2, y = view.y + view.h / 2) => {
    const next = Math.min(Math.max(view.w * factor, 200), Math.max(width, height * shape()) * 3);
    const scale = next / view.w;
    view.x = x - (x - view.x) * scale;
    view.y = y - (y - view.y) * scale;
    view.w = next;
    view.h = next / shape();
    show();
  };
  const center = (number, close = false) => {
    const group = groups.get(number);
    if (!group) return;
    const x = Number(group.dataset.x);
    const y = Number(group.dataset.y);
    if (close) {
      view.w = Math.min(Math.max(svg.clientWidth, 360), 900);
      view.h = view.w / shape();
    }
    const inside = Math.abs(x - view.x - view.w / 2) < view.w * 0.4 && Math.abs(y - view.y - view.h / 2) < view.h * 0.4;
    if (close || !inside) {
      view.x = x - view.w / 2;
      view.y = y - view.h / 2;
    }
    show();
  };
  const fact = (list, name, text, code = false) => {
    if (text === "" || text === null || text === undefined) return;
    const term = document.createElement("dt");
    term.textContent = name;
    const told = document.createElement("dd");
    const holder = code ? document.createElement("code") : told;
    holder.textContent = text;
    if (code) told.append(holder);
    list.append(term, told);
  };
  const score = (value, kind) => (value === null || value === undefined ? kind : `${typeof value === "number" ? Number(value.toPrecision(3)) : value} ${kind}`.trim());
  let selected = null;
  const select = (number, { focus = false, close = false } = {}) => {
    const box = boxes.get(number);
    if (!box) return;
    if (selected !== null) groups.get(selected)?.classList.remove("selected");
    selected = number;
    const group = groups.get(number);
    group.classList.add("selected");
    all(".edges path", svg).forEach((path) => path.classList.toggle("near", Number(path.dataset.from) === number || Number(path.dataset.to) === number));
    const heading = document.createElement("h3");
    heading.textContent = box.name + (box.culprit ? " (the culprit)" : "");
    const list = document.createElement("dl");
    fact(list, "code", box.code, true);
    fact(list, "source", box.line, true);
    fact(list, "gives, in eager", box.value);
    fact(list, "values, in eager", box.sample);
    if (box.error) {
      fact(list, "introduces", score(box.error.introduced, box.error.introduced_kind));
      fact(list, "has reached its result", score(box.error.propagated, box.error.propagated_kind));
    }
    const names = (numbers) => numbers.map((entry) => boxes.get(entry)?.name ?? `node ${entry}`).join(", ");
    fact(list, "from", names(box.inputs));
    fact(list, "used by", names(users.get(number) ?? []));
    panel.replaceChildren(heading, list);
    center(number, close);
    if (focus) group.focus({ preventScroll: true });
  };

  let drag = null;
  const fingers = new Map();
  const spot = (event) => {
    const area = svg.getBoundingClientRect();
    return { x: view.x + ((event.clientX - area.left) / area.width) * view.w, y: view.y + ((event.clientY - area.top) / area.height) * view.h };
  };
  const apart = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  };
  svg.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    drag = { x: event.clientX, y: event.clientY, moved: false, apart: fingers.size === 2 ? apart() : 0 };
  });
  svg.addEventListener("pointermove", (event) => {
    if (!drag || !fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, event);
    if (fingers.size === 2) {
      const now = apart();
      if (drag.apart > 0 && now > 0) zoom(drag.apart / now);
      drag.apart = now;
      drag.moved = true;
      return;
    }
    const dx = event.clientX - drag.x;
    const dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    if (!drag.moved) svg.setPointerCapture(event.pointerId);
    drag.moved = true;
    svg.classList.add("dragging");
    view.x -= (dx / svg.clientWidth) * view.w;
    view.y -= (dy / svg.clientHeight) * view.h;
    drag.x = event.clientX;
    drag.y = event.clientY;
    show();
  });
  let draggedLast = false;
  const release = (event) => {
    fingers.delete(event.pointerId);
    draggedLast = drag?.moved ?? false;
    if (fingers.size === 0) drag = null;
    svg.classList.remove("dragging");
  };
  svg.addEventListener("pointerup", release);
  svg.addEventListener("pointercancel", release);
  svg.addEventListener("click", (event) => {
    const group = event.target.closest(".node");
    if (group && !draggedLast) select(Number(group.dataset.node), { focus: true });
    draggedLast = false;
  });
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg && !svg.contains(document.activeElement)) return;
    event.preventDefault();
    const point = spot(event);
    zoom(Math.exp(event.deltaY * 0.0015), point.x, point.y);
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const first = Number(svg.dataset.culprit ?? groups.keys().next().value);
    const here = selected ?? first;
    const box = boxes.get(here);
    const row = [...boxes.values()].filter((other) => Math.abs(other.y - box.y) < 1).sort((a, b) => a.x - b.x);
    const place = row.findIndex((other) => other.number === here);
    const moves = {
      ArrowUp: () => select(box.inputs.find((entry) => boxes.has(entry)) ?? here, { focus: true }),
      ArrowDown: () => select((users.get(here) ?? [here])[0], { focus: true }),
      ArrowLeft: () => select(row[Math.max(0, place - 1)].number, { focus: true }),
      ArrowRight: () => select(row[Math.min(row.length - 1, place + 1)].number, { focus: true }),
      Enter: () => select(here, { focus: true }),
      " ": () => select(here, { focus: true }),
      "+": () => zoom(0.8),
      "=": () => zoom(0.8),
      "-": () => zoom(1.25),
      0: whole,
    };
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    selected === null && event.key.startsWith("Arrow") ? select(first, { focus: true }) : move();
  });
  const tools = {
    in: () => zoom(0.8),
    out: () => zoom(1.25),
    fit: whole,
    culprit: () => select(Number(svg.dataset.culprit), { close: true }),
  };
  for (const button of all("[data-graph]")) button.addEventListener("click", () => tools[button.dataset.graph]());
  document.getElementById("graph-find").addEventListener("input", (event) => {
    const typed = event.target.value.trim().toLowerCase();
    if (!typed) return;
    const named = [...boxes.values()];
    const found = named.find((box) => box.name.toLowerCase() === typed) ?? named.find((box) => box.name.toLowerCase().includes(typed));
    if (found) select(found.number, { close: true });
  });
  if (svg.dataset.culprit !== undefined) tools.culprit();
  else whole();
  window.addEventListener("beforeprint", whole);
  window.addEventListener("resize", () => {
    view.h = view.w / shape();
    show();
  });
})();
