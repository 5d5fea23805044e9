"use strict";
(() => {
  const root = document.documentElement;
  const buttons = [...document.querySelectorAll(".legend [data-cell]")];
  const layers = [...document.querySelectorAll(".legend [data-layer]")];
  const hidden = new Set();
  const off = new Set(layers.filter((button) => button.getAttribute("aria-pressed") === "false")
    .map((button) => button.dataset.layer));
  const charts = [...document.querySelectorAll("[data-chart]")].map((box) => ({
    box, figure: JSON.parse(document.getElementById(box.dataset.chart).textContent),
  }));
  const config = {
    responsive: true, displaylogo: false, showLink: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg" },
  };

  // A colour in the figures is the name of a custom property of the style sheet, so that one palette serves both.
  const resolve = (value, key, style) => {
    if (Array.isArray(value)) return value.map((item) => resolve(item, key, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, resolve(item, name, style)]));
    }
    const named = typeof value === "string" && value.startsWith("--") && key.endsWith("color");
    return named ? style.getPropertyValue(value).trim() : value;
  };

  const draw = (width) => {
    if (typeof Plotly === "undefined") return;
    const style = getComputedStyle(root);
    for (const { box, figure } of charts) {
      const { data, layout } = resolve(figure, "", style);
      for (const trace of data) trace.visible = !hidden.has(trace.legendgroup) && !off.has((trace.uid || "").split("-")[0]);
      layout.font.family = style.getPropertyValue("--sans").trim();
      if (width) Object.assign(layout, { autosize: false, width, height: 320 });
      Plotly.react(box, data, layout, config);
    }
  };

  const show = (cell, shown) => {
    if (shown) hidden.delete(cell);
    else hidden.add(cell);
  };
  const press = () => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.cell)));
    draw();
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      show(button.dataset.cell, hidden.has(button.dataset.cell));
      press();
    });
  }
  for (const button of document.querySelectorAll(".legend [data-all]")) {
    button.addEventListener("click", () => {
      for (const { dataset } of buttons) show(dataset.cell, button.dataset.all === "true");
      press();
    });
  }

  for (const button of layers) {
    button.addEventListener("click", () => {
      const name = button.dataset.layer;
      if (!off.delete(name)) off.add(name);
      button.setAttribute("aria-pressed", String(!off.has(name)));
      draw();
    });
  }

  // Tables: every header of one that says so becomes a button that sorts; a field above it leaves only rows that match.
  const made = (name, attributes, text) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    return element;
  };
  const live = made("p", { class: "live", role: "status", "aria-live": "polite" });
  document.body.append(live);
  const worth = (row, column) => {
    const cell = row.cells[column];
    const number = cell.querySelector(":scope > data, :scope > * > data, :scope > a data, :scope > strong data");
    const text = cell.textContent.trim();
    if (number) return Number(number.value);
    return /^-?[\d.,]+( |$)/.test(text) ? Number(text.split(" ")[0].replaceAll(",", "")) : text === "-" ? null : text;
  };
  const order = (one, other) => {
    if (one === null || other === null) return one === other ? 0 : one === null ? 1 : -1;
    if (typeof one === "number" && typeof other === "number") return one - other;
    return String(one).localeCompare(String(other), "en", { numeric: true });
  };
  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (head.classList.contains("strip-col")) return;
      const button = made("button", { type: "button", class: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [worth(row, column), row]);
        rows.sort(([one], [other]) => {
          const unknown = one === null || other === null;
          return down && !unknown ? order(other, one) : order(one, other);
        });
        body.append(...rows.map(([, row]) => row));
        live.textContent = `Sorted by ${button.textContent.trim()}, ${down ? "descending" : "ascending"}`;
      });
    });
  };
  const filters = {};
  const filterable = (table) => {
    const name = table.dataset.filter;
    const bar = made("div", { class: "filter" });
    const label = made("label", {}, `Show only ${name} with `);
    const field = made("input", { type: "search", spellcheck: "false", autocomplete: "off" });
    const count = made("span", { class: "quiet" });
    label.append(field);
    bar.append(label, count);
    (table.closest(".scroll") || table).before(bar);
    const rows = [...table.tBodies[0].rows];
    const texts = rows.map((row) => row.textContent.replace(/\s+/g, " ").toLowerCase());
    const apply = () => {
      const wanted = field.value.trim().toLowerCase();
      const cell = /^cell:(\d+)$/.exec(wanted);
      let left = 0;
      rows.forEach((row, index) => {
        const keep = cell ? row.dataset.cell === cell[1] : texts[index].includes(wanted);
        row.hidden = !keep;
        left += keep ? 1 : 0;
      });
      count.textContent = wanted ? ` ${left} of ${rows.length}` : "";
    };
    field.addEventListener("input", apply);
    filters[name] = { field, apply, bar };
  };
  for (const table of document.querySelectorAll("table[data-sort]")) sortable(table);
  for (const table of document.querySelectorAll("table[data-filter]")) filterable(table);

  // A link to a row opens what it is folded into and lifts a filter that hides it; one to a cell's trials filters them.
  const reach = (hash) => {
    const target = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (!target) return;
    const cell = /^#trials-of-(\d+)$/.exec(hash);
    if (cell && filters.trials) {
      filters.trials.field.value = `cell:${cell[1]}`;
      filters.trials.apply();
      filters.trials.bar.closest("details").open = true;
    }
    for (let part = target.parentElement; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (target.tagName === "TR" && target.hidden) {
      const filter = filters[target.closest("table").dataset.filter];
      filter.field.value = "";
      filter.apply();
    }
    const shown = cell && filters.trials ? filters.trials.bar : target;
    shown.scrollIntoView({ block: "center" });
    if (shown !== target) filters.trials.field.focus({ preventScroll: true });
  };
  addEventListener("hashchange", () => reach(location.hash));
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) {
      event.preventDefault();
      reach(link.hash);
    }
  });
  reach(location.hash);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  // Paper is white and as wide as it is: print in the light palette at a fixed width, then go back.
  const closed = [...document.querySelectorAll("details:not([open]):not(.bulk)")];
  addEventListener("beforeprint", () => {
    root.dataset.print = "true";
    for (const part of closed) part.open = true;
    draw(640);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    for (const part of closed) part.open = false;
    draw();
  });
  draw();
})();
