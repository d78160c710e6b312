// Opens pages in headless Chromium and prints what it saw as JSON, one object a page:
//   node check.mjs CHROMIUM '[{"path": "/…/page.html", "scheme": "dark", "picture": "/…/page.png"}]'
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");
const [executablePath, tasks] = process.argv.slice(2);
// Inside a container as root there is no sandbox; the pages are our own.
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const seen = [];
for (const task of JSON.parse(tasks)) {
  const page = await browser.newPage({ colorScheme: task.scheme, viewport: { width: 1100, height: 900 } });
  const said = [];
  const requests = [];
  page.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => said.push(error.message));
  const address = pathToFileURL(task.path).href;
  page.on("request", (request) => request.url() === address || requests.push(request.url()));
  const begun = performance.now();
  await page.goto(address);
  const reads = [];
  const maps = page.locator(".cells");
  for (let i = 0; i < (await maps.count()); i += 1) {
    await maps.nth(i).focus();
    await page.keyboard.press("Home");
    for (const key of ["ArrowDown", "ArrowRight"]) await page.keyboard.press(key);
    reads.push(await page.locator(".read").nth(i).textContent());
  }
  const ready_ms = performance.now() - begun;
  // Closed details are not looked at, so all are opened.
  await page.evaluate(() => document.querySelectorAll("details").forEach((d) => (d.open = true)));
  await page.evaluate(axe);
  const result = await page.evaluate(() =>
    axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "best-practice"] }),
  );
  const violations = result.violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.html.slice(0, 200)}`));
  if (task.picture) {
    await page.evaluate(() => document.querySelectorAll("details").forEach((d) => (d.open = false)));
    await page.screenshot({ path: task.picture, fullPage: true });
  }
  // In a window as narrow as a phone only the pictures scroll sideways, not the page.
  await page.setViewportSize({ width: 400, height: 900 });
  const narrow = await page.evaluate(() => document.documentElement.scrollWidth);
  seen.push({ said, requests, reads, violations, rules: result.passes.length, ready_ms, narrow });
  await page.close();
}
await browser.close();
console.log(JSON.stringify(seen));
