"use strict";
(() => {
  const root = document.documentElement;
  const config = {
    responsive: true, displaylogo: false, showLink: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { format: "svg" },
  };
  const charts = new Map([...document.querySelectorAll("[data-chart]")].map((box) => [box, null]));

  // A colour in the figures is the name of a custom property of the style sheet, so that one palette serves both.
  const resolve = (value, key, style) => {
    if (Array.isArray(value)) {
      return typeof value[0] === "object" && value[0] ? value.map((item) => resolve(item, key, style)) : value;
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, resolve(item, name, style)]));
    }
    const named = typeof value === "string" && value.startsWith("--") && key.endsWith("color");
    return named ? style.getPropertyValue(value).trim() : value;
  };
  const draw = (box, width) => {
    if (typeof Plotly === "undefined") return;
    const figure = charts.get(box) || JSON.parse(document.getElementById(box.dataset.chart).textContent);
    charts.set(box, figure);
    const style = getComputedStyle(root);
    const { data, layout } = resolve(figure, "", style);
    layout.font.family = style.getPropertyValue("--sans").trim();
    if (width) Object.assign(layout, { autosize: false, width, height: 320 });
    Plotly.react(box, data, layout, config);
  };

  // Hundreds of lines take long to draw: each figure is drawn when it comes near the window, all of them for paper.
  const near = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "300px" });
  for (const box of charts.keys()) near.observe(box);
  const redraw = () => { for (const [box, figure] of charts) if (figure) draw(box); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const closed = [...document.querySelectorAll("details:not([open]):not(.bulk)")];
  addEventListener("beforeprint", () => {
    root.dataset.print = "true";
    for (const part of closed) part.open = true;
    near.disconnect();
    for (const box of charts.keys()) draw(box, 640);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    for (const part of closed) part.open = false;
    redraw();
  });

  // Tables are sorted by the exact value a cell carries, else by its text; what is unknown stays at the end.
  const key = (row, column) => {
    const cell = row.cells[column];
    const data = cell.querySelector("data");
    const text = cell.textContent.trim();
    if (data) return Number(data.value);
    return text === "-" || text === "" ? null : text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text.toLowerCase();
  };
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (head.classList.contains("strip-col") || head.classList.contains("unsorted")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [key(row, column), row]);
        rows.sort(([a], [b]) => (a === null ? 1 : 0) - (b === null ? 1 : 0) || (a === null ? 0 : (down ? -1 : 1) * order(a, b)));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  const box = document.getElementById("filter");
  if (box) {
    const told = document.getElementById("filtered");
    const rows = [...document.querySelectorAll("table.filterable tbody tr")].map((row) => [row.textContent.toLowerCase(), row]);
    document.getElementById("filtering").hidden = false;
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [text, row] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      told.textContent = words.length ? `${shown} of ${rows.length} systems` : "";
    });
  }
})();
