// The details of the selected run: seven tabs.
"use strict";

const TABS = ["Overview", "Input", "Output", "Messages", "Events", "Context", "Raw"];

/** The number of characters of a value that are shown at once. */
const SHOWN = 100_000;

/** The number of events that are listed at once. */
const LISTED = 1000;

/** Reads records, and keeps the last ones. */
class Records {
  /** @param {(at: number, number: number) => Promise<any>} read */
  constructor(read) {
    this.read = read;
    /** @type {Map<number, Promise<any>>} */
    this.kept = new Map();
  }

  /** @param {Head | undefined} head @returns {Promise<any>} */
  get(head) {
    if (!head) return Promise.resolve(undefined);
    const kept = this.kept.get(head.at);
    if (kept) return kept;
    const record = this.read(head.at, head.number);
    // A failure, such as a server that is being restarted, is not kept.
    record.catch(() => this.kept.delete(head.at));
    this.kept.set(head.at, record);
    if (this.kept.size > 200) this.kept.delete(/** @type {number} */ (this.kept.keys().next().value));
    return record;
  }

  clear() {
    this.kept.clear();
  }
}

class Tabs {
  /** @param {Records} records */
  constructor(records) {
    this.records = records;
    /** What is drawn, and for which run or note. */
    this.look = "";
    this.shown = "";
    /** Grows with each drawing, so that a record that arrives late is not drawn over a newer selection. */
    this.drawing = 0;
    /** The event whose record is shown in `Events` and `Raw`. @type {Head | undefined} */
    this.event = undefined;
    this.showsTrajectory = false;
    /** The number of events that are listed. */
    this.listed = LISTED;
    const buttons = TABS.map((name, index) => {
      const tab = make("button", { type: "button", role: "tab", id: `tab-${index + 1}`, title: `${name} (${index + 1})` }, [name]);
      tab.setAttribute("aria-controls", "panel");
      tab.addEventListener("click", () => change({ tab: index }));
      tab.addEventListener("keydown", (event) => this.key(event, index));
      return tab;
    });
    byId("tabs").append(...buttons);
  }

