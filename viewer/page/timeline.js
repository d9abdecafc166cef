// The time axis, the bars of the tree, and the flame view.
"use strict";

/** The steps between two marks of the axis, in nanoseconds: 1, 2 and 5 times each power of ten. @param {number} span */
function stepOf(span) {
  const power = 10 ** Math.floor(Math.log10(Math.max(span, 1) / 3));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => span / step <= 4) ?? 10 * power;
}

/**
 * Maps times to percent of the width.
 * @param {Model} model @param {Run} top
 */
function scaleOf(model, top) {
  const start = model.startOf(top);
  // Microseconds. A clock that was set back must not make a negative span.
  const span = Math.max(1, model.endOf(top) - start);
  return { start, span, at: (/** @type {number} */ time) => Math.min(100, Math.max(0, ((time - start) / span) * 100)) };
}

/** @param {HTMLElement} axis @param {{ span: number }} scale */
function drawAxis(axis, { span }) {
  const look = String(span);
  if (axis.dataset.look === look) return;
  axis.dataset.look = look;
  const nanoseconds = span * 1000;
  /** @type {HTMLElement[]} */
  const marks = [];
  const step = stepOf(nanoseconds);
  for (let at = 0; at <= nanoseconds; at += step) {
    const [part, isLast] = [at / nanoseconds, at + step > nanoseconds];
    // The text of a mark near the end is before it, where the text of the mark before would be.
    const text = isLast || part < 0.55 ? formatDuration(at) : "";
    const mark = make("span", { class: isLast && part > 0.8 ? "late" : "" }, [at === 0 ? "0" : text]);
    mark.style.left = `${part * 100}%`;
    marks.push(mark);
  }
  axis.replaceChildren(make("div", {}, marks));
}

/** The bar of a run. @param {Model} model @param {Run} run @param {ReturnType<typeof scaleOf>} scale */
function barOf(model, run, scale) {
  const [left, right] = [scale.at(model.startOf(run)), scale.at(model.endOf(run))];
  const bar = make("i", { class: `of-${model.outcomeOf(run)}` });
  bar.style.left = `${left}%`;
  bar.style.width = `max(2px, ${right - left}%)`;
  return make("span", { class: "time" }, [bar]);
}

/** The class that colors a kind: one of twelve colors. @param {Model} model @param {string} kind */
function hueOf(model, kind) {
  return `hue-${(model.kinds.get(kind) ?? 0) % 12}`;
}

/** The class that colors a box of the flame view. @param {Model} model @param {Run} run @param {string} by @param {number} most */
function colorOf(model, run, by, most) {
  if (by === "outcome") return `of-${model.outcomeOf(run)}`;
  if (by === "cost") return `cost-${most > 0 ? Math.ceil((costOf(run) / most) * 5) : 0}`;
  return hueOf(model, run.kind);
}

/** The cost of a run with the runs below, or its tokens if the recording has no costs. @param {Run} run */
function costOf(run) {
  return run.total.hasCost ? run.total.cost : run.tokens;
}

/** The boxes of a run as a flame view. Boxes are drawn only where one looks, and if they are wider than a hair. */
class Flame {
  /** @param {HTMLElement} element @param {(run: Run) => void} choose */
  constructor(element, choose) {
    this.element = element;
    this.space = make("div", { role: "presentation", class: "space" });
    element.append(this.space);
    this.look = "";
    /** The number of boxes in view that are too narrow to be drawn. */
    this.narrow = 0;
    /** @type {ReturnType<Model["boxes"]>} */
    this.boxes = [];
    /** @type {Map<Run, number>} */
    this.rowOf = new Map();
    /** The elements of the boxes. They stay while a recording grows, so that a click hits the box that was pressed. @type {Map<Run, HTMLElement>} */
    this.drawn = new Map();
    element.addEventListener("scroll", () => schedule());
    element.addEventListener("click", (event) => {
      const id = /** @type {HTMLElement} */ (event.target).closest("[data-key]")?.getAttribute("data-key");
      const box = this.boxes.find(({ run }) => run.id === id);
      if (box) choose(box.run);
    });
  }

