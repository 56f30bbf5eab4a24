// A table whose rows keep their place in the document while their values change, so that a reader is not interrupted.

import { UNKNOWN } from "./format.js";

export class Table {
  // `spec` has id, title, about (a sentence), none (what an empty table says), absent (what null means), key(row) and
  // columns: {title, value(row), write(value), number, wide, mark(row)}.
  constructor(spec, parent) {
    this.spec = spec;
    this.rows = new Map();
    this.filter = "";
    this.sorted = null; // {column, down}
    this.data = [];
    this.build(parent);
  }

  build(parent) {
    const { id, title, about, columns } = this.spec;
    const section = make(parent, "section", { id, "aria-labelledby": `${id}-title` });
    make(section, "h2", { id: `${id}-title` }, title);
    if (about) make(section, "p", { class: "about" }, about);
    const scroll = make(section, "div", { class: "scroll", role: "group", "aria-labelledby": `${id}-title`, tabindex: "0" });
    const table = make(scroll, "table", { "aria-labelledby": `${id}-title` });
    const head = make(make(table, "thead"), "tr");
    this.heads = columns.map((column) => {
      const cell = make(head, "th", { scope: "col", class: column.number ? "number" : "" });
      const button = make(cell, "button", { type: "button" }, column.title);
      button.addEventListener("click", () => this.sort(column));
      return cell;
    });
    this.body = make(table, "tbody");
    this.scroll = scroll;
    this.more = make(section, "p", { class: "more" });
  }

  sort(column) {
    const first = Boolean(column.number);
    const now = this.sorted;
    if (now?.column !== column) this.sorted = { column, down: first };
    else this.sorted = now.down === first ? { column, down: !first } : null;
    this.spec.columns.forEach((one, index) => {
      const direction = this.sorted?.column === one ? (this.sorted.down ? "descending" : "ascending") : null;
      if (direction) this.heads[index].setAttribute("aria-sort", direction);
      else this.heads[index].removeAttribute("aria-sort");
    });
    this.draw();
  }

  search(filter) {
    this.filter = filter;
    this.draw();
  }

  update(data, leftOut) {
    this.data = data;
    this.leftOut = leftOut ?? 0;
    this.draw();
  }

  draw() {
    const found = (this.data ?? []).map((row) => this.cells(row)).filter(({ search }) => search.includes(this.filter));
    if (this.sorted) found.sort((one, other) => this.compare(one, other));
    const keys = new Set(found.map(({ key }) => key));
    for (const [key, line] of this.rows) {
      if (!keys.has(key)) {
        line.remove();
        this.rows.delete(key);
      }
    }
    let place = this.body.firstChild;
    for (const one of found) {
      const line = this.line(one);
      if (line === place) place = place.nextSibling;
      else this.body.insertBefore(line, place);
    }
    this.scroll.hidden = !found.length;
    setText(this.more, this.remark(found.length));
  }

  cells(row) {
    const values = this.spec.columns.map((column) => column.value(row));
    const texts = this.spec.columns.map((column, index) => column.write(values[index]));
    return { key: this.spec.key(row), row, values, texts, search: texts.join(" ").toLowerCase() };
  }

  line({ key, row, texts }) {
    let line = this.rows.get(key);
    if (!line) {
      line = make(null, "tr", { "data-key": key });
      for (const column of this.spec.columns) {
        const cell = make(line, "td", { class: column.number ? "number" : column.wide ? "wide" : "" });
        make(cell, "span");
      }
      this.rows.set(key, line);
    }
    this.spec.columns.forEach((column, index) => {
      const span = line.children[index].firstChild;
      setText(span, texts[index]);
      setClass(span, column.mark ? column.mark(row) : texts[index] === UNKNOWN ? "unknown" : "");
    });
    return line;
  }

  compare(one, other) {
    const { column, down } = this.sorted;
    const index = this.spec.columns.indexOf(column);
    const [left, right] = [one.values[index], other.values[index]];
    if (left === null || right === null) return (left === null) - (right === null); // what is not known comes last
    const order = typeof left === "number" ? left - right : one.texts[index].localeCompare(other.texts[index]);
    return down ? -order : order;
  }

  remark(shown) {
    if (this.data === null) return this.spec.absent;
    if (!this.data.length) return this.spec.none;
    const parts = [];
    if (shown < this.data.length) parts.push(`${this.data.length - shown} rows do not match the filter.`);
    if (this.leftOut) parts.push(`${this.leftOut} more are not shown.`);
    return parts.join(" ");
  }
}

export function make(parent, tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value) element.setAttribute(name, value);
  if (text) element.textContent = text;
  parent?.append(element);
  return element;
}

// Unchanged text is left alone: a screen reader would hear it again.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}
