
"use strict";
// Reads a cell of a map out: by pointer, or by the arrow keys. Everything else on the page works without a script.
// Enter or a click on a cell is told to whoever listens, as the event "cell".
const enliven = (figure) => {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const area = figure.querySelector(".cells");
  const plane = figure.querySelector(".plane");
  const cursor = figure.querySelector(".cursor");
  const words = figure.querySelector(".read");
  const last = { row: data.rows.length - 1, column: data.steps.length - 1 };
  let row = 0;
  let column = last.column;

  const say = (newRow, newColumn) => {
    row = Math.min(Math.max(newRow, 0), last.row);
    column = Math.min(Math.max(newColumn, 0), last.column);
    const [first, final] = data.steps[column];
    const value = data.values[row][column];
    const steps = first === final ? `step ${first}` : `steps ${first} to ${final}`;
    const told = value < 0 ? "not measured" : `${(value / 1000).toFixed(3)} s ${data.words}`;
    words.textContent = `${data.rows[row]} (${data.hosts[row]}), ${steps}: ${told}`;
    cursor.setAttribute("x", column);
    cursor.setAttribute("y", row);
    cursor.setAttribute("visibility", "visible");
  };
  const point = (event) => {
    const box = plane.querySelector(".h0").getBoundingClientRect();
    say(
      Math.floor(((event.clientY - box.top) / box.height) * data.rows.length),
      Math.floor(((event.clientX - box.left) / box.width) * data.steps.length),
    );
  };
  const choose = () => {
    const detail = { ranks: data.ranks[row], steps: data.steps[column] };
    figure.dispatchEvent(new CustomEvent("cell", { bubbles: true, detail }));
  };

  plane.addEventListener("pointermove", point);
  plane.addEventListener("click", (event) => {
    point(event);
    choose();
  });
  area.addEventListener("focus", () => say(row, column));
  area.addEventListener("keydown", (event) => {
    const page = Math.max(Math.round(data.steps.length / 10), 1);
    const moves = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      PageUp: [row, column - page],
      PageDown: [row, column + page],
      Home: [row, 0],
      End: [row, last.column],
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) {
      event.preventDefault();
      say(...moves[event.key]);
    } else if (event.key === "Enter") {
      choose();
    }
  });
};
document.querySelectorAll("figure.map").forEach(enliven);