  /** @param {KeyboardEvent} event @param {number} index */
  key(event, index) {
    const last = TABS.length - 1;
    const to = { ArrowLeft: index === 0 ? last : index - 1, ArrowRight: index === last ? 0 : index + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    change({ tab: to });
    byId(`tab-${to + 1}`).focus();
  }

  /** @param {Model} model @param {Run | undefined} run @param {Note | undefined} note @param {number} tab */
  draw(model, run, note, tab) {
    const shown = run ? run.id : note ? `note ${note.order}` : "";
    const isSame = this.shown === `${model.recording} ${shown}`;
    this.shown = `${model.recording} ${shown}`;
    if (!isSame) [this.event, this.listed] = [undefined, LISTED];
    // The overview counts what the runs below use, so it changes with the model.
    const progress = run && (tab === 0 ? `${run.last} ${run.tokens} ${model.endOf(run)}` : run.count);
    const look = [this.shown, tab, progress, run?.isEnded, this.event?.at, this.showsTrajectory, this.listed].join(" ");
    if (this.look === look) return;
    this.look = look;
    TABS.forEach((_, index) => {
      byId(`tab-${index + 1}`).setAttribute("aria-selected", String(index === tab));
      byId(`tab-${index + 1}`).tabIndex = index === tab ? 0 : -1;
    });
    byId("panel").setAttribute("aria-labelledby", `tab-${tab + 1}`);
    setText(byId("details-title"), run ? titleOf(run) : note ? "Note" : "Details");
    this.fill(model, run, note, tab, isSame);
  }

  /** @param {Model} model @param {Run | undefined} run @param {Note | undefined} note @param {number} tab @param {boolean} isSame */
  async fill(model, run, note, tab, isSame) {
    const drawing = ++this.drawing;
    const panel = byId("panel");
    let content;
    if (note) content = [await this.ofNote(note, tab)];
    else if (!run) content = [make("p", { class: "hint" }, ["Select a run."])];
    else {
      const pages = [this.overview, this.input, this.output, this.messages, this.events, this.context, this.raw];
      try {
        content = await pages[tab].call(this, model.headsOf(run), run, model);
      } catch (error) {
        content = [make("p", { class: "error" }, [`The record could not be read: ${error.message}`])];
      }
    }
    if (drawing !== this.drawing) return;
    const scroll = isSame ? panel.scrollTop : 0;
    panel.replaceChildren(...content);
    panel.scrollTop = scroll;
  }

  /** What a tab shows, as JSON. @param {Model} model @param {Run | undefined} run @param {number} tab */
  async copied(model, run, tab) {
    if (!run) return "null";
    const heads = model.headsOf(run);
    const values = [
      async () => this.first(heads, "finish"),
      async () => (await this.inputs(heads, run))[0]?.value,
      async () => (await this.first(heads, "success"))?.payload?.output,
      async () => this.conversation(heads, run),
      async () => (this.event ? this.records.get(this.event) : heads),
      async () => (await this.records.get(heads[0]))?.context,
      async () => this.records.get(this.rawHead(heads)),
    ];
    return JSON.stringify((await values[tab]()) ?? null, null, 2);
  }

  /** The record of the first head with a fact. @param {Head[]} heads @param {string} fact */
  first(heads, fact) {
    return this.records.get(heads.find((head) => head.fact === fact));
  }

  /** @param {Head[]} heads */
  rawHead(heads) {
    return this.event ?? heads.find((head) => head.fact === "finish") ?? heads[heads.length - 1];
  }

  /** @param {Note} note @param {number} tab */
  async ofNote(note, tab) {
    return tab === 6 ? jsonOf(await this.records.get(note.head)) : make("p", { class: "error" }, [textOfNote(note)]);
  }

  /** @param {Head[]} heads @param {Run} run @param {Model} model */
  async overview(heads, run, model) {
    if (run === model.outside) return [hint(`${formatCount(run.count)} events happened outside of runs: see the tab Events.`)];
    const outcome = OUTCOMES[model.outcomeOf(run)];
    /** @type {[string, string][]} */
    const facts = [
      ["Outcome", `${outcome.sign} ${outcome.word}`],
      ["Started", run.started === undefined ? "not recorded" : formatTime(run.started)],
      ["Duration", formatDuration(model.durationOf(run))],
      ["Own time", formatDuration(model.ownTimeOf(run))],
      ["Attempts", String(run.discarded + 1)],
      ["Tokens", tokensOf(run)],
      ["Cost", costs(run)],
      ["Runs below", formatCount(below(run))],
      ["Events", formatCount(run.count)],
    ];
    if (run.errorsBelow > 0) facts.push(["Errors below", formatCount(run.errorsBelow)]);
    if (model.lostIn(run) > 0) facts.push(["Lost events", formatCount(model.lostIn(run))]);
    facts.push(["Run id", run.id]);
    facts.push(...parentOf(run, await this.records.get(run.parentId && !run.parent ? heads[0] : undefined)));
    const list = make("dl", {}, facts.flatMap(([name, value]) => [make("dt", {}, [name]), make("dd", {}, [value])]));
    const [error, end] = [await this.first(heads, "error"), await this.first(heads, "finish")];
    return [list, ...errorOf(error?.payload?.error, end?.payload?.outcome)];
  }

  /** @param {Head[]} heads @param {Run} run */
  async input(heads, run) {
    const inputs = await this.inputs(heads, run);
    if (inputs.length === 0) return [hint("The start of the run was not recorded.")];
    return inputs.flatMap(({ title, value }) => [...(title ? [make("h3", {}, [title])] : []), jsonOf(value)]);
  }

  /**
   * The inputs of a run: the executed one first, and then the one before an approval or a layer has changed it.
   * @param {Head[]} heads @param {Run} run @returns {Promise<{ title: string, value: any }[]>}
   */
  async inputs(heads, run) {
    // `success` and `finish` have the input as well.
    const record = (await this.first(heads, "start")) ?? (await this.first(heads, "success")) ?? (await this.first(heads, "finish"));
    const given = record?.payload?.input;
    const [edited, called] = [await this.last(heads, isEdit), await this.last(heads, isToolStart)];
    // The tool's own `start` has what its function receives.
    const executed = called?.payload ?? edited?.payload;
    const editor = edited ? editorOf(edited.payload) : await this.editorOfCall(record, run);
    if (executed === undefined || sameJson(executed.input, given)) {
      return record ? [{ title: editor, value: given }] : [];
    }
    const before = record ? [{ title: "Input before the change", value: given }] : [];
    return [{ title: editor || "Executed input, changed by a layer", value: executed.input }, ...before];
  }

  /**
   * Who has edited the arguments of an agent's call: the agent reports it, and then makes the call with them.
   * @param {any} start @param {Run} run
   */
  async editorOfCall(start, run) {
    const call = start?.context?.call_id;
    if (!run.parent || call === undefined) return "";
    const number = model.heads[run.order].number;
    const answers = model.headsOf(run.parent).filter((head) => isOwn(head, ".answered") && head.number < number);
    const records = await Promise.all(answers.map((head) => this.records.get(head)));
    const edit = records.findLast(({ payload }) => payload?.call === call && payload.edited);
    return edit ? editorOf(edit.payload) : "";
  }

  /** The record of the last head that a condition selects. @param {Head[]} heads @param {(head: Head) => boolean} is */
  last(heads, is) {
    return this.records.get(heads.findLast(is));
  }

  /** @param {Head[]} heads @param {Run} run */
  async output(heads, run) {
    const success = await this.first(heads, "success");
    if (!success) return [hint(run.isEnded ? "The run has no output." : "The run has no output yet.")];
    return [jsonOf(success.payload?.output)];
  }

  /** @param {Head[]} heads @param {Run} run */
  async messages(heads, run) {
    const messages = await this.conversation(heads, run);
    if (messages.length === 0) return [hint("The run has no messages.")];
    /** @type {Map<string, string>} */
    const names = new Map();
    return [make("ol", { class: "chat", "aria-label": "Messages" }, messages.map((message) => messageOf(message, names)))];
  }

  /**
   * The messages of an agent in the order in which they were added, or those of one call of a model, after the system
   * prompt. The first model that the agent asks has its prompt.
   * @param {Head[]} heads @param {Run} run
   */
  async conversation(heads, run) {
    const added = heads.filter((head) => head.fact === "event" && (head.path ?? "").endsWith(".message"));
    const records = await Promise.all(added.map((head) => this.records.get(head)));
    const messages = records.map((record) => record.payload?.message).filter(isMessage);
    if (messages.length > 0) {
      const asked = run.children.find((child) => child.kind === "ChatModel");
      const request = asked && (await this.first(model.headsOf(asked), "start"));
      return [...systemOf(request), ...messages];
    }
    const [start, success] = [await this.first(heads, "start"), await this.first(heads, "success")];
    const { messages: asked } = start?.payload?.input ?? {};
    return [...systemOf(start), ...(Array.isArray(asked) ? asked : []), success?.payload?.output?.message].filter(isMessage);
  }

  /** @param {Head[]} heads @param {Run} run */
  async events(heads, run) {
    const shown = heads.filter((head) => this.showsTrajectory || !isOfTrajectory(head));
    const rows = shown.slice(0, this.listed).map((head) => this.eventRow(head, run.started ?? heads[0].time ?? 0));
    const names = ["Time", "Event", "Size"].map((name) => make("th", { scope: "col" }, [name]));
    const table = make("table", {}, [make("thead", {}, [make("tr", {}, names)]), make("tbody", {}, rows)]);
    const check = /** @type {HTMLInputElement} */ (make("input", { type: "checkbox" }));
    check.checked = this.showsTrajectory;
    check.addEventListener("change", () => this.set({ showsTrajectory: check.checked }));
    const content = [make("label", {}, [check, " show middleware.trajectory.*"]), table];
    const further = shown.length - rows.length;
    if (further > 0) content.push(button(`list ${formatCount(further)} further events`, () => this.set({ listed: Infinity })));
    return this.event ? [jsonOf(await this.records.get(this.event)), ...content] : content;
  }

  /** @param {Head} head @param {number} start */
  eventRow(head, start) {
    const name = button(head.path ?? head.fact, () => this.set({ event: head === this.event ? undefined : head }));
    name.setAttribute("aria-pressed", String(head === this.event));
    const cells = [formatDuration(((head.time ?? start) - start) * 1000), name, formatBytes(head.bytes)];
    return make("tr", {}, cells.map((cell) => make("td", {}, [cell])));
  }

  /** @param {Partial<Tabs>} changes */
  set(changes) {
    Object.assign(this, changes);
    schedule();
  }

  /** @param {Head[]} heads */
  async context(heads) {
    const first = (await this.first(heads, "start")) ?? (await this.records.get(heads[0]));
    return [jsonOf(first?.context)];
  }

  /** @param {Head[]} heads */
  async raw(heads) {
    return [jsonOf(await this.records.get(this.rawHead(heads)))];
  }
}

/** @param {string} text @param {() => void} press */
function button(text, press) {
  const made = make("button", { type: "button" }, [text]);
  made.addEventListener("click", press);
  return made;
}

/** @param {string} text */
function hint(text) {
  return make("p", { class: "hint" }, [text]);
}

/** @param {any} value */
function isMessage(value) {
  return typeof value?.role === "string" && Array.isArray(value.parts);
}

/** Own events of a run, whose paths end with a name. @param {Head} head @param {string} name */
function isOwn(head, name) {
  return head.fact === "event" && (head.path ?? "").endsWith(name) && !isOfTrajectory(head);
}

/** @param {Head} head */
function isEdit(head) {
  return isOwn(head, ".approval.edited");
}

/** @param {Head} head */
function isToolStart(head) {
  return head.kind === "Tool" && isOwn(head, ".start");
}

/** @param {any} payload The payload of an event about an edit. */
function editorOf({ by }) {
  return typeof by === "string" ? `Executed input, edited by ${by}` : "Executed input, edited in an approval";
}

/** @param {any} a @param {any} b @returns {boolean} */
function sameJson(a, b) {
  if (a === b || typeof a !== "object" || typeof b !== "object" || a === null || b === null) return a === b;
  const [keys, others] = [Object.keys(a), Object.keys(b)];
  return Array.isArray(a) === Array.isArray(b) && keys.length === others.length && keys.every((key) => Object.hasOwn(b, key) && sameJson(a[key], b[key]));
}

/** A value as text: a string as it is, anything else as indented JSON. @param {any} value */
function jsonOf(value) {
  return longText("pre", "", typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "nothing"));
}

