"use strict";
// Dependency graphs and ways between ranks: dagre says where nodes stand, Cytoscape draws them, and a list of the same
// nodes, which is seen by screen readers only, takes the keys. Whatever a store has in it becomes text.
const FONT = 13;
const STRANGE = /[\p{C}\p{Zl}\p{Zp}]/gu;
const KIND_WORDS = { cpu: "CPU", cgroup: "control group" };
// Rows of a name that fit into a node below its kind.
const NAME_ROWS = 2;

// As in the report: a name must not pose as something else.
const visibleText = (text) =>
  String(text).replace(STRANGE, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
const titled = (kind, name) => (name.toLowerCase().startsWith(kind.toLowerCase()) ? name : `${kind} ${name}`);
const shortened = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
// A name in rows of so many characters, cut where it has more than fit; what ends it, such as a number, is not cut.
const inRows = (text, end, columns) => {
  const rows = [];
  let rest = text;
  while (rows.length < NAME_ROWS - 1 && rest.length + end.length > columns) {
    const space = rest.lastIndexOf(" ", columns);
    const length = space > columns / 2 ? space : columns;
    rows.push(rest.slice(0, length));
    rest = rest.slice(length).trimStart();
  }
  // A name that fills its row leaves its comma there.
  if (!rest && end.startsWith(", ")) return `${rows.join("\n")},\n${end.slice(2)}`;
  return [...rows, shortened(rest, columns - end.length) + end].join("\n");
};
// Long words may break, so that none leaves its node.
const breakable = (text, most) => text.replace(new RegExp(`[^\\s]{${most}}(?=[^\\s])`, "gu"), "$&\u200b");
const edgeWords = (edge) => {
  const cost = edge.seconds === null || edge.seconds === undefined ? "" : `\n${shownSeconds(edge.seconds)} a step`;
  return `${visibleText(edge.kind).replaceAll("_", " ")}${cost}`;
};

// Where nodes stand: from symptom to cause, whichever way the store's edges point.
const placeNodes = (nodes, edges, { direction, width, height, gap, beside }) => {
  const plan = new dagre.graphlib.Graph({ multigraph: true });
  plan.setGraph({ rankdir: direction, nodesep: beside, ranksep: gap, edgesep: 20 });
  for (const node of nodes) plan.setNode(node.id, { width, height });
  const seen = new Set();
  edges.forEach((edge, i) => {
    // Every rank is a member of the job: those lines are drawn, and would pull everything out of its order.
    if (!edge.isPath && edge.target.startsWith("job:")) return;
    const isBack = edge.isPath && seen.has(edge.target) && !seen.has(edge.source);
    const [from, to] = isBack ? [edge.target, edge.source] : [edge.source, edge.target];
    if (edge.isPath) seen.add(edge.source).add(edge.target);
    if (from !== to) plan.setEdge(from, to, { weight: edge.isPath ? 20 : 1 }, String(i));
  });
  dagre.layout(plan);
  return new Map(nodes.map((node) => [node.id, { x: plan.node(node.id).x, y: plan.node(node.id).y }]));
};

const graphStyle = (width, height) => {
  const [ground, ink, soft, line, tint, accent, alarm] = ["ground", "ink", "soft", "blocked", "tint", "accent", "alarm"].map(
    (name) => shownColour(`--${name}`),
  );
  const [quiet, counts] = [shownColour("--loader"), shownColour("--own")];
  return [
    {
      selector: "node",
      style: {
        shape: "round-rectangle", width, height, "background-color": tint, "border-width": 1, "border-color": soft,
        label: "data(words)", color: ink, "font-size": FONT, "font-family": "system-ui, sans-serif", "line-height": 1.25,
        "text-wrap": "wrap", "text-max-width": width - 16, "text-valign": "center",
      },
    },
    { selector: "node[?isCulprit]", style: { "border-width": 2.5, "border-color": alarm, "background-color": ground, "font-weight": "bold" } },
    { selector: "node[?isPath]", style: { "border-width": 2, "font-weight": "bold" } },
    { selector: 'node[health = "quiet"]', style: { "border-width": 2, "border-color": quiet } },
    { selector: 'node[health = "counts errors"]', style: { "border-width": 3, "border-color": counts } },
    { selector: 'node[health = "not seen"]', style: { "border-style": "dashed", "background-color": ground } },
    { selector: 'node[health = "bad"], node[?isNamed]', style: { "border-width": 3, "border-style": "solid", "border-color": alarm } },
    { selector: "node[?isCulprit]", style: { "border-width": 2.5, "border-color": alarm } },
    { selector: "node.chosen", style: { "outline-width": 2, "outline-color": accent, "outline-offset": 3 } },
    {
      selector: "edge",
      style: {
        width: 1, "line-color": line, "target-arrow-color": line, "target-arrow-shape": "triangle", "curve-style": "bezier",
        label: "data(words)", color: soft, "font-size": 11.5, "font-family": "system-ui, sans-serif", "text-wrap": "wrap",
        "text-background-color": ground, "text-background-opacity": 0.9, "text-background-padding": 2, "line-height": 1.2,
      },
    },
    { selector: "edge[?isPath]", style: { width: 2, "line-color": soft, "target-arrow-color": soft, color: ink, "font-size": 12.5, "font-weight": "bold" } },
  ];
};

// Returns an element with a graph in it. Nodes: id, words, title, facts ([name, value] each), isCulprit, isPath, health;
// edges: source, target, words, isPath. `tools` are more buttons.
const makeGraph = ({ label, nodes, edges, shape, tools = [], chosen = null, onChoose = () => {} }) => {
  const root = element("div", { class: "net library" });
  const bar = element("div", { class: "net-tools" });
  const frame = element("div", { class: "net-frame" });
  const plane = element("div", { class: "net-plane", "aria-hidden": "true" });
  const keys = element("ul", { class: "net-keys", role: "listbox", tabindex: "0", "aria-label": label });
  const detail = element("div", { class: "net-detail", "aria-live": "polite" });
  const places = placeNodes(nodes, edges, shape);
  const stem = `net-${(makeGraph.count = (makeGraph.count ?? 0) + 1)}`;
  nodes.forEach((node, i) => {
    keys.append(element("li", { role: "option", id: `${stem}-${i}`, "aria-selected": "false" }, node.title));
  });
  frame.append(plane, keys);
  root.append(bar, frame, detail);
  let cy = null;
  let now = -1;

  const choose = (index, isTold) => {
    if (now >= 0) keys.children[now].setAttribute("aria-selected", "false");
    now = index;
    keys.children[now].setAttribute("aria-selected", "true");
    keys.setAttribute("aria-activedescendant", `${stem}-${now}`);
    cy?.nodes().removeClass("chosen");
    cy?.getElementById(nodes[now].id).addClass("chosen");
    if (!isTold) return;
    onChoose(nodes[now].id);
    const list = element("dl", { class: "facts" });
    for (const [name, value] of nodes[now].facts) {
      const row = element("div");
      row.append(element("dt", {}, name), element("dd", {}, value));
      list.append(row);
    }
    detail.replaceChildren(element("h3", {}, nodes[now].title), list);
  };
  const neighbour = (dx, dy) => {
    const here = places.get(nodes[now].id);
    const far = nodes.map((node, i) => {
      const there = places.get(node.id);
      const [x, y] = [there.x - here.x, there.y - here.y];
      const ahead = x * dx + y * dy;
      return i === now || ahead <= 1 ? Infinity : ahead + 2.5 * Math.abs(x * dy + y * dx);
    });
    const nearest = Math.min(...far);
    return nearest === Infinity ? now : far.indexOf(nearest);
  };
  const zoom = (factor) => cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: plane.clientWidth / 2, y: plane.clientHeight / 2 } });
  const fit = () => {
    cy.fit(undefined, 14);
    if (cy.zoom() > 1) {
      cy.zoom(1);
      cy.center();
    }
  };
  const button = (words, name, act) => {
    const made = element("button", name ? { type: "button", "aria-label": name } : { type: "button" }, words);
    made.addEventListener("click", act);
    bar.append(made);
  };
  for (const [words, act] of tools) button(words, null, act);
  button("+", "Zoom in", () => zoom(1.3));
  button("−", "Zoom out", () => zoom(1 / 1.3));
  button("Fit", "Fit all into view", fit);

  keys.addEventListener("focus", () => choose(now < 0 ? 0 : now, false));
  keys.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || now < 0) return;
    const acts = {
      ArrowUp: () => choose(neighbour(0, -1), false),
      ArrowDown: () => choose(neighbour(0, 1), false),
      ArrowLeft: () => choose(neighbour(-1, 0), false),
      ArrowRight: () => choose(neighbour(1, 0), false),
      Home: () => choose(0, false),
      End: () => choose(nodes.length - 1, false),
      Enter: () => choose(now, true),
      " ": () => choose(now, true),
      "+": () => zoom(1.3),
      "-": () => zoom(1 / 1.3),
      0: fit,
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
    const there = cy.getElementById(nodes[now].id);
    const box = there.renderedBoundingBox();
    if (box.x1 < 0 || box.y1 < 0 || box.x2 > plane.clientWidth || box.y2 > plane.clientHeight) cy.center(there);
  });

  const repaint = () => cy?.style(graphStyle(shape.width, shape.height));
  const draw = () => {
    const spots = [...places.values()];
    const tall = Math.max(...spots.map((p) => p.y)) - Math.min(...spots.map((p) => p.y)) + shape.height + 32;
    const wide = Math.max(...spots.map((p) => p.x)) - Math.min(...spots.map((p) => p.x)) + shape.width + 32;
    const scale = Math.min(plane.clientWidth / wide, 1);
    frame.style.height = `${Math.round(Math.min(Math.max(tall * scale, 120), 640))}px`;
    cy = cytoscape({
      container: plane,
      elements: [
        ...nodes.map((node) => ({ data: { ...node, facts: null }, position: { ...places.get(node.id) } })),
        ...edges.map((edge, i) => ({ data: { ...edge, id: `edge ${i}` } })),
      ],
      style: graphStyle(shape.width, shape.height),
      layout: { name: "preset" },
      minZoom: 0.15,
      maxZoom: 3,
      autoungrabify: true,
      boxSelectionEnabled: false,
    });
    root.rootwalkGraph = cy;
    cy.on("tap", "node", (event) => choose(nodes.findIndex((node) => node.id === event.target.id()), true));
    fit();
    const known = nodes.findIndex((node) => node.id === chosen);
    if (known >= 0) choose(known, true);
  };
  // The wheel is the page's, unless somebody means the graph: with Ctrl, or with two fingers.
  plane.addEventListener("wheel", (event) => cy?.userZoomingEnabled(event.ctrlKey), { capture: true });
  plane.addEventListener("touchstart", () => cy?.userZoomingEnabled(true), { capture: true });
  schemes.addEventListener("change", repaint);
  const observer = new ResizeObserver(() => {
    if (!root.isConnected || !plane.clientWidth) return;
    if (!cy) draw();
    else cy.resize();
  });
  observer.observe(plane);
  root.rootwalkEnd = () => {
    observer.disconnect();
    schemes.removeEventListener("change", repaint);
    cy?.destroy();
  };
  return root;
};

