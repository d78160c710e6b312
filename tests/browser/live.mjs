// Opens live pages in headless Chromium and prints what it saw as JSON, one object a page:
//   node live.mjs CHROMIUM '[{"url": "http://127.0.0.1:1/", "scheme": "dark", "picture": "/…/page.png", "rank": 1}]'
// A task with "waiting" is about a page without an answer, which has that text. One with "ready" writes that file once the
// answer is there, and waits until the page has the text "afterwards"; it tells when that was, Unix ms.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");
const [executablePath, tasks] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const seen = [];
// What the page's own policy complains of: without axe, which comes from the outside.
const obey = async (task) => {
  const page = await browser.newPage({ colorScheme: task.scheme });
  const said = [];
  page.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => said.push(error.message));
  await page.goto(task.url);
  await page.waitForSelector("#answer-title");
  if (await page.locator("figure.chain").count()) await page.waitForSelector(".net canvas");
  await page.close();
  return said;
};
// The graph of a finding by its keys and buttons: ids of the path, all ids, and what Enter tells of a node.
const useGraph = async (page) => {
  const net = page.locator("figure.chain").first();
  const ids = () => net.locator(".net").evaluate((root) => root.rootwalkGraph.nodes().map((node) => node.id()));
  await net.locator("canvas").first().waitFor();
  const result = { path: await ids() };
  const begun = performance.now();
  await net.locator(".net-keys").focus();
  await page.keyboard.press("Home");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  result.detail = await net.locator(".net-detail h3").textContent();
  result.facts = await net.locator(".net-detail dt").allTextContents();
  await page.keyboard.press("End");
  await page.keyboard.press("Enter");
  result.last = await net.locator(".net-detail h3").textContent();
  result.words = await net.locator(".net").evaluate((root) => root.rootwalkGraph.nodes().map((n) => n.data("words")));
  const zoom = () => net.locator(".net").evaluate((root) => root.rootwalkGraph.zoom());
  const before = await zoom();
  await page.keyboard.press("+");
  result.zoomed = (await zoom()) / before;
  await page.keyboard.press("0");
  await net.locator(".net-tools button").first().click();
  await net.locator("canvas").first().waitFor();
  result.all = await ids();
  result.keys_ms = performance.now() - begun;
  await net.locator(".net-tools button").first().click();
  return result;
};
const chartSteps = (page, place) =>
  page.locator(`${place} .library`).evaluate((root) => [...(root.rootwalkChart?.data[0] ?? [])]);
for (const task of JSON.parse(tasks)) {
  // The page's policy lets no script in but its own; axe comes from the outside.
  const context = await browser.newContext({ colorScheme: task.scheme, viewport: { width: 1100, height: 900 }, bypassCSP: true });
  const page = await context.newPage();
  page.setDefaultTimeout(task.patience_ms ?? 120000);
  const said = [];
  const requests = [];
  page.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => said.push(error.message));
  page.on("request", (request) => request.url().startsWith(task.url) || requests.push(request.url()));
  await page.goto(task.url);
  const result = { said, requests };
  if (task.rank !== undefined) said.push(...(await obey(task)));
  if (task.waiting) {
    await page.waitForFunction((text) => document.body.innerText.includes(text), task.waiting);
  } else {
    await page.waitForSelector("#answer-title");
  }
  if (task.ready) {
    // Somebody outside does something now; then the page has to say so.
    result.chart_before = await chartSteps(page, "#pulse-chart");
    writeFileSync(task.ready, "ready");
    await page.waitForFunction((text) => document.body.innerText.includes(text), task.afterwards);
    result.afterwards_ms = Date.now();
    result.chart_after = await chartSteps(page, "#pulse-chart");
  }
  if (task.rank !== undefined) {
    const map = page.locator("#answer .cells").last();
    const begun = performance.now();
    await map.focus();
    await page.keyboard.press("Home");
    for (let i = 0; i < task.rank; i += 1) await page.keyboard.press("ArrowDown");
    result.read = await page.locator("#answer figure.map .read").last().textContent();
    result.keys_ms = performance.now() - begun;
    await page.keyboard.press("End");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#rank-title");
    result.detail = await page.locator("#rank-title").textContent();
    result.lanes = await page.locator("#detail tbody th").allTextContents();
    if (task.to !== undefined) {
      await page.fill("#from", "0");
      await page.fill("#to", String(task.to));
      await page.keyboard.press("Enter");
      await page.waitForSelector("#route canvas");
      result.hops = await page.locator("#route .kind").allTextContents();
      result.route = await page.locator("#route .net").evaluate((root) => root.rootwalkGraph.nodes().map((n) => n.data("title")));
      await page.locator("#route .net-keys").focus();
      await page.keyboard.press("ArrowRight");
      await page.keyboard.press("Enter");
      result.hop = await page.locator("#route .net-detail").textContent();
    }
    result.chart = await chartSteps(page, "#pulse-chart");
    result.curve = await chartSteps(page, "#part-curve");
    if (await page.locator("#part-curve .curve-area:visible").count()) {
      await page.locator("#part-curve .curve-area").focus();
      for (const key of ["End", "ArrowLeft"]) await page.keyboard.press(key);
      result.curve_read = await page.locator("#part-curve .read").textContent();
    }
    if (await page.locator("figure.chain").count()) result.graph = await useGraph(page);
  }
  result.title = await page.title();
  result.text = await page.evaluate(() => document.body.innerText);
  result.images = await page.locator("img").count();
  await page.evaluate(() => document.querySelectorAll("details").forEach((d) => (d.open = true)));
  await page.evaluate(axe);
  const checked = await page.evaluate(() => axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "best-practice"] }));
  result.violations = checked.violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.html.slice(0, 200)}`));
  result.rules = checked.passes.length;
  if (task.picture) {
    await page.evaluate(() => document.querySelectorAll("details").forEach((d) => (d.open = false)));
    await page.evaluate(() => scrollTo(0, 0));
    await page.screenshot({ path: task.picture, fullPage: true });
  }
  // In a window as narrow as a phone only the pictures scroll sideways, not the page, and the bar hides nothing.
  await page.setViewportSize({ width: 400, height: 900 });
  const width = () => document.documentElement.scrollWidth;
  // Curves and graphs follow the window when they are told, a moment later.
  await page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth, null, { timeout: 20000 }).catch(() => {});
  result.narrow = await page.evaluate(width);
  // What reaches furthest, for who reads that it is too wide.
  result.widest = await page.evaluate(() =>
    [...document.querySelectorAll("main *")]
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".wide, .net-frame"))
      .map((e) => `${e.tagName} ${e.id} ${e.getAttribute("class")} ${Math.round(e.getBoundingClientRect().right)}: ${e.textContent.slice(0, 40)}`)
      .slice(0, 12),
  );
  result.hidden = await page.locator("#state").evaluate((root) => root.scrollWidth - root.clientWidth);
  seen.push(result);
  await context.close();
}
await browser.close();
console.log(JSON.stringify(seen));