/** A text, of which the beginning is shown at first if it is long. @param {string} tag @param {string} name @param {string} text */
function longText(tag, name, text) {
  const shown = make(tag, name ? { class: name } : {}, [text.slice(0, SHOWN)]);
  if (text.length <= SHOWN) return shown;
  const more = button(`show all ${formatCount(text.length)} characters`, () => {
    setText(shown, text);
    more.remove();
  });
  return make("div", {}, [shown, more]);
}

/** The system prompt of a model's request, as messages. @param {any} start */
function systemOf(start) {
  const system = start?.payload?.input?.system;
  return typeof system === "string" ? [{ role: "system", parts: [{ type: "text", content: system }] }] : [];
}

/** @param {any} message @param {Map<string, string>} names the tools of the calls so far, by the ids of the calls */
function messageOf({ role, parts, finish_reason: reason }, names) {
  const heading = [role, ...(reason && reason !== "stop" ? [` (${reason})`] : [])].map(String);
  return make("li", { class: `role-${["user", "assistant", "system", "tool"].includes(role) ? role : "other"}` }, [
    make("h3", {}, heading),
    ...parts.map((/** @type {any} */ part) => partOf(part, names)),
  ]);
}

/** @param {any} part @param {Map<string, string>} names */
function partOf(part, names) {
  // Of calls with one id, which some servers number anew in each turn, a result belongs to the last one before it.
  if (part?.type === "tool_call") names.set(part.id, String(part.name));
  const of = names.has(part?.id) ? ` of ${names.get(part.id)}` : "";
  const result = `${part?.is_error ? "error" : "result"}${of}`;
  const titles = new Map([["tool_call", `calls ${part?.name}`], ["tool_call_response", result], ["reasoning", "reasoning"]]);
  const name = titles.get(part?.type);
  const value = part?.content ?? part?.arguments ?? part?.response ?? (part?.type === "uri" ? mediaOf(part) : part);
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const body = longText("div", "part", text);
  const inner = part?.type === "tool_call_response" && Array.isArray(part.parts) ? part.parts : [];
  const bodies = [body, ...inner.map((/** @type {any} */ one) => partOf(one, new Map()))];
  return name ? make("div", { class: `part-${part.type}` }, [make("h4", {}, [name]), ...bodies]) : body;
}

