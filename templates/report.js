(() => {
  const buttons = Page.all(".legend [data-cell]");
  const layers = Page.all(".legend [data-layer]");
  const hidden = new Set();
  const off = new Set(layers.filter((button) => button.getAttribute("aria-pressed") === "false")
    .map((button) => button.dataset.layer));
  const charts = Page.all("[data-chart]").map((box) => [box, Page.figureOf(box)]);
  const choose = (data) => {
    for (const trace of data) trace.visible = !hidden.has(trace.legendgroup) && !off.has((trace.uid || "").split("-")[0]);
  };
  // A figure inside of a closed part has no width: it is drawn when the part opens.
  const draw = (width) => {
    for (const [box, figure] of charts) if (!box.closest("details:not([open])")) Page.draw(box, figure, width, choose);
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
  for (const button of Page.all(".legend [data-all]")) {
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

  Page.onOpen(() => draw());
  Page.onScheme(() => draw());
  Page.onPaper(() => draw(335), () => draw());
  draw();
  Page.reach(location.hash);
})();
