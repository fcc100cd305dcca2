// A reader of a report, in a real browser. Reads {"report": path of the file, "chromium": path of the browser} on standard
// input, opens the file on a desk and on a phone, each in light and in dark, and writes {"views": {name: what is seen},
// "console": [...], "errors": [...], "requests": [...], "failed": [...]}.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];
const VIEWS = {
  "desk, light": { colorScheme: "light", viewport: { width: 1280, height: 900 } },
  "desk, dark": { colorScheme: "dark", viewport: { width: 1280, height: 900 } },
  "phone, light": { colorScheme: "light", viewport: { width: 375, height: 667 } },
  "phone, dark": { colorScheme: "dark", viewport: { width: 375, height: 667 } },
};

// What a reader sees of the page; runs in it.
function look() {
  const box = ({ x, y, width, height }) => ({ x, y, width, height });
  const texts = [...document.querySelectorAll("h1, .lead, th, td, figcaption, summary, svg text")];
  const shown = texts.filter((element) => element.getBoundingClientRect().width > 0 && element.textContent.trim());
  return {
    headline: document.querySelector("h1").textContent,
    figures: [...document.querySelectorAll("figure svg")].map((svg) => box(svg.getBoundingClientRect())),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    background: getComputedStyle(document.body).backgroundColor,
    texts: shown.map((element) => {
      const style = getComputedStyle(element);
      return { text: element.textContent.trim(), colour: element.closest("svg") ? style.fill : style.color };
    }),
  };
}

const input = JSON.parse(readFileSync(0, "utf8"));
const browser = await chromium.launch({ executablePath: input.chromium, args: ["--no-sandbox", ...QUIET] });
const output = { views: {}, console: [], errors: [], requests: [], failed: [] };
for (const [name, options] of Object.entries(VIEWS)) {
  const page = await browser.newPage(options);
  page.on("console", (message) => output.console.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => output.errors.push(error.message));
  page.on("request", (request) => output.requests.push(request.url()));
  page.on("requestfailed", (request) => output.failed.push(request.url()));
  await page.goto(pathToFileURL(input.report).href);
  const seen = await page.evaluate(look);
  const opened = [];
  for (const details of await page.locator("details").all()) {
    const before = await details.evaluate((element) => element.open);
    await details.locator("summary").click();
    opened.push(!before && (await details.evaluate((element) => element.open)));
  }
  const { overflow } = await page.evaluate(look);
  output.views[name] = { ...seen, opened, overflow: Math.max(overflow, seen.overflow) };
  await page.close();
}
await browser.close();
console.log(JSON.stringify({ ...output, report: pathToFileURL(input.report).href }));