/** The type of an image, a sound or a file, and its size or address. A page loads and shows no content. @param {any} part */
function mediaOf({ modality, mime_type: type, uri }) {
  const data = /^data:([^;,]*)([^,]*),([^]*)$/i.exec(String(uri));
  const kind = [modality ?? "data", type ?? data?.[1]].filter(Boolean).join(", ");
  if (!data) return `[${kind}, ${uri}]`;
  const bytes = /;base64$/i.test(data[2]) ? Math.floor((data[3].replace(/=+$/, "").length * 3) / 4) : data[3].length;
  return `[${kind}, ${formatCount(bytes)} bytes]`;
}

/** The error of a run, with its causes and details. @param {any} error @param {any} outcome @returns {HTMLElement[]} */
function errorOf(error, outcome) {
  const report = error ?? outcome?.error;
  const reason = report?.message ?? outcome?.reason ?? outcome?.message ?? outcome?.interrupt?.question;
  if (reason === undefined && !outcome?.interrupt) return [];
  const content = [make("h3", {}, ["Error"]), make("p", { class: "error" }, [String(reason ?? JSON.stringify(outcome.interrupt))])];
  if (outcome?.by) content.push(make("p", {}, [`by ${outcome.by}`]));
  const causes = Array.isArray(report?.causes) ? report.causes : [];
  if (causes.length > 0) {
    content.push(make("h3", {}, ["Causes"]), make("ol", {}, causes.map((/** @type {any} */ cause) => make("li", {}, [String(cause)]))));
  }
  if (report?.details) content.push(make("h3", {}, ["Details"]), jsonOf(report.details));
  return content;
}

/** @param {Run} run */
function tokensOf(run) {
  if (run.tokens === 0) return "none reported";
  const { input, output, isEstimated } = run.total;
  const estimate = isEstimated ? ", in part estimated" : "";
  return `${estimated(run, formatCount(run.tokens))} (${formatCount(input)} in, ${formatCount(output)} out${estimate})`;
}

/** @param {Run} run */
function costs(run) {
  return run.total.hasCost ? estimated(run, formatCost(run.total.cost)) : "none reported";
}

/** The number of runs below a run. @param {Run} run */
function below(run) {
  let count = 0;
  const stack = [...run.children];
  for (let next = stack.pop(); next; next = stack.pop()) {
    count += 1;
    for (const child of next.children) stack.push(child);
  }
  return count;
}
