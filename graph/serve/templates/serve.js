"use strict";
// Keeps the page up to date: numbers every second and a half, the answer when there is another one. What comes from the
// store becomes text here; HTML comes from the server's templates only, which escape it.
const POLL_MS = 1500;
const HIDDEN_POLL_MS = 10000;
const at = (id) => document.getElementById(id);
const page = { job: null, jobs: "", view: 0, failures: 0, graph: null, steps: null, looks: {} };

const pulse = makeCurve({ label: "Times of the last steps; left and right read a step out", height: 150, isZoomable: false });
at("pulse-chart").append(pulse.root);

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

const endLibraries = (part) => part.querySelectorAll(".library").forEach((made) => made.rootwalkEnd());

// The server's own pictures stay where a library has nothing to draw, or is not there.
const drawFinding = (figure, id) => {
  const path = page.graph?.paths.find((known) => known.finding === id);
  if (!path || !path.links.length || !globalThis.cytoscape || !globalThis.dagre) return;
  const look = (page.looks[id] ??= { isWhole: false, chosen: null });
  const drawn = graphOfFinding(page.graph, path, look.isWhole);
  const turn = () => {
    look.isWhole = !look.isWhole;
    drawFinding(figure, id);
    figure.querySelector(".net-tools button").focus({ preventScroll: true });
  };
  const graph = makeGraph({
    label: "The dependency graph; arrow keys go from node to node, Enter tells of one, + and - zoom",
    ...drawn,
    tools: [[look.isWhole ? "The path only" : `All ${page.graph.nodes.length} nodes`, turn]],
    chosen: look.chosen,
    onChoose: (node) => (look.chosen = node),
  });
  endLibraries(figure);
  figure.replaceChildren(graph);
};
const drawCurve = (figure) => {
  if (!page.steps?.steps.length || !globalThis.uPlot) return;
  const { steps, values, healthy_step_s: healthy, first_step: first, last_step: last } = page.steps;
  const curve = makeCurve({ label: "Step times; left and right read a step out", height: 230, isZoomable: true });
  const cut = "Shaded: the steps that the answer is about; dashed: healthy, where it is known; ▲ longer than the axis. Drag to zoom, double-click to see all.";
  curve.root.append(element("p", { class: "note" }, cut));
  figure.querySelector(".wide").replaceWith(curve.root);
  curve.show({ steps, values, healthy, window: first === null ? null : [first, last] });
};
const drawPart = (part) => {
  part.querySelectorAll("figure.map").forEach(enliven);
  const chain = part.querySelector("figure.chain");
  if (chain) drawFinding(chain, part.id.replace("part-finding-", ""));
  if (part.id === "part-curve" && part.querySelector("figure")) drawCurve(part.querySelector("figure"));
};

// One part after the other, and only where it differs: what is open or focused elsewhere stays as it is.
const replaceParts = (html) => {
  const fresh = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html").body.firstChild;
  const root = at("answer");
  at("waiting")?.remove();
  const wanted = [...fresh.children].map((part) => part.id);
  for (const part of [...root.children]) {
    if (wanted.includes(part.id)) continue;
    endLibraries(part);
    part.remove();
  }
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
      if (old) {
        endLibraries(old);
        old.replaceWith(node);
      } else if (before) before.after(node);
      else root.prepend(node);
      drawPart(node);
      if (label) node.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus({ preventScroll: true });
      old = node;
    }
    before = old;
  }
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
  setText("step-time", shownSeconds(live.step_s));
  setText("usual", shownSeconds(healthy));
  setText("usual-words", live.healthy_step_s === null ? "median of the last steps" : "healthy");
  setText("last-step", live.last_step === null ? "–" : String(live.last_step));
  at("step-time").classList.toggle("slow-now", isSlow);
  pulse.show({
    steps: live.steps.map((s) => s.step),
    values: live.steps.map((s) => s.seconds),
    healthy,
    window: null,
  });
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
  const job = { job: page.job };
  const [answer, graph, steps] = await Promise.all(["/view/job", "/api/v1/graph", "/api/v1/steps"].map((path) => ask(path, job)));
  if (!answer.ok || !graph.ok || !steps.ok) return;
  page.graph = await graph.json();
  page.steps = await steps.json();
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
  page.looks = {};
  at("detail").replaceChildren();
  endLibraries(at("route"));
  at("route").replaceChildren();
  history.replaceState(null, "", `?${new URLSearchParams({ job: page.job })}`);
});
const showRoute = async (ends) => {
  const answers = await Promise.all(["/view/route", "/api/v1/route"].map((path) => ask(path, { job: page.job, ...ends })));
  if (!answers[0].ok) {
    setText("route", (await answers[0].json()).error.message);
    return;
  }
  const fresh = new DOMParser().parseFromString(await answers[0].text(), "text/html").body;
  const list = [...fresh.childNodes].map((node) => document.importNode(node, true));
  endLibraries(at("route"));
  if (!answers[1].ok || !globalThis.cytoscape || !globalThis.dagre) {
    at("route").replaceChildren(...list);
    return;
  }
  const more = element("details");
  more.append(element("summary", {}, "As a list, with what was counted"), ...list);
  const label = "The way; arrow keys go from hop to hop, Enter tells of one, + and - zoom";
  at("route").replaceChildren(makeGraph({ label, ...graphOfRoute(await answers[1].json()) }), more);
};
at("route-form").addEventListener("submit", (event) => {
  event.preventDefault();
  showRoute({ from: at("from").value, to: at("to").value });
});
poll();
