// Numbers, times and runs as texts.
"use strict";

/** @param {number} nanoseconds */
function formatDuration(nanoseconds) {
  // The limits are those of rounding: 999,600 ns are not "1000 µs".
  if (nanoseconds < 999.5) return `${Math.round(nanoseconds)} ns`;
  if (nanoseconds < 999.5e3) return `${threeDigits(nanoseconds / 1e3)} µs`;
  if (nanoseconds < 999.5e6) return `${threeDigits(nanoseconds / 1e6)} ms`;
  if (nanoseconds < 59.95e9) return `${threeDigits(nanoseconds / 1e9)} s`;
  const seconds = Math.round(nanoseconds / 1e9);
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${seconds % 60} s`;
}

/** @param {number} number */
function threeDigits(number) {
  return number >= 99.95 ? number.toFixed(0) : number >= 9.995 ? number.toFixed(1) : number.toFixed(2);
}

/** @param {number} number */
function formatCount(number) {
  return number.toLocaleString("en-US");
}

/**
 * Characters that reverse or reorder the text around them, as escapes: a name or an error must look like what it is.
 * @param {string} text
 */
function visible(text) {
  return text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Cost in the unit of the recording, without the errors of binary fractions. @param {number} cost */
function formatCost(cost) {
  return String(Number(cost.toFixed(9)));
}

/** A number of a run with the runs below, with a `~` if a part of it is an estimate. @param {Run} run @param {string} text */
function estimated(run, text) {
  return run.total.isEstimated ? `~${text}` : text;
}

/** The tokens and the cost of a run with the runs below, if there are any. @param {Run} run @returns {string[]} */
function usageOf(run) {
  const tokens = run.tokens > 0 ? [`${estimated(run, formatCount(run.tokens))} tokens`] : [];
  return run.total.hasCost ? [...tokens, `cost ${estimated(run, formatCost(run.total.cost))}`] : tokens;
}

/** @param {number} bytes */
function formatBytes(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${threeDigits(bytes / 1e3)} kB` : `${threeDigits(bytes / 1e6)} MB`;
}

/** The date and time of a record, in the time zone of the reader. @param {number} microseconds */
function formatTime(microseconds) {
  const date = new Date(microseconds / 1000);
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const millis = String(date.getMilliseconds()).padStart(3, "0");
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${millis}`;
}

/** The text of a note. @param {Note} note */
function textOfNote({ head }) {
  if (head.fact === "gap") return `${formatCount(head.lost ?? 0)} events were lost here`;
  return head.reason ?? "";
}

const CYCLE = "a cycle: this run is also above its parent";

/** What a run was started in: a run, or a span of another process. @param {Run} run @param {any} record @returns {[string, string][]} */
function parentOf(run, record) {
  const plain = (/** @type {unknown} */ id) => String(id ?? "not recorded").replaceAll("-", "");
  if (run.parent) return [["Parent", titleOf(run.parent)]];
  if (!run.parentId) return [];
  if (run.isInCycle) return [["Parent", `${run.parentId} (⚠ ${CYCLE})`]];
  // An id that begins with eight zero bytes has the id of a span.
  if (!run.parentId.startsWith("00000000-0000-0000-")) return [["Parent", `${run.parentId} (not recorded)`]];
  return [["Continues", `trace ${plain(record?.trace?.id)}, span ${plain(run.parentId).slice(16)}`]];
}

/** The text of a run in a list. @param {Run} run */
function titleOf(run) {
  if (run.id === "outside") return "events outside of runs";
  return run.name ? `${run.kind} ${run.name}` : `run ${run.id.slice(0, 8)} (start not recorded)`;
}
