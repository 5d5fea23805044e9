(() => {
  const form = document.getElementById("filters");
  const rows = Page.all("tr[data-words]");
  const count = document.getElementById("filtered");
  const apply = () => {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = ["suite", "system", "version", "standing"].map((name) => [name, form.elements[name].value]);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(words.every((word) => row.dataset.words.includes(word))
        && wanted.every(([name, value]) => !value || row.dataset[name] === value));
      shown += !row.hidden;
    }
    for (const section of Page.all("section[data-group]")) {
      section.hidden = !section.querySelector("tr[data-words]:not([hidden])");
    }
    for (const answer of Page.all("li[data-of]")) answer.hidden = document.getElementById(answer.dataset.of).hidden;
    count.textContent = shown < rows.length ? `${shown} of ${rows.length} records` : "";
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  Page.reach(location.hash);
})();