const PATH_SHAPE = { direction: "TB", width: 230, height: 58, gap: 62, beside: 34 };
const WHOLE_SHAPE = { direction: "LR", width: 188, height: 52, gap: 112, beside: 10 };
const ROUTE_SHAPE = { direction: "LR", width: 112, height: 108, gap: 24, beside: 20 };

// A finding's path, or with `isWhole` everything that the store has of its graph; what costs no seconds is named by its
// nodes only.
const graphOfFinding = (graph, path, isWhole) => {
  const known = new Map(graph.nodes.map((node) => [node.id, node]));
  const same = (a, b) => a.source === b.source && a.target === b.target && a.kind === b.kind;
  const links = path.links.filter((link) => link.source !== link.target);
  const others = isWhole ? graph.edges.filter((edge) => !links.some((link) => same(link, edge))) : [];
  const onPath = new Set(path.links.flatMap((link) => [link.source, link.target]));
  const ids = isWhole ? new Set([...onPath, ...known.keys()]) : onPath;
  const nameParts = (id) => {
    const node = known.get(id);
    const label = visibleText(node?.label ?? id.slice(id.indexOf(":") + 1));
    return [label, node?.attributes.pid === undefined ? "" : `, pid ${node.attributes.pid}`];
  };
  const name = (id) => nameParts(id).join("");
  const nodes = [...ids].map((id) => {
    const kind = known.get(id)?.kind ?? id.slice(0, id.indexOf(":"));
    const kindWords = KIND_WORDS[kind] ?? visibleText(kind);
    const facts = Object.entries(known.get(id)?.attributes ?? {})
      .filter(([, value]) => value !== null && value !== "")
      .map(([key, value]) => [visibleText(key).replaceAll("_", " "), visibleText(value)]);
    for (const edge of graph.edges) {
      const [kind, cost] = edgeWords(edge).split("\n");
      const end = cost ? `, ${cost}` : "";
      if (edge.source === id) facts.push([kind, name(edge.target) + end]);
      else if (edge.target === id) facts.push([`${kind} this`, name(edge.source) + end]);
    }
    const isCulprit = id === path.culprit;
    const title = titled(kindWords, name(id));
    return { id, words: `${kindWords}\n${inRows(...nameParts(id), isWhole ? 17 : 22)}`, title, facts, isCulprit, isPath: isWhole && onPath.has(id) };
  });
  return {
    nodes,
    edges: [
      ...links.map((link) => ({ source: link.source, target: link.target, words: edgeWords(link), isPath: true })),
      ...others.map((edge) => ({ source: edge.source, target: edge.target, words: edge.seconds === null ? "" : edgeWords(edge), isPath: false })),
    ],
    shape: isWhole ? WHOLE_SHAPE : PATH_SHAPE,
  };
};

const graphOfRoute = (route) => {
  const nodes = route.hops.map((hop, i) => {
    const isNamed = hop.findings.length > 0;
    const facts = hop.facts.map((fact) => [visibleText(fact.words), visibleText(fact.text)]);
    if (isNamed) facts.unshift(["named by a finding", hop.findings.map(visibleText).join(", ")]);
    facts.unshift(["health", hop.health]);
    const name = visibleText(hop.name);
    const title = titled(hop.kind, name);
    const words = `${title === name ? "" : `${hop.kind}\n`}${breakable(shortened(name, 40), 13)}\n${hop.health}`;
    return { id: String(i), words, title, facts, health: hop.health, isNamed };
  });
  const edges = nodes.slice(1).map((node, i) => ({ source: String(i), target: node.id, words: "", isPath: true }));
  return { nodes, edges, shape: ROUTE_SHAPE };
};
