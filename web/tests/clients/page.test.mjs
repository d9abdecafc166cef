// The page of the example `chat_page` in Chromium, used as a person uses it: by roles, names and clicks.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { folder, start } from "./support.mjs";

const require = createRequire(join(folder, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

let browser, address, stop;
/** Messages of the console and errors of all pages: none is expected. */
const complaints = [];

before(async () => {
  [address, stop] = await start("chat_page");
  const args = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
});
after(async () => {
  await browser.close();
  stop();
  assert.deepEqual(complaints, []);
});

async function open(options = {}) {
  const page = await browser.newPage(options);
  page.setDefaultTimeout(20_000);
  page.on("console", (message) => {
    // A run under way is shown by the status 204 or 200, and a favicon is not there.
    if (!message.text().includes("favicon") && !message.text().includes("net::ERR_") && !message.text().includes("404")) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error.stack ?? error)));
  await page.goto(address);
  return page;
}

/** The column of a protocol. */
function column(page, name) {
  const section = page.locator("section", { has: page.getByRole("heading", { name }) });
  return {
    log: section.getByRole("log"),
    say: async (text) => {
      await section.getByRole("textbox").fill(text);
      await section.getByRole("button", { name: "Send" }).click();
    },
    button: (name) => section.getByRole("button", { name }),
    wait: (text) => section.getByRole("log").getByText(text).first().waitFor(),
  };
}

for (const name of ["AI SDK", "AG-UI"]) {
  describe(name, () => {
    test("tokens arrive one after the other, and a stop ends them", async () => {
      const page = await open();
      const { log, say, button, wait } = column(page, name);
      await say("Tell me a story.");
      await wait("On day 1 ");
      const early = await log.innerText();
      await wait("On day 3 ");
      assert.ok((await log.innerText()).length > early.length);
      await button("Stop").click();
      await wait("stopped");
      assert.ok(!(await log.innerText()).includes("On day 40"));
      await page.close();
    });

    test("an approval is given, and another one is not", async () => {
      const page = await open();
      const { log, say, button, wait } = column(page, name);
      await say("Pay Ada.");
      await wait("May `pay` begin");
      await button("Approve").click();
      await wait("Done: \"paid Ada 5\".");
      await say("Pay her again.");
      await button("Reject").click();
      await wait("Done: \"denied by approval: no\".");
      assert.equal(await log.getByRole("button").count(), 0);
      await page.close();
    });

    test("a question is answered", async () => {
      const page = await open();
      const { say, button, wait } = column(page, name);
      await say("Paint the door.");
      await wait("Which colour for the door?");
      await button("blue").click();
      await wait("Done: \"painted the door blue\".");
      await page.close();
    });

    test("a page that is loaded again in the middle of a run shows the same text", async () => {
      const page = await open();
      const { log, say, button, wait } = column(page, name);
      await say("Tell me a story.");
      await wait("On day 2 ");
      await page.reload();
      await wait("On day 4 ");
      assert.match(await log.innerText(), /^Tell me a story\.\s+On day 1 the climbers went on\. On day 2 the climbers went on\. On day 3 /);
      await button("Stop").click();
      await wait("stopped");
      await page.close();
    });
  });
}

for (const colorScheme of ["light", "dark"]) {
  for (const width of [390, 1280]) {
    test(`${colorScheme}, ${width} px: nothing overflows, and axe-core finds nothing`, async () => {
      const page = await open({ colorScheme, viewport: { width, height: 800 } });
      for (const name of ["AI SDK", "AG-UI"]) {
        const { say, wait } = column(page, name);
        await say("Pay Ada.");
        await wait("May `pay` begin");
      }
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      assert.deepEqual(violations.map(({ id, nodes }) => [id, nodes[0].html]), []);
      await page.screenshot({ path: join(folder, `${colorScheme}-${width}.png`), fullPage: true });
      await page.close();
    });
  }
}
