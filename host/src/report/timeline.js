"use strict";
// The timelines of the page: a row for each CPU, colours for what it does, arrows for flushes.

const ROW = 34, GAP = 26, LEFT = 64, TOP = 24;

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue("--" + name).trim();
  return { ink: of("ink"), soft: of("soft"), grid: of("grid"), kick: of("kick"), deferred: of("deferred"), ipi: of("ipi"),
    kinds: [of("guest"), of("hypervisor"), of("idle")] };
}

function time(ns) {
  if (ns >= 1e6) return (ns / 1e6).toFixed(2) + " ms";
  return ns >= 1e3 ? (ns / 1e3).toFixed(1) + " µs" : Math.round(ns) + " ns";
}

class Timeline {
  constructor(section) {
    this.data = JSON.parse(section.querySelector("script[type='application/json']").textContent);
    this.canvas = section.querySelector("canvas");
    this.details = section.querySelector(".details");
    this.from = 0;
    this.to = this.data.length;
    this.chosen = null;
    this.rows = new Map(this.data.cpus.map((cpu, row) => [cpu.cpu, row]));
    this.canvas.style.height = TOP + this.data.cpus.length * (ROW + GAP) + 20 + "px";
    for (const button of section.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => {
        if (button.dataset.zoom === "all") this.show(0, this.data.length);
        else this.zoom(Number(button.dataset.zoom), (this.from + this.to) / 2);
      });
    }
    this.listen();
    this.draw();
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.at(event.offsetX));
    }, { passive: false });
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, from: this.from, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return;
      drag.moved = drag.moved || Math.abs(event.offsetX - drag.x) > 3;
      const shift = (drag.x - event.offsetX) / this.width() * (this.to - this.from);
      this.show(drag.from + shift, drag.from + shift + this.to - this.from);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.choose(event.offsetX, event.offsetY);
      drag = null;
    });
    canvas.addEventListener("keydown", (event) => {
      const step = (this.to - this.from) / 8;
      if (event.key === "ArrowLeft") this.show(this.from - step, this.to - step);
      else if (event.key === "ArrowRight") this.show(this.from + step, this.to + step);
      else if (event.key === "+" || event.key === "=") this.zoom(0.5, (this.from + this.to) / 2);
      else if (event.key === "-") this.zoom(2, (this.from + this.to) / 2);
      else return;
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  width() { return Math.max(1, this.canvas.clientWidth - LEFT - 8); }
  x(at) { return LEFT + (at - this.from) / (this.to - this.from) * this.width(); }
  at(x) { return this.from + (x - LEFT) / this.width() * (this.to - this.from); }
  y(cpu) { return TOP + (this.rows.get(cpu) ?? 0) * (ROW + GAP); }

  zoom(factor, centre) {
    const length = Math.min(this.data.length, Math.max(500, (this.to - this.from) * factor));
    const part = (centre - this.from) / (this.to - this.from);
    this.show(centre - part * length, centre + (1 - part) * length);
  }

  show(from, to) {
    const length = to - from;
    this.from = Math.max(0, Math.min(from, this.data.length - length));
    this.to = this.from + length;
    this.draw();
  }

  draw() {
    const canvas = this.canvas, ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.paint(context, colours());
  }

  paint(context, colour) {
    const canvas = this.canvas;
    context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    context.font = "12px system-ui, sans-serif";
    this.scale(context, colour);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, this.width(), canvas.clientHeight);
    context.clip();
    for (const cpu of this.data.cpus) this.spans(context, colour, cpu);
    for (const ipi of this.data.ipis) this.ipi(context, colour, ipi);
    for (const flush of this.data.flushes) this.flush(context, colour, flush);
    context.restore();
    context.fillStyle = colour.ink;
    for (const cpu of this.data.cpus) context.fillText("CPU " + cpu.cpu, 4, this.y(cpu.cpu) + ROW / 2 + 4);
  }

  scale(context, colour) {
    const length = this.to - this.from;
    let step = 10 ** Math.floor(Math.log10(length / 4));
    if (length / step > 10) step *= 2;
    if (length / step > 10) step *= 2.5;
    context.fillStyle = colour.soft;
    context.strokeStyle = colour.grid;
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      context.beginPath();
      context.moveTo(x, 16);
      context.lineTo(x, this.canvas.clientHeight);
      context.stroke();
      const text = time(at);
      if (x + 3 + context.measureText(text).width < this.canvas.clientWidth) context.fillText(text, x + 3, 12);
    }
  }

  spans(context, colour, cpu) {
    const y = this.y(cpu.cpu);
    for (const [start, end, kind, name] of cpu.spans) {
      if (end < this.from || start > this.to) continue;
      const x = this.x(start), width = Math.max(0.5, this.x(end) - x);
      context.fillStyle = colour.kinds[kind];
      context.fillRect(x, y, width, ROW);
      if (width > 46 && kind !== 2) {
        context.save();
        context.beginPath();
        context.rect(x, y, width, ROW);
        context.clip();
        context.fillStyle = colour.ink;
        context.fillText(this.data.names[name], Math.max(x, LEFT) + 3, y + ROW / 2 + 4);
        context.restore();
      }
    }
  }

  flush(context, colour, flush) {
    const isChosen = this.chosen === flush, y = this.y(flush.cpu);
    const x = this.x(flush.start), width = Math.max(3, this.x(flush.end) - x);
    context.lineWidth = isChosen ? 2.5 : 1;
    context.fillStyle = context.strokeStyle = flush.kicked ? colour.kick : colour.deferred;
    context.fillRect(x, y + ROW - 7, width, 7);
    for (const arrow of flush.arrows) {
      const isKick = arrow.kind === "kick";
      if (!isKick && !isChosen) {
        // Where many are deferred, only their marks are shown until the flush is chosen.
        this.mark(context, colour.deferred, arrow.cpu, this.x(arrow.at));
        continue;
      }
      context.strokeStyle = context.fillStyle = isKick ? colour.kick : colour.deferred;
      this.arrow(context, flush.cpu, x + 1, arrow.cpu, this.x(arrow.at), isKick);
      if (!isKick) this.mark(context, colour.deferred, arrow.cpu, this.x(arrow.at));
    }
    context.lineWidth = 1;
  }

  // An interrupt between vCPUs: an arrow to its receiver's entry, dashed if that was not running.
  ipi(context, colour, ipi) {
    const [cpu, sent, to, arrives, , , , wasRunning] = ipi;
    const x = this.x(sent), end = this.x(arrives), isChosen = this.chosen === ipi;
    if (end < LEFT || x > LEFT + this.width()) return;
    context.lineWidth = isChosen ? 2.5 : 1;
    context.strokeStyle = context.fillStyle = colour.ipi;
    context.fillRect(x, this.y(cpu) + ROW - 7, 2, 7);
    context.setLineDash(wasRunning ? [] : [3, 3]);
    this.arrow(context, cpu, x + 1, to, end, wasRunning);
    context.setLineDash([]);
    if (!wasRunning) this.mark(context, colour.ipi, to, end);
    context.lineWidth = 1;
  }

  // A curve from below one CPU's row to another's, or to the same one's.
  arrow(context, cpu, x, to, end, hasHead) {
    const y = this.y(cpu) + ROW, isBelow = this.y(to) + ROW > y, bend = GAP / 1.5;
    const endY = this.y(to) + (isBelow ? 0 : ROW), from = isBelow ? -bend : bend;
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x, y + bend, end, endY + from, end, endY);
    context.stroke();
    if (!hasHead) return;
    const back = isBelow ? -6 : 6;
    context.beginPath();
    context.moveTo(end, endY);
    context.lineTo(end - 3, endY + back);
    context.lineTo(end + 3, endY + back);
    context.fill();
  }

  // A diamond at the entry at which something is carried out that has waited for it.
  mark(context, colour, cpu, x) {
    const y = this.y(cpu) + ROW;
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + 4, y + 5);
    context.lineTo(x, y + 10);
    context.lineTo(x - 4, y + 5);
    context.fill();
  }

  // What is at a place: a flush, else an interrupt, else what the CPU does.
  choose(x, y) {
    const isIn = (cpu) => Math.abs(this.y(cpu) + ROW / 2 - y) < ROW;
    const nearest = (all, cpu, distance) => all.filter((one) => isIn(cpu(one)) && distance(one) < 8)
      .sort((a, b) => distance(a) - distance(b))[0];
    const flush = nearest(this.data.flushes, (one) => one.cpu,
      (one) => Math.max(this.x(one.start) - x, x - this.x(one.end), 0));
    const ipi = nearest(this.data.ipis, (one) => one[0], (one) => Math.abs(this.x(one[1]) - x));
    const cpu = this.data.cpus.find((one) => y >= this.y(one.cpu) && y < this.y(one.cpu) + ROW);
    const span = cpu && cpu.spans.find(([start, end]) => start <= this.at(x) && this.at(x) < end);
    this.chosen = flush || ipi || null;
    const rows = flush ? this.aboutFlush(flush) : ipi ? this.aboutIpi(ipi) : span ? this.aboutSpan(cpu.cpu, span) : [];
    this.details.replaceChildren(...rows.flatMap(([name, value]) => {
      const term = document.createElement("dt"), text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      return [term, text];
    }));
    this.draw();
  }

  aboutFlush(flush) {
    return [["flush", flush.id], ["initiator", flush.vcpu === null ? "the hypervisor" : "vCPU " + flush.vcpu],
      ["on", "CPU " + flush.cpu], ["begins at", time(this.data.start + flush.start)], ["takes", time(flush.end - flush.start)],
      ["flushes", flush.elements ? flush.elements + " list elements" : "everything"], ["vCPUs named", flush.named],
      ["targets", flush.targets], ["deferred", flush.deferred], ["CPUs kicked", flush.kicked], ["kicks merged", flush.merged]];
  }

  aboutIpi([cpu, sent, to, arrives, from, vcpu, vector, wasRunning]) {
    return [["IPI", "vector " + vector], ["sender", "vCPU " + from + " on CPU " + cpu], ["receiver", "vCPU " + vcpu + " on CPU " + to],
      ["receiver was", wasRunning ? "in guest mode" : "not running"], ["sent at", time(this.data.start + sent)],
      ["arrives after", time(arrives - sent)]];
  }

  aboutSpan(cpu, [start, end, kind, name]) {
    return [["CPU " + cpu, ["guest", "hypervisor", "idle"][kind]], [kind === 1 ? "reason" : "what", this.data.names[name]],
      ["begins at", time(this.data.start + start)], ["takes", time(end - start)]];
  }
}

function start() {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const timelines = [...document.querySelectorAll("section.trace")].map((section) => new Timeline(section));
  const redraw = () => timelines.forEach((timeline) => timeline.draw());
  const set = (theme) => { root.dataset.theme = theme; redraw(); };
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => set(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
  // Paper is light. The browser tells of printing before it applies the style for paper.
  let screen = null;
  addEventListener("beforeprint", () => {
    screen = root.dataset.theme;
    for (const details of document.querySelectorAll("details")) details.open = true;
    set("light");
  });
  addEventListener("afterprint", () => { if (screen) set(screen); screen = null; });
  matchMedia("print").addEventListener("change", redraw);
  window.quellTimelines = timelines;
}
start();
