// Takes the pictures of the README, light and dark: the first run of a recording, with the last messages of its model.
//
//     node pictures.mjs RECORDING FOLDER     see scripts/pictures

import { join } from "node:path";

import { Viewer, launch } from "./browser.mjs";

const [recording, folder] = process.argv.slice(2);
const viewer = await Viewer.start(recording);
// Gray edges of letters instead of colored ones: the pictures are smaller.
const browser = await launch(["--disable-lcd-text"]);
for (const colorScheme of ["light", "dark"]) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 400 }, colorScheme });
  await page.goto(viewer.url);
  // The newest run is on top: the one with the question is below it.
  await page.getByRole("listbox", { name: "Top-level runs, newest first" }).getByRole("option").last().click();
  const tree = page.getByRole("tree", { name: "Runs below the run" });
  await tree.getByRole("treeitem", { name: "ChatModel" }).last().click();
  await page.getByRole("tab", { name: "Messages" }).click();
  await page.getByRole("tabpanel").evaluate((panel) => panel.scrollTo(0, panel.scrollHeight));
  await page.mouse.move(0, 0);
  await page.screenshot({ path: join(folder, `trip-${colorScheme}.png`) });
  await page.close();
}
await browser.close();
await viewer.stop();
