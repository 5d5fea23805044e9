"use strict";
// Shared by all pages: figure colours, printing, and tables that sort, filter, stack in narrow windows and expand.
const Page = (() => {
  const root = document.documentElement;
  const config = {
    responsive: true, displaylogo: false, showLink: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"],
  };
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const made = (name, attributes, text) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    return element;
  };

  // Colours in figures are names of custom properties of the style sheet, so that page and figures share one palette.
  const resolve = (value, key, style) => {
    if (Array.isArray(value)) {
      return (typeof value[0] === "object" && value[0]) || key.endsWith("color") ? value.map((item) => resolve(item, key, style)) : value;
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, resolve(item, name, style)]));
    }
    const named = typeof value === "string" && value.startsWith("--") && key.endsWith("color");
    return named ? style.getPropertyValue(value).trim() : value;
  };
  // plotly.js is packed in the page; the page's policy names its hash.
  const unpack = async () => {
    const packed = document.getElementById("plotly");
    if (!packed) return;
    const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
    const unzip = new DecompressionStream("gzip");
    const writer = unzip.writable.getWriter();
    writer.write(bytes);
    writer.close();
    // Part by part: `new Response(...).text()` now and then never ends in headless Chromium.
    const reader = unzip.readable.getReader();
    const decoder = new TextDecoder();
    const script = document.createElement("script");
    let text = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) text += decoder.decode(part.value, { stream: true });
    script.textContent = text + decoder.decode();
    document.head.append(script);
  };
  const ready = unpack();
  const figureOf = (box) => JSON.parse(document.getElementById(box.dataset.chart).textContent);

  // A downloaded figure goes into a paper: light, with title and legend, named after suite and figure.
  const plain = (text) => text.replace(/\s+/g, " ").trim();
  const titleOf = (caption) => {
    const copy = caption.cloneNode(true);
    for (const tag of copy.querySelectorAll(".tag")) tag.textContent = `(${tag.textContent})`;
    for (const more of copy.querySelectorAll(".counted")) if (more.textContent.trim()) more.prepend("- ");
    return copy.textContent;
  };
  const download = (box, figure) => {
    root.dataset.print = "true";
    const style = getComputedStyle(root);
    const { data, layout } = resolve(structuredClone(figure), "", style);
    const shown = new Map(box.data.map((trace, place) => [place, trace.visible !== false]));
    const seen = new Set();
    data.forEach((trace, place) => {
      trace.visible = shown.get(place);
      const label = document.querySelector(`.legend [data-cell="${trace.legendgroup}"] .label`);
      if (label) trace.name = `${trace.legendgroup} ${plain(label.textContent)}`.slice(0, 60);
      trace.showlegend = trace.visible && trace.fill === undefined && trace.mode !== "markers" && !seen.has(trace.name);
      if (trace.showlegend) seen.add(trace.name);
    });
    Object.assign(layout, { width: 900, height: 520, showlegend: true, legend: { orientation: "h", y: -0.2, font: { size: 11 } },
      title: { text: plain(titleOf(box.closest("figure").querySelector("figcaption"))), font: { size: 14 } } });
    layout.margin.t = 50;
    layout.font.family = "sans-serif";
    delete root.dataset.print;
    const suite = document.querySelector(".eyebrow code");
    const filename = `${suite ? suite.textContent : "figure"}-${box.dataset.chart}`;
    Plotly.downloadImage({ data, layout }, { format: "svg", width: 900, height: 520, filename });
  };
  const draw = (box, figure, width, change = () => {}) => {
    if (typeof Plotly === "undefined") {
      ready.then(() => { if (typeof Plotly !== "undefined") draw(box, figure, width, change); });
      return;
    }
    const style = getComputedStyle(root);
    const { data, layout } = resolve(figure, "", style);
    layout.font.family = style.getPropertyValue("--sans").trim();
    if (width) Object.assign(layout, { autosize: false, width, height: 230 });
    change(data);
    const save = { name: "download", title: "Download as SVG, for paper", icon: Plotly.Icons.camera, click: () => download(box, figure) };
    Plotly.react(box, data, layout, { ...config, modeBarButtonsToAdd: [save] });
  };

  for (const group of all(".copies")) group.hidden = false;
  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.dataset.copy);
      say("Copied");
      const words = button.textContent;
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = words; }, 1500);
    });
  }

  const live = made("p", { class: "live", role: "status", "aria-live": "polite" });
  document.body.append(live);
  const say = (text) => { live.textContent = text; };

  // Tables are sorted by the exact value of a cell, else by its text; unknown values stay at the end.
  const worth = (row, column) => {
    const cell = row.cells[column];
    const number = all("data", cell).find((item) => !item.closest("details"));
    if (number) return Number(number.value);
    const text = [...cell.childNodes].map((node) => (node.tagName === "DETAILS" ? "" : node.textContent)).join("").trim();
    if (/^(-(?!\d)|no result|$)/.test(text)) return null;  // a dash has the reason behind it
    return /^-?[\d.,]+( |$)/.test(text) ? Number(text.split(" ")[0].replaceAll(",", "")) : text;
  };
  const order = (one, other) => (typeof one === "number" && typeof other === "number" ? one - other
    : String(one).localeCompare(String(other), "en", { numeric: true }));
  const buttons = [];
  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (head.matches(".strip-col, .unsorted")) return;
      const button = made("button", { type: "button", class: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      buttons.push([head, button]);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const one of heads) one.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [worth(row, column), row]);
        rows.sort(([one], [other]) => (one === null ? 1 : 0) - (other === null ? 1 : 0)
          || (one === null ? 0 : (down ? -1 : 1) * order(one, other)));
        body.append(...rows.map(([, row]) => row));
        say(`Sorted by ${button.textContent.trim()}, ${down ? "descending" : "ascending"}`);
      });
    });
  };

  // A field above a table filters its rows; links to the trials of a cell write `cell:3` into it.
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
        row.hidden = !(cell ? row.dataset.cell === cell[1] : texts[index].includes(wanted));
        left += row.hidden ? 0 : 1;
      });
      count.textContent = wanted ? ` ${left} of ${rows.length}` : "";
    };
    field.addEventListener("input", apply);
    filters[name] = { field, apply, bar };
  };

  // Narrow windows show each row of such a table as a card: its cells stacked, each with the name of its column.
  const stackable = (table) => {
    const names = [...table.tHead.rows[0].cells].map((head) => head.textContent.trim());
    table.classList.add("stackable");
    table.setAttribute("role", "table");
    for (const part of [table.tHead, table.tBodies[0]]) part.setAttribute("role", "rowgroup");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, column) => {
        const head = cell.closest("thead");
        cell.setAttribute("role", head ? "columnheader" : cell.tagName === "TH" ? "rowheader" : "cell");
        if (head || cell.tagName === "TH" || cell.matches(".strip-col")) return;
        cell.dataset.label = names[column];
        if (cell.childNodes.length > 1) {
          const box = made("div", {});
          box.append(...cell.childNodes);
          cell.append(box);
        }
      });
    }
  };

  // A long table scrolls inside its frame until it is expanded; page search and keyboard reach all of it.
  const long = (frame) => {
    const rows = frame.querySelector("tbody").rows.length;
    const button = made("button", { type: "button", class: "more", "aria-pressed": "false" }, `Show all ${rows} rows`);
    button.addEventListener("click", () => {
      const open = frame.classList.toggle("whole");
      button.setAttribute("aria-pressed", String(open));
    });
    frame.after(button);
  };

  for (const table of all("table.cards")) stackable(table);
  for (const table of all("table[data-sort]")) sortable(table);
  for (const table of all("table[data-filter]")) filterable(table);
  for (const frame of all(".scroll.tall")) long(frame);

  // A link to a row opens the folds around it and clears a filter that hides it; a link to a cell's trials filters them.
  const reach = (hash) => {
    const target = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (!target) return;
    const filter = filters[target.dataset.filters];
    if (filter) {
      filter.field.value = `cell:${target.dataset.cell}`;
      filter.apply();
    } else if (target.tagName === "TR" && target.hidden) {
      const hiding = filters[target.closest("table").dataset.filter];
      if (hiding) {
        hiding.field.value = "";
        hiding.apply();
      }
    }
    const shown = filter ? filter.bar : target;
    for (let part = shown.parentElement; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    shown.scrollIntoView({ block: target.tagName === "SECTION" ? "start" : "center" });
    if (filter) filter.field.focus({ preventScroll: true });
  };
  addEventListener("hashchange", () => reach(location.hash));
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) {
      event.preventDefault();
      reach(link.hash);
    }
  });

  const unfold = document.querySelector("[data-unfold]");
  if (unfold) {
    unfold.hidden = false;
    unfold.addEventListener("click", () => {
      const open = unfold.getAttribute("aria-pressed") !== "true";
      unfold.setAttribute("aria-pressed", String(open));
      for (const part of all("details")) part.open = open || part.dataset.first === "open";
      for (const frame of all(".scroll.tall")) frame.classList.toggle("whole", open);
    });
    for (const part of all("details[open]")) part.dataset.first = "open";
  }

  // Print uses the light palette and a fixed width, and shows what is open; afterwards the page is restored.
  // Table headers become plain text, because Chromium does not paint buttons in headers repeated on each sheet.
  const onOpen = (draw) => {
    for (const part of all("details")) part.addEventListener("toggle", () => { if (part.open) draw(); });
  };
  const onPaper = (before, after) => {
    addEventListener("beforeprint", () => {
      root.dataset.print = "true";
      for (const [head, button] of buttons) head.replaceChildren(...button.childNodes);
      before();
    });
    addEventListener("afterprint", () => {
      delete root.dataset.print;
      for (const [head, button] of buttons) {
        button.append(...head.childNodes);
        head.append(button);
      }
      after();
    });
  };
  const onScheme = (redraw) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  return { all, figureOf, draw, reach, onOpen, onPaper, onScheme };
})();
