// Draws the figures of the report, and sorts its tables by the column that is chosen.

(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const options = { renderer: "svg", actions: false, logLevel: 1, tooltip: { theme: dark ? "dark" : "light" } };

  for (const place of document.querySelectorAll("div.chart")) {
    const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
    vegaEmbed(place, spec, options).catch((error) => {
      place.textContent = "This figure could not be drawn: " + error.message;
    });
  }

  const compare = (numbers, falling) => (one, other) => {
    // What is unknown comes last, in both directions.
    if (one === "" || other === "") return (one === "") - (other === "");
    const found = numbers ? one - other : one.localeCompare(other);
    return falling ? -found : found;
  };

  const sort = (body, column, falling) => {
    const rows = [...body.rows].map((row) => [row.cells[column].dataset.v ?? "", row]);
    const order = compare(rows.every(([value]) => !isNaN(value)), falling);
    body.append(...rows.sort(([one], [other]) => order(one, other)).map(([, row]) => row));
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      sort(table.tBodies[0], column, falling);
    }));
  }
})();
