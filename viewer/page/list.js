// A list that has elements only for the rows in view, so that a hundred thousand rows cost as much as fifty.
"use strict";

/**
 * Makes an element. All text is set as text, so nothing in a recording is read as HTML, and no character of it changes
 * the direction of other texts.
 * @param {string} tag @param {Record<string, string>} [attributes] @param {(Node | string)[]} [children]
 * @returns {HTMLElement}
 */
function make(tag, attributes = {}, children = []) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (typeof child === "string" ? visible(child) : child)));
  return element;
}

/** @param {Element} element @param {string} text */
function setText(element, text) {
  element.textContent = visible(text);
}

/** @param {string} id @returns {any} */
function byId(id) {
  return document.getElementById(id);
}

/**
 * @template Row
 */
class VirtualList {
  /**
   * @param {HTMLElement} element The element that scrolls. Its rows have the role of its `data-role`.
   * @param {{
   *   key: (row: Row) => string,
   *   look: (row: Row) => string,
   *   render: (row: Row) => (Node | string)[],
   *   attributes: (row: Row, index: number) => Record<string, string>,
   *   choose: (row: Row, event: MouseEvent) => void,
   * }} options `look` is a text that differs when a row has to be rendered again.
   */
  constructor(element, options) {
    this.element = element;
    this.options = options;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Map<string, { element: HTMLElement, look: string, row: Row }>} */
    this.drawn = new Map();
    this.height = 0;
    this.space = make("div", { role: "presentation", class: "space" });
    element.append(this.space);
    element.addEventListener("scroll", () => schedule());
    element.addEventListener("click", (event) => {
      const clicked = /** @type {HTMLElement} */ (event.target).closest("[data-key]");
      const drawn = clicked && this.drawn.get(/** @type {HTMLElement} */ (clicked).dataset.key ?? "");
      if (drawn) options.choose(drawn.row, event);
    });
  }

  /** The height of a row, which depends on the size of the text. */
  get rowHeight() {
    this.height ||= parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) * rootFontSize();
    return this.height;
  }

  /** @param {Row[]} rows */
  draw(rows) {
    this.rows = rows;
    const height = this.rowHeight;
    this.space.style.height = `${rows.length * height}px`;
    const from = Math.max(0, Math.floor(this.element.scrollTop / height) - 5);
    const to = Math.min(rows.length, Math.ceil((this.element.scrollTop + this.element.clientHeight) / height) + 5);
    const seen = new Set();
    /** @type {HTMLElement | undefined} */
    let above;
    for (let index = from; index < to; index++) {
      const key = this.options.key(rows[index]);
      seen.add(key);
      const element = this.drawRow(key, rows[index], index);
      // A screen reader reads the elements in the order of the document.
      const place = above ? above.nextSibling : this.space.firstChild;
      if (place !== element) this.space.insertBefore(element, place);
      above = element;
    }
    for (const [key, { element }] of this.drawn) {
      if (seen.has(key)) continue;
      element.remove();
      this.drawn.delete(key);
    }
  }

  /** @param {string} key @param {Row} row @param {number} index @returns {HTMLElement} */
  drawRow(key, row, index) {
    const attributes = this.options.attributes(row, index);
    const look = `${index} ${JSON.stringify(attributes)} ${this.options.look(row)}`;
    let drawn = this.drawn.get(key);
    if (!drawn) {
      drawn = { element: make("div", { "data-key": key, id: `${this.element.id}-${key}` }), look: "", row };
      this.drawn.set(key, drawn);
    }
    drawn.row = row;
    if (drawn.look === look) return drawn.element;
    drawn.look = look;
    for (const { name } of [...drawn.element.attributes]) {
      if (name !== "data-key" && name !== "id" && !(name in attributes)) drawn.element.removeAttribute(name);
    }
    for (const [name, value] of Object.entries(attributes)) drawn.element.setAttribute(name, value);
    drawn.element.style.top = `${index * this.rowHeight}px`;
    drawn.element.replaceChildren(...this.options.render(row));
    return drawn.element;
  }

  /** The number of rows of a page. */
  get page() {
    return Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
  }

  /** Scrolls as little as possible. @param {number} index */
  show(index) {
    const [top, height] = [index * this.rowHeight, this.rowHeight];
    const { scrollTop, clientHeight } = this.element;
    // The list may not have its height yet.
    this.space.style.height = `${this.rows.length * height}px`;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + height > scrollTop + clientHeight) this.element.scrollTop = top + height - clientHeight;
  }
}

function rootFontSize() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize);
}
