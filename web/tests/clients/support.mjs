// Starts the server, and loads the clients from where `scripts/web-test` has installed them.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

export const folder = process.env.EMITREE_WEB_TEST;
const require = createRequire(join(folder, "package.json"));

/** Loads a package. */
export const load = (name) => import(pathToFileURL(require.resolve(name)));

/** Starts a program that prints its address, and returns the address and a function that ends the program. */
export async function start(program) {
  const child = spawn(join(process.env.EMITREE_DEBUG, "examples", program), { stdio: ["pipe", "pipe", "inherit"] });
  for await (const line of createInterface(child.stdout)) {
    return [line, () => child.kill()];
  }
  throw new Error(`${program} has ended`);
}

let threads = 0;
/** Returns the id of a thread that no other test has. */
export const newThread = () => `thread-${process.pid}-${(threads += 1)}`;

/** Waits until a function returns a value. */
export async function until(find) {
  for (;;) {
    const found = await find();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Replies of the model before which, in which and after which a run can end. */
export const beginnings = {
  nothing: "",
  text: "text",
  reasoning: "think",
  both: "think text",
  call: "text call fail",
  "half a call": "text cut pay",
  "after a call": "text call fail; text",
  "half a call after a call": "call fail; think cut pay",
};
