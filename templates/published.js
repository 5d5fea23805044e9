(() => {
  const charts = new Map(Page.all("[data-chart]").map((box) => [box, null]));
  const draw = (box, width) => {
    const figure = charts.get(box) || Page.figureOf(box);
    charts.set(box, figure);
    Page.draw(box, figure, width);
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
  Page.onScheme(redraw);
  Page.onPaper(() => {
    near.disconnect();
    for (const box of charts.keys()) draw(box, 640);
  }, redraw);

  // One field for the scores of all benchmarks: the filter applies to all of them.
  const field = document.getElementById("filter");
  if (field) {
    const count = document.getElementById("filtered");
    const rows = Page.all("table.filterable tbody tr").map((row) => [row.textContent.toLowerCase(), row]);
    document.getElementById("filtering").hidden = false;
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [text, row] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} systems` : "";
    });
  }
  Page.reach(location.hash);
})();
