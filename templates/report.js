"use strict";
(() => {
  const root = document.documentElement;
  const buttons = [...document.querySelectorAll(".legend [data-cell]")];
  const hidden = new Set();
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
      for (const trace of data) trace.visible = !hidden.has(trace.legendgroup);
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
