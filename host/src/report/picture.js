"use strict";
// A timeline of the page as a picture of its own: SVG whose colours depend on the reader's preference.

const escaped = (text) => text.replace(/[&<>"]/g, (char) => `&#${char.charCodeAt(0)};`);
const round = (number) => Math.round(number * 10) / 10;

// A canvas's context that draws SVG: as much of it as timelines need.
class Drawing {
  constructor() {
    Object.assign(this, { parts: [], open: [0], clips: 0, path: "", dash: [], lineWidth: 1, fillStyle: "", strokeStyle: "" });
    this.measure = document.createElement("canvas").getContext("2d");
  }

  set font(font) { this.measure.font = font; }
  measureText(text) { return this.measure.measureText(text); }
  clearRect() {}
  setLineDash(dash) { this.dash = dash; }
  save() { this.open.push(0); }
  restore() { this.parts.push("</g>".repeat(this.open.pop())); }
  beginPath() { this.path = ""; }
  step(kind, ...numbers) { this.path += kind + numbers.map(round).join(" "); }
  moveTo(x, y) { this.step("M", x, y); }
  lineTo(x, y) { this.step("L", x, y); }
  bezierCurveTo(...points) { this.step("C", ...points); }
  rect(x, y, width, height) { this.path += `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${-round(width)}z`; }
  fill() { this.parts.push(`<path d="${this.path}" fill="${this.fillStyle}"/>`); }

  stroke() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash}"` : "";
    this.parts.push(`<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"${dash}/>`);
  }

  clip() {
    const id = "clip" + this.clips++;
    this.parts.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath><g clip-path="url(#${id})">`);
    this.open[this.open.length - 1]++;
  }

  fillRect(x, y, width, height) {
    const place = `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;
    this.parts.push(`<rect ${place} fill="${this.fillStyle}"/>`);
  }

  fillText(text, x, y) {
    this.parts.push(`<text x="${round(x)}" y="${round(y)}" fill="${this.fillStyle}">${escaped(text)}</text>`);
  }
}

// The legend below the timeline, in rows.
function legend(drawing, section, top, width) {
  let x = LEFT, y = top;
  for (const entry of section.querySelectorAll(".legend li")) {
    const needed = drawing.measureText(entry.textContent).width + 40, name = entry.className;
    if (x + needed > width) [x, y] = [LEFT, y + 20];
    drawing.fillStyle = `var(--${{ alone: "deferred", waiting: "ipi" }[name] ?? name})`;
    if (name === "deferred" || name === "waiting") Timeline.prototype.mark.call({ y: () => y - ROW }, drawing, drawing.fillStyle, 0, x + 6);
    else drawing.fillRect(x, y, 12, 12);
    drawing.fillStyle = "var(--ink)";
    drawing.fillText(entry.textContent, x + 18, y + 10);
    x += needed;
  }
  return y + 24;
}

async function ask() {
  const [timeline] = quellTimelines, drawing = new Drawing(), names = ["paper", "ink", "soft", "grid", "guest", "hypervisor", "idle", "kick", "deferred", "ipi"];
  const of = (name) => `var(--${name})`, width = timeline.canvas.clientWidth;
  const colour = { ...Object.fromEntries(names.map((name) => [name, of(name)])), kinds: ["guest", "hypervisor", "idle"].map(of) };
  timeline.paint(drawing, colour);
  const height = legend(drawing, timeline.canvas.closest("section"), timeline.canvas.clientHeight + 4, width);
  const style = getComputedStyle(document.documentElement);
  const values = (theme) => {
    document.documentElement.dataset.theme = theme;
    return names.map((name) => `--${name}:${style.getPropertyValue("--" + name).trim()};`).join("");
  };
  const styles = `:root{${values("light")}}@media (prefers-color-scheme:dark){:root{${values("dark")}}}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12">
<style>${styles}</style>
<rect width="${width}" height="${height}" fill="var(--paper)"/>
${drawing.parts.join("\n")}
</svg>
`;
}
