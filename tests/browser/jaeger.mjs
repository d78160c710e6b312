// Opens a step's trace in Jaeger's own page and prints what a person sees there as JSON:
//   node jaeger.mjs CHROMIUM '[{"url": "http://…/trace/ID", "picture": "/…/trace.png", "find": "pipe_write", "open": "stall."}]'
import { chromium } from "playwright-core";

const [executablePath, tasks] = process.argv.slice(2);
// Inside a container as root there is no sandbox; the page is one's own Jaeger's.
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
// A span's attributes, as pages of 2025 and of 2026 call them.
const ATTRIBUTES = ".AccordianKeyValues--header, .AccordionAttributes--header";
const seen = [];
for (const task of JSON.parse(tasks)) {
  const page = await browser.newPage({ viewport: { width: 1400, height: 1300 } });
  const said = [];
  page.on("pageerror", (error) => said.push(error.message));
  // Its own search opens the spans that have a word in their tags.
  await page.goto(`${task.url}?uiFind=${task.find}`);
  await page.locator(".detail-row").first().waitFor();
  // The list has the rows that are on the screen.
  const wanted = page.locator(".detail-row", { hasText: task.open });
  for (let i = 0; i < 100 && !(await wanted.count()); i += 1) {
    await page.mouse.move(700, 700);
    await page.mouse.wheel(0, 150);
    await page.waitForTimeout(100);
  }
  await wanted.first().locator(ATTRIBUTES).first().click();
  await page.waitForTimeout(500);
  const overview = await page.locator(".TracePageHeader--overviewItems").innerText();
  const details = await wanted.first().innerText();
  if (task.picture) await page.screenshot({ path: task.picture });
  seen.push({ said, overview, details });
  await page.close();
}
await browser.close();
console.log(JSON.stringify(seen));
