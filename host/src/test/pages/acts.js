"use strict";
// What the row does with a report's page. `ask` says what is wrong, and the page's colours.

const wrong = [];
const check = (is, what) => { if (!is) wrong.push(what); };
const one = (selector) => document.querySelector(selector);
// Time in which listeners run. Frames may not come: nobody looks.
const moment = () => new Promise((done) => setTimeout(done, 50));
// A pointer that a script moves cannot be captured.
HTMLCanvasElement.prototype.setPointerCapture = () => {};

const PARTS = {
  "header h1": 1, "#ratios table": 1, "#ratios tbody tr": 6, "#ratios tr.missed": 1, "#plot-ratios svg.plot": 1,
  "#plot-flushes svg.plot": 1, "#plot-workloads svg.plot": 3, "#plot-boots svg.plot": 1, "#plot-slots svg.plot": 1,
  "section.trace": 2, "section.trace canvas": 2, "#trace-0 .legend .deferred": 1, "#trace-0 .legend .ipi": 0,
  "#trace-1 .legend .ipi": 1,
};

function parts(flushes) {
  for (const [selector, count] of Object.entries(PARTS)) {
    const found = document.querySelectorAll(selector).length;
    check(found === count, `the page has ${found} elements ${selector}, and should have ${count}`);
  }
  check(document.documentElement.scrollWidth <= innerWidth, "something is wider than the page");
  for (const drawn of document.querySelectorAll("svg.plot, canvas")) {
    check(drawn.clientWidth > 200 && drawn.clientHeight > 80, "a plot or canvas has no size");
  }
  const [byCall, byIpi] = quellTimelines.map((timeline) => [timeline.data.flushes.length, timeline.data.ipis.length]);
  check(byCall[0] === flushes && byCall[1] === 0, `a timeline has ${byCall} flushes and IPIs`);
  // vCPU 2 has halted before each second round, and vCPU 1 does not enter after the last one.
  check(byIpi[0] === 0 && byIpi[1] === flushes / 2 * 3 - 1, `the other has ${byIpi}`);
}

// The place of an element in the window, after scrolling to it.
function place(selector) {
  one(selector).scrollIntoView({ block: "center", behavior: "instant" });
  return one(selector).getBoundingClientRect();
}

// Events go to what is at a place, as those of a mouse do.
function mouse(kind, x, y, more) {
  const at = { clientX: x, clientY: y, button: 0, buttons: 1, pointerId: 1, bubbles: true, cancelable: true, ...more };
  const Kind = kind === "wheel" ? WheelEvent : kind === "click" ? MouseEvent : PointerEvent;
  document.elementFromPoint(x, y).dispatchEvent(new Kind(kind, at));
}

function click(x, y) {
  for (const kind of ["pointerdown", "pointerup", "click"]) mouse(kind, x, y);
}

function press(selector) {
  const at = place(selector);
  click(at.left + at.width / 2, at.top + at.height / 2);
}

// Buttons, wheel, keys and drags zoom and move a timeline.
const ACTIONS = [
  ["button", "0.5", "shorter"], ["button", "2", "longer"], ["wheel", -100, "shorter"], ["wheel", -100, "shorter"],
  ["key", "ArrowRight", "later"], ["key", "ArrowLeft", "earlier"], ["drag", -80, "later"], ["drag", 80, "earlier"],
  ["key", "+", "shorter"], ["key", "-", "longer"], ["wheel", 100, "longer"], ["button", "all", "longer"],
];

async function moves(index) {
  const selector = `#trace-${index} canvas`, timeline = quellTimelines[index];
  const shown = () => [timeline.from, timeline.to, timeline.canvas.toDataURL()];
  for (const [kind, what, change] of ACTIONS) {
    const before = shown(), at = place(selector);
    const x = at.left + at.width / 2, y = at.top + at.height / 2;
    if (kind === "button") press(`#trace-${index} [data-zoom='${what}']`);
    if (kind === "wheel") mouse("wheel", x, y, { deltaY: what });
    if (kind === "key") {
      one(selector).focus();
      document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: what, bubbles: true, cancelable: true }));
    }
    if (kind === "drag") {
      mouse("pointerdown", x, y);
      mouse("pointermove", x + what, y);
      mouse("pointerup", x + what, y);
    }
    await moment();
    const after = shown(), length = after[1] - after[0] - (before[1] - before[0]), start = after[0] - before[0];
    const isRight = {
      shorter: length < -1, longer: length > 1,
      earlier: Math.abs(length) < 1 && start < -1, later: Math.abs(length) < 1 && start > 1,
    }[change];
    check(isRight && before[2] !== after[2], `timeline ${index}: ${kind} ${what} should show something ${change}, and ` +
      `led from ${before.slice(0, 2)} to ${after.slice(0, 2)}`);
  }
}

// A click on what is at a time on a CPU shows its details.
function shows(index, pick, words) {
  const timeline = quellTimelines[index], [at, cpu] = pick(timeline.data), box = place(`#trace-${index} canvas`);
  click(box.left + timeline.x(at), box.top + timeline.y(cpu) + ROW / 2);
  const text = one(`#trace-${index} .details`).innerText.split(/\s+/).join(" ");
  for (const word of words) check(text.includes(word), `a click on ${pick} does not show '${word}': ${text}`);
}

// Colours of the page's parts: the background, text, a bar of a plot, and two points of a timeline's row.
function look() {
  const of = (selector, what) => getComputedStyle(one(selector))[what];
  const timeline = quellTimelines[0], ratio = devicePixelRatio;
  const copy = new OffscreenCanvas(timeline.canvas.width, timeline.canvas.height);
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(timeline.canvas, 0, 0);
  const kind = (kind) => {
    const [start, end] = timeline.data.cpus[0].spans.find((span) => span[2] === kind);
    return [...context.getImageData(timeline.x((start + end) / 2) * ratio, (timeline.y(0) + 4) * ratio, 1, 1).data].join();
  };
  return [of("body", "backgroundColor"), of("body", "color"), of("#plot-ratios rect", "fill"), kind(0), kind(1)];
}

async function acts(flushes) {
  parts(flushes);
  for (const index of [0, 1]) await moves(index);
  shows(0, (data) => [data.flushes[7].start, data.flushes[7].cpu],
    ["flush 8", "initiator vCPU 0", "targets 2", "deferred 1", "CPUs kicked 1", "3 list elements"]);
  shows(0, (data) => [data.cpus[1].spans[9][0], 1], ["CPU 1", "begins at", "takes"]);
  shows(1, (data) => [data.ipis[0][1], data.ipis[0][0]],
    ["vector 251", "vCPU 0 on CPU 0", "vCPU 1 on CPU 1", "in guest mode"]);
}
