"use strict";
// Curves of step times, drawn by uPlot; a step is read out in words, by pointer or by the arrow keys.
const shownColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shownSeconds = (s) => (s === null ? "–" : s < 9.9995 ? `${s.toFixed(3)}\u00a0s` : `${s.toFixed(1)}\u00a0s`);
const schemes = matchMedia("(prefers-color-scheme: dark)");
// Steps far above all others, such as the first one, are cut off and marked: they would flatten everything else.
const SHOWN_QUANTILE = 0.97;

const element = (name, attributes = {}, text = "") => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
};

// Returns what shows {steps, values, healthy, window} and can be given others; `root` goes into the page.
const makeCurve = ({ label, height, isZoomable }) => {
  const root = element("div", { class: "curve-plane library" });
  const area = element("div", { class: "curve-area", role: "group", tabindex: "0", "aria-label": label });
  const words = element("p", { class: "read", "aria-live": "polite" });
  root.append(area, words);
  let shown = { steps: [], values: [], healthy: null, window: null };
  let top = 1;
  let isZoomed = false;
  let chart = null;

  const say = (index) => {
    if (index === null || index === undefined || shown.steps[index] === undefined) return;
    const value = shown.values[index];
    const rate = value > 0 ? `, ${(1 / value).toPrecision(2)} steps a second` : "";
    words.textContent = `step ${shown.steps[index]}: ${shownSeconds(value)}${rate}`;
  };
  const point = (index) => {
    chart.setCursor({ left: chart.valToPos(shown.steps[index], "x"), top: 0 });
    say(index);
  };
  const drawWindow = (u) => {
    if (!shown.window || shown.window[0] === null) return;
    const [left, right] = shown.window.map((step) => u.valToPos(step, "x", true));
    const from = Math.max(left, u.bbox.left);
    const to = Math.min(right, u.bbox.left + u.bbox.width);
    u.ctx.fillStyle = shownColour("--tint");
    if (to > from) u.ctx.fillRect(from, u.bbox.top, to - from, u.bbox.height);
  };
  const drawCut = (u) => {
    u.ctx.fillStyle = shownColour("--accent");
    const size = 4 * devicePixelRatio;
    shown.values.forEach((value, i) => {
      const x = u.valToPos(shown.steps[i], "x", true);
      if (value <= top || x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
      u.ctx.beginPath();
      u.ctx.moveTo(x - size, u.bbox.top + 2 * size);
      u.ctx.lineTo(x, u.bbox.top);
      u.ctx.lineTo(x + size, u.bbox.top + 2 * size);
      u.ctx.fill();
    });
  };
  const axis = (more) => ({
    stroke: () => shownColour("--soft"),
    font: "12.5px system-ui, sans-serif",
    grid: { stroke: () => shownColour("--line"), width: 1 },
    ticks: { show: false },
    ...more,
  });
  const options = () => ({
    width: Math.max(area.clientWidth, 120),
    height,
    legend: { show: false },
    cursor: { y: false, drag: { x: isZoomable, y: false } },
    // A single step stands in the middle, and its axis has no other.
    scales: { x: { time: false, range: (u, from, to) => (from === to ? [from - 0.5, to + 0.5] : [from, to]) }, y: { range: () => [0, top] } },
    axes: [
      axis({ grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 1e5, 1e6, 1e7] }),
      axis({ size: 58, values: (u, marks) => marks.map((mark) => `${mark} s`) }),
    ],
    series: [
      {},
      { stroke: () => shownColour("--accent"), width: 1.8, points: { show: shown.steps.length === 1, size: 8 } },
      { stroke: () => shownColour("--soft"), width: 1, dash: [5, 4], points: { show: false } },
    ],
    hooks: {
      drawClear: [drawWindow],
      draw: [drawCut],
      setCursor: [(u) => say(u.cursor.idx)],
      setSelect: [(u) => (isZoomed ||= u.select.width > 0)],
    },
  });

  const show = (next) => {
    shown = next;
    root.hidden = !shown.steps.length || !globalThis.uPlot;
    if (root.hidden || !root.isConnected) return;
    const sorted = [...shown.values].sort((a, b) => a - b);
    top = 1.15 * Math.max(sorted[Math.floor(SHOWN_QUANTILE * (sorted.length - 1))], shown.healthy || 0) || 1;
    const data = [shown.steps, shown.values, shown.steps.map(() => shown.healthy)];
    if (!chart) {
      chart = new uPlot(options(), data, area);
      root.rootwalkChart = chart;
    } else {
      chart.setData(data, !isZoomed);
      if (isZoomed) chart.redraw();
    }
  };
  const repaint = () => chart?.redraw();
  const observer = new ResizeObserver(() => {
    if (chart && area.clientWidth > 0) chart.setSize({ width: area.clientWidth, height });
    else show(shown);
  });
  observer.observe(area);
  schemes.addEventListener("change", repaint);
  area.addEventListener("dblclick", () => (isZoomed = false));
  area.addEventListener("keydown", (event) => {
    const last = shown.steps.length - 1;
    if (!chart || event.ctrlKey || event.metaKey || event.altKey) return;
    const now = chart.cursor.idx ?? last;
    const leap = Math.max(Math.round(last / 10), 1);
    const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - leap, PageDown: now + leap, Home: 0, End: last };
    if (moves[event.key] === undefined) return;
    event.preventDefault();
    point(Math.min(Math.max(moves[event.key], 0), last));
  });
  root.rootwalkEnd = () => {
    observer.disconnect();
    schemes.removeEventListener("change", repaint);
    chart?.destroy();
  };
  return { root, show };
};
