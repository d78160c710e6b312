"use strict";
// Keeps the page up to date: numbers every second and a half, the answer when there is another one. What comes from the
// store becomes text here; HTML comes from the server's templates only, which escape it.
const POLL_MS = 1500;
const HIDDEN_POLL_MS = 10000;
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
const page = { job: null, jobs: "", view: 0, route: "", failures: 0, detail: "" };

const setText = (id, text) => {
  if (at(id) && at(id).textContent !== text) at(id).textContent = text;
};
const setState = (kind, words) => {
  at("dot").className = `dot ${kind}`;
  setText("state-words", words);
};
const tell = (text) => {
  at("notice").hidden = !text;
  setText("notice", text || "");
};
const seconds = (s) => (s === null ? "–" : s < 9.9995 ? `${s.toFixed(3)}\u00a0s` : `${s.toFixed(1)}\u00a0s`);
const age = (ns) => {
  const s = Math.max(ns / 1e9, 0);
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} days`;
};
const ask = async (path, values) => {
  const answer = await fetch(values ? `${path}?${new URLSearchParams(values)}` : path);
  if (answer.status === 401) location.reload();
  return answer;
};

// One part after the other, and only where it differs: what is open or focused elsewhere stays as it is.
const replaceParts = (html) => {
  const fresh = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html").body.firstChild;
  const root = at("answer");
  at("waiting")?.remove();
  const wanted = [...fresh.children].map((part) => part.id);
  for (const part of [...root.children]) if (!wanted.includes(part.id)) part.remove();
  let before = null;
  for (const part of [...fresh.children]) {
    const text = part.outerHTML;
    let old = at(part.id);
    if (!old || old.rootwalkText !== text) {
      const node = document.importNode(part, true);
      const opened = old ? [...old.querySelectorAll("details")].map((d) => d.open) : [];
      [...node.querySelectorAll("details")].forEach((d, i) => (d.open = Boolean(opened[i])));
      const focused = old && old.contains(document.activeElement) ? document.activeElement : null;
      const label = focused?.getAttribute("aria-label");
      node.rootwalkText = text;
      if (old) old.replaceWith(node);
      else if (before) before.after(node);
      else root.prepend(node);
      node.querySelectorAll("figure.map").forEach(enliven);
      if (label) node.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus({ preventScroll: true });
      old = node;
    }
    before = old;
  }
};

const drawSteps = (steps, usual) => {
  const svg = at("spark");
  const [left, right, top, bottom] = [8, 452, 10, 74];
  const make = (name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    svg.append(node);
  };
  while (svg.children.length > 1) svg.lastChild.remove();
  if (!steps.length) return;
  const sorted = steps.map((s) => s.seconds).sort((a, b) => a - b);
  const most = 1.15 * Math.max(sorted[Math.floor(0.97 * (sorted.length - 1))], usual || 0) || 1;
  const x = (i) => left + ((right - left) * i) / Math.max(steps.length - 1, 1);
  const y = (s) => bottom - (bottom - top) * Math.min(s / most, 1);
  make("line", { class: "grid", x1: left, x2: right, y1: bottom, y2: bottom });
  if (usual) {
    make("line", { class: "healthy", x1: left, x2: right, y1: y(usual), y2: y(usual) });
  }
  if (steps.length > 1) {
    make("polyline", { class: "step", points: steps.map((s, i) => `${x(i).toFixed(1)},${y(s.seconds).toFixed(1)}`).join(" ") });
  } else {
    make("circle", { class: "point", cx: x(0), cy: y(steps[0].seconds), r: 4 });
  }
  make("text", { class: "tick", x: left, y: 90 }, `step ${steps[0].step}`);
  make("text", { class: "tick", x: right, y: 90, "text-anchor": "end" }, `${steps[steps.length - 1].step}`);
  setText("spark-name", `Times of steps ${steps[0].step} to ${steps[steps.length - 1].step}, ${seconds(sorted[0])} to ${seconds(sorted[sorted.length - 1])}`);
};

const showFindings = (live) => {
  const rows = live.findings.map((f) => {
    const since = f.first_step === null ? "" : `since step ${f.first_step}`;
    let when = since;
    if (f.state === "open" && f.onset_unix_ns) when = `${since}, ${age(live.now_unix_ns - f.onset_unix_ns)}`;
    if (f.state !== "open" && f.last_step !== null) when = `steps ${f.first_step} to ${f.last_step}`;
    return [f.state, f.text, when];
  });
  at("log").hidden = !rows.length;
  const text = JSON.stringify(rows);
  if (at("findings").rootwalkText === text) return;
  at("findings").rootwalkText = text;
  at("findings").replaceChildren(
    ...rows.map(([state, words, when]) => {
      const row = document.createElement("li");
      row.className = state;
      for (const [kind, value] of [["mark", state], ["text", words], ["when", when]]) {
        const cell = document.createElement("span");
        cell.className = kind;
        cell.textContent = value;
        row.append(cell);
      }
      return row;
    }),
  );
};

const showNow = (live) => {
  at("now").hidden = false;
  const healthy = live.healthy_step_s ?? live.usual_step_s;
  const isSlow = live.step_s !== null && healthy !== null && live.step_s > 1.1 * healthy;
  const isFast = live.steps_per_s !== null && live.steps_per_s >= 1;
  setText("rate", live.steps_per_s === null ? "–" : isFast ? live.steps_per_s.toFixed(1) : (live.steps_per_s * 60).toFixed(1));
  setText("rate-words", isFast || live.steps_per_s === null ? "steps a second" : "steps a minute");
  setText("step-time", seconds(live.step_s));
  setText("usual", seconds(healthy));
  setText("usual-words", live.healthy_step_s === null ? "median of the last steps" : "healthy");
  setText("last-step", live.last_step === null ? "–" : String(live.last_step));
  at("step-time").classList.toggle("slow-now", isSlow);
  drawSteps(live.steps, healthy);
  const open = live.findings.filter((f) => f.state === "open").length;
  const quiet = live.last_unix_ns === null ? null : live.now_unix_ns - live.last_unix_ns;
  const ranks = `${live.job.ranks} rank${live.job.ranks === 1 ? "" : "s"}`;
  if (live.receiver !== "writing") {
    setState("", `${ranks}, no receiver writes this store${quiet === null ? "" : `; last step ${age(quiet)} ago`}`);
  } else if (quiet !== null && quiet / 1e9 > Math.max(30, 20 * (live.usual_step_s || 0))) {
    setState("slow", `${ranks}, no step for ${age(quiet)}`);
  } else if (open) {
    setState("slow", `${ranks}, ${open} finding${open === 1 ? "" : "s"} open`);
  } else {
    setState("live", `${ranks}, live`);
  }
};

const showJobs = async () => {
  const answer = await ask("/api/v1/jobs");
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  const names = [...new Set(body.jobs.filter((j) => j.ranks > 0).map((j) => j.job))];
  const text = JSON.stringify(names);
  if (page.jobs !== text) {
    page.jobs = text;
    at("job").replaceChildren(...names.map((name) => new Option(name, name)));
    at("chooser").hidden = !names.length;
  }
  if (!names.includes(page.job)) {
    const asked = new URLSearchParams(location.search).get("job");
    page.job = names.includes(asked) ? asked : (names[0] ?? null);
    page.view = 0;
  }
  at("job").value = page.job ?? "";
};

const showView = async (live) => {
  const problem = live.view.problem;
  tell(problem ? `${problem.message}${problem.hint ? `. Hint: ${problem.hint}` : ""}` : "");
  if (live.view.number === page.view) return;
  const answer = await ask("/view/job", { job: page.job });
  if (!answer.ok) return;
  replaceParts(await answer.text());
  page.view = live.view.number;
  document.title = `${at("answer-title")?.textContent ?? ""} – Rootwalk`;
};

const poll = async () => {
  try {
    await showJobs();
    if (page.job === null) {
      setState("", "No job yet");
      setText("waiting-title", "The store is empty");
      setText("waiting-words", "A job is shown here as soon as it has reported its first step.");
      tell("");
    } else {
      const answer = await ask("/api/v1/live", { job: page.job });
      const live = await answer.json();
      if (!answer.ok) throw new Error(live.error.message);
      showNow(live);
      showFindings(live);
      at("between").hidden = live.job.ranks < 2;
      await showView(live);
    }
    page.failures = 0;
  } catch (error) {
    page.failures += 1;
    const isGone = error instanceof TypeError;
    setState("lost", isGone ? "Server not reached" : "Store not readable");
    if (page.failures > 1) {
      tell(isGone ? "rootwalk serve does not answer; what is shown is its last answer. Asking again." : `${error.message}. Asking again.`);
    }
  }
  setTimeout(poll, document.hidden ? HIDDEN_POLL_MS : POLL_MS);
};

const showDetail = async (values) => {
  const answer = await ask("/view/rank-step", { job: page.job, ...values });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
  at("detail").replaceChildren(...[...fresh.childNodes].map((node) => document.importNode(node, true)));
  at("detail").focus({ preventScroll: true });
  at("detail").scrollIntoView({ block: "start" });
};

document.addEventListener("cell", (event) => {
  const { ranks, steps } = event.detail;
  showDetail({ rank: ranks[0], last_rank: ranks[1], step: steps[0] });
});
at("detail").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.close) {
    at("detail").replaceChildren();
    document.querySelector(".cells")?.focus();
  } else {
    showDetail({ rank: button.dataset.rank, step: button.dataset.step });
  }
});
at("job").addEventListener("change", () => {
  page.job = at("job").value;
  page.view = 0;
  at("detail").replaceChildren();
  at("route").replaceChildren();
  history.replaceState(null, "", `?${new URLSearchParams({ job: page.job })}`);
});
at("route-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await ask("/view/route", { job: page.job, from: at("from").value, to: at("to").value });
  if (!answer.ok) {
    setText("route", (await answer.json()).error.message);
    return;
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
  at("route").replaceChildren(...[...fresh.childNodes].map((node) => document.importNode(node, true)));
});
poll();