  /**
   * @param {Model} model @param {Run} top @param {string} by
   * @param {{ selected?: Run, isMatch: (run: Run) => boolean, filter: string }} state `filter` is a text that differs when
   *   other runs are shown.
   */
  draw(model, top, by, { selected, isMatch, filter }) {
    const look = `${model.version} ${top.id} ${filter}`;
    if (this.look !== look) {
      this.look = look;
      this.boxes = model.boxes(top, isShown);
      this.rowOf = new Map(this.boxes.map(({ run, row }) => [run, row]));
    }
    const height = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) * rootFontSize();
    const rows = this.boxes.reduce((most, { row }) => Math.max(most, row + 1), 0);
    this.space.style.height = `${rows * height}px`;
    const scale = scaleOf(model, top);
    const pixel = 100 / Math.max(1, this.element.clientWidth);
    const from = this.element.scrollTop / height - 2;
    const to = from + this.element.clientHeight / height + 4;
    const most = costOf(top);
    /** The right edge of the last box that was drawn in each row. @type {number[]} */
    const edges = [];
    const before = this.drawn;
    this.drawn = new Map();
    this.narrow = 0;
    for (const { run, row, start, end } of this.boxes) {
      if (row < from || row > to) continue;
      const [left, right] = [scale.at(start), scale.at(end)];
      // Boxes within one hair of each other would only cover each other.
      if (run !== selected && right - (edges[row] ?? -1) < pixel) {
        this.narrow += 1;
        continue;
      }
      edges[row] = Math.max(right, left + pixel);
      const element = before.get(run) ?? this.space.appendChild(make("div", { role: "treeitem", id: `flame-${run.id}`, "data-key": run.id }));
      before.delete(run);
      this.drawn.set(run, element);
      element.className = colorOf(model, run, by, most) + (isMatch(run) ? " match" : "");
      Object.assign(element.style, { left: `${left}%`, width: `max(2px, ${right - left}%)`, top: `${row * height}px` });
      this.drawBox(element, model, run, row + 1, run === selected);
    }
    for (const element of before.values()) element.remove();
  }

  /** @param {HTMLElement} element @param {Model} model @param {Run} run @param {number} level @param {boolean} isSelected */
  drawBox(element, model, run, level, isSelected) {
    const label = labelOf(model, run);
    element.setAttribute("aria-level", String(level));
    element.setAttribute("aria-selected", String(isSelected));
    if (element.title === label) return;
    element.title = label;
    element.setAttribute("aria-label", label);
    const sign = make("b", { "aria-hidden": "true" }, [OUTCOMES[model.outcomeOf(run)].sign]);
    element.replaceChildren(make("span", {}, [sign, ` ${titleOf(run)}`]));
  }

  /** @param {Run} run */
  show(run) {
    const height = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) * rootFontSize();
    const top = (this.rowOf.get(run) ?? 0) * height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop || top + height > scrollTop + clientHeight) this.element.scrollTop = top - clientHeight / 2;
  }
}

/** The number of errors below a run. @param {Run} run */
function errorsOf(run) {
  return `${formatCount(run.errorsBelow)} ${run.errorsBelow === 1 ? "error" : "errors"} below`;
}

/** The whole text of a run, as a screen reader reads it. @param {Model} model @param {Run} run */
function labelOf(model, run) {
  const facts = [titleOf(run), OUTCOMES[model.outcomeOf(run)].word, formatDuration(model.durationOf(run)), ...usageOf(run)];
  if (run.discarded > 0) facts.push(`${run.discarded + 1} attempts`);
  if (run.errorsBelow > 0) facts.push(errorsOf(run));
  if (run.isInCycle) facts.push(CYCLE);
  return visible(facts.join(", "));
}
