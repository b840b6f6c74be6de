// Tree maps, rooflines, paired bars and source lines of a PASTA report. Data: pasta/report/page.py.
"use strict";
const picturesWith = ({ make, formatted, grouped, shortened, series, seriesCount, links }) => {
  const HEADER = 16; // CSS pixels: heading of a group
  const LEAST_TEXT = 34;
  const SVG = "http://www.w3.org/2000/svg";

  function draw(tag, properties = {}, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const values = (column, rows) => Array.from({ length: rows }, (_, row) => column.value(row));
  const named = (columns) => Object.fromEntries(columns.map((column) => [column.name, column]));
  const exact = (value, unit) => formatted(value, unit, Number.isInteger(value) ? "int" : "float");

  // ---- tree maps ----

  /** Rectangles of about the same proportions for sizes in descending order ("squarified"). */
  function squarified(sizes, x, y, wide, high) {
    const found = [];
    let left = sizes.reduce((sum, size) => sum + size, 0);
    let first = 0;
    while (first < sizes.length && left > 0 && wide > 0 && high > 0) {
      const scale = (wide * high) / left;
      const side = Math.min(wide, high);
      let sum = 0;
      let last = first;
      let worst = Infinity;
      while (last < sizes.length) {
        const next = sum + sizes[last] * scale;
        const thick = next / side;
        const [largest, smallest] = [sizes[first] * scale, sizes[last] * scale];
        const ratio = Math.max(largest / thick / thick, (thick * thick) / smallest);
        if (ratio > worst) break;
        [worst, sum] = [ratio, next];
        last += 1;
      }
      const thick = sum / side;
      let at = 0;
      for (let index = first; index < last; index++) {
        const long = (sizes[index] * scale) / thick;
        found.push(wide >= high ? [x, y + at, thick, long] : [x + at, y, long, thick]);
        left -= sizes[index];
        at += long;
      }
      if (wide >= high) [x, wide] = [x + thick, wide - thick];
      else [y, high] = [y + thick, high - thick];
      first = last;
    }
    return found;
  }

  class TreeMap {
    constructor(host, block, columns) {
      const of = named(columns);
      const rows = block.rows;
      this.host = host;
      this.block = block;
      this.of = Object.fromEntries(Object.entries(of).map(([name, column]) => [name, values(column, rows)]));
      this.below = Array.from({ length: rows }, () => []);
      this.total = this.of.size.map(Number);
      for (let node = rows - 1; node > 0; node--) {
        const parent = Number(this.of.parent[node]);
        this.total[parent] += this.total[node];
        this.below[parent].push(node);
      }
      for (const each of this.below) each.sort((a, b) => this.total[b] - this.total[a]);
      this.box = make("div", { className: "treemap", role: "group" });
      this.box.setAttribute("aria-label", `${block.title}; arrow keys walk, Enter opens, Escape goes back`);
      this.path = make("p", { className: "readout path" });
      this.readout = make("p", { className: "readout", role: "status" });
      this.host.replaceChildren(this.path, this.box, this.readout);
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.zoomed = 0;
      new ResizeObserver(() => this.draw()).observe(this.box);
      this.zoom(0);
    }

    zoom(node) {
      this.zoomed = node;
      this.drawn = "";
      const steps = [];
      for (let at = node; at >= 0; at = Number(this.of.parent[at])) steps.unshift(at);
      const parts = steps.flatMap((at, index) => {
        const name = at ? shortened(this.of.name[at], 60) : "all";
        if (at === node) return [index ? " › " : "", `${name}: ${exact(this.total[at], this.block.unit)}`];
        const button = make("button", { type: "button", className: "more" }, name);
        button.addEventListener("click", () => this.zoom(at));
        return [index ? " › " : "", button];
      });
      this.path.replaceChildren(...parts);
      this.readout.textContent = "Point at a part, click a group to open it, a leaf to see its rows";
      this.draw();
    }

    says(node) {
      const { name, detail } = this.of;
      const share = formatted(this.total[node] / this.total[0], "share", "float");
      const more = detail[node] && detail[node] !== name[node] ? ` (${shortened(detail[node], 160)})` : "";
      return `${shortened(name[node], 120)}: ${exact(this.total[node], this.block.unit)}, ${share}${more}`;
    }

    draw() {
      const wide = this.box.clientWidth;
      if (!wide || this.drawn === `${wide} ${this.zoomed}`) return;
      this.drawn = `${wide} ${this.zoomed}`;
      const high = Math.round(Math.min(420, Math.max(220, 0.4 * wide)));
      this.box.style.height = `${high}px`;
      const parts = [];
      const only = this.below[this.zoomed].length ? this.zoomed : Number(this.of.parent[this.zoomed]);
      this.place(only, 0, 0, wide, high, parts);
      this.box.replaceChildren(...parts);
      if (parts.length) parts[0].tabIndex = 0;
    }

    place(node, x, y, wide, high, parts) {
      const below = this.below[node];
      const boxes = squarified(below.map((each) => this.total[each]), x, y, wide, high);
      below.forEach((each, at) => {
        if (!boxes[at]) return;
        const [left, top, width, height] = boxes[at];
        if (width < 1.5 || height < 1.5) return;
        const group = this.below[each].length > 0;
        parts.push(this.part(each, left, top, width, height, group));
        if (!group || width < 8 || height < 8) return;
        const head = height > 2.2 * HEADER && width > LEAST_TEXT ? HEADER : 0;
        this.place(each, left + 1, top + head, width - 2, height - head - 1, parts);
      });
    }

    part(node, left, top, width, height, group) {
      const part = make("button", { type: "button", tabIndex: -1, title: this.says(node) });
      part.className = `${group ? "group" : "leaf"} c${Number(this.of.color[node]) % seriesCount}`;
      part.dataset.node = node;
      part.setAttribute("aria-label", this.says(node));
      const wide = this.box.clientWidth;
      part.style.left = `${(100 * left) / wide}%`; // paper has another width
      part.style.top = `${top}px`;
      part.style.width = `${(100 * Math.max(1, width - 1)) / wide}%`;
      part.style.height = `${Math.max(1, height - 1)}px`;
      if (width > LEAST_TEXT && height > 14) {
        const name = this.of.name[node];
        const short = width < 7 * name.length ? name.split(" (")[0].split(".").slice(-2).join(".") : name; // of a module
        const text = group ? `${short}  ${exact(this.total[node], this.block.unit)}` : name;
        part.append(make("span", {}, text));
        if (!group && height > 30) part.append(make("small", {}, exact(this.total[node], this.block.unit)));
      }
      const show = () => (this.readout.textContent = this.says(node));
      part.addEventListener("pointerenter", show);
      part.addEventListener("focus", show);
      part.addEventListener("click", () => {
        if (group) this.zoom(node);
        else links.rows(this.host, this.of.find[node], this.block.table);
      });
      return part;
    }

    key(event) {
      if (event.key === "Escape") this.zoom(Math.max(0, Number(this.of.parent[this.zoomed])));
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const parts = [...this.box.children];
      const next = parts[parts.indexOf(document.activeElement) + step];
      if (!next) return;
      document.activeElement.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  }

  // ---- rooflines ----

  const SI = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  function metric(value, unit) {
    const [size, letter] = SI.find(([size]) => value >= size) ?? [1, ""];
    return `${Number((value / size).toPrecision(3))} ${letter}${unit}`;
  }

  /** Decades that cover numbers, with a margin. */
  function decades(numbers) {
    const logs = numbers.filter((each) => each > 0).map(Math.log10);
    return [Math.floor(Math.min(...logs) - 0.15), Math.ceil(Math.max(...logs) + 0.15)];
  }

  /** Attainable rates over arithmetic intensity, both logarithmic; areas of points are times. */
  function drawRoofline(host, block, columns) {
    const { name, intensity, rate, time, share } = named(columns);
    const points = values(name, block.rows)
      .map((label, row) => ({
        label,
        x: Number(intensity.value(row)),
        y: Number(rate.value(row)),
        time: Number(time.value(row)),
        share: share.value(row),
      }))
      .filter((each) => each.x > 0 && each.y > 0)
      .sort((a, b) => b.time - a.time);
    const memory = block.roofs.filter((roof) => roof.kind === "memory");
    const compute = block.roofs.filter((roof) => roof.kind === "compute");
    const ridges = memory.flatMap((low) => compute.map((high) => high.rate / low.rate));
    const [x0, x1] = decades([...points.map((each) => each.x), ...ridges]);
    const tops = compute.length ? compute.map((roof) => roof.rate) : memory.map((roof) => roof.rate * 10 ** x1);
    const [y0, y1] = decades([...points.map((each) => each.y), ...tops]);
    const most = Math.max(...points.map((each) => each.time), 1);
    const readout = make("p", { className: "readout", role: "status" }, "Point at a mark; its area is proportional to device time");
    const canvas = draw("svg", { class: "roofline", role: "img", "aria-label": `${block.title}: values in the table below` });

    function paint() {
      const wide = Math.max(240, host.clientWidth);
      const high = Math.round(Math.min(380, Math.max(240, 0.5 * wide)));
      const [left, top, right, bottom] = [64, 14, 14, 40];
      const px = (x) => left + ((Math.log10(x) - x0) / (x1 - x0)) * (wide - left - right);
      const py = (y) => high - bottom - ((Math.log10(y) - y0) / (y1 - y0)) * (high - top - bottom);
      const parts = [];
      const text = (x, y, anchor, words, extra = {}) => draw("text", { x, y, "text-anchor": anchor, ...extra }, words);
      const every = Math.ceil(((x1 - x0) * 56) / (wide - left - right));
      for (let power = x0; power <= x1; power++) {
        parts.push(draw("line", { class: "grid", x1: px(10 ** power), x2: px(10 ** power), y1: top, y2: high - bottom }));
        if ((power - x0) % every === 0) parts.push(text(px(10 ** power), high - bottom + 14, "middle", `${Number((10 ** power).toPrecision(1))}`));
      }
      for (let power = y0; power <= y1; power++) {
        parts.push(draw("line", { class: "grid", x1: left, x2: wide - right, y1: py(10 ** power), y2: py(10 ** power) }));
        parts.push(text(left - 6, py(10 ** power) + 4, "end", metric(10 ** power, "")));
      }
      parts.push(text((left + wide - right) / 2, high - 6, "middle", "FLOP per byte"));
      parts.push(text(left, top - 3, "start", "FLOP/s"));
      for (const roof of compute) {
        const ridge = memory.length ? roof.rate / Math.max(...memory.map((low) => low.rate)) : 10 ** x0;
        const from = Math.max(px(ridge), left);
        parts.push(draw("line", { class: "roof", x1: from, x2: wide - right, y1: py(roof.rate), y2: py(roof.rate) }));
        parts.push(text(wide - right - 2, py(roof.rate) - 4, "end", `${roof.label}: ${metric(roof.rate, "FLOP/s")}`, { class: "on-roof" }));
      }
      for (const roof of memory) {
        const end = Math.min(10 ** x1, Math.max(...(compute.length ? compute.map((each) => each.rate) : [10 ** y1])) / roof.rate);
        const begin = Math.max(10 ** x0, 10 ** y0 / roof.rate);
        parts.push(draw("line", { class: "roof", x1: px(begin), y1: py(begin * roof.rate), x2: px(end), y2: py(end * roof.rate) }));
        const middle = Math.sqrt(begin * end);
        const slope = (Math.atan2(py(end * roof.rate) - py(begin * roof.rate), px(end) - px(begin)) * 180) / Math.PI;
        const [x, y] = [px(middle), py(middle * roof.rate) - 5];
        parts.push(text(x, y, "middle", `${roof.label}: ${metric(roof.rate, "B/s")}`, { class: "on-roof", transform: `rotate(${slope} ${x} ${y})` }));
      }
      for (const [rank, point] of points.entries()) {
        const says = `${shortened(point.label, 100)}: ${metric(point.y, "FLOP/s")} at ${Number(point.x.toPrecision(3))} FLOP per byte, ${formatted(point.time, "ns", "int")}${point.share === null ? "" : `, ${formatted(point.share, "share", "float")} of the roof`}`;
        const mark = draw("circle", { cx: px(point.x), cy: py(point.y), r: 3 + 9 * Math.sqrt(point.time / most), tabindex: rank < 20 ? 0 : -1, class: `point c${rank < seriesCount - 1 ? rank : -1}` }, draw("title", {}, says));
        const show = () => (readout.textContent = says);
        mark.addEventListener("pointerenter", show);
        mark.addEventListener("focus", show);
        mark.addEventListener("click", () => links.rows(host, point.label.split(", ")[0]));
        parts.push(mark);
      }
      canvas.setAttribute("viewBox", `0 0 ${wide} ${high}`);
      canvas.setAttribute("width", wide);
      canvas.setAttribute("height", high);
      canvas.replaceChildren(...parts);
    }
    const legend = make(
      "div",
      { className: "key" },
      ...points.slice(0, seriesCount - 1).map((point, at) => {
        const sample = make("i");
        sample.style.background = series(at);
        return make("span", {}, sample, shortened(point.label, 48));
      }),
    );
    host.replaceChildren(canvas, legend, readout);
    paint();
    let before = host.clientWidth;
    new ResizeObserver(() => {
      if (host.clientWidth !== before) paint();
      before = host.clientWidth;
    }).observe(host);
  }

  // ---- paired bars ----

  /** A pair of bars for each row: before, and after. */
  function drawPairs(host, block, columns) {
    const { name, before, after } = named(columns);
    const number = (column, row) => (column.value(row) === null ? null : Number(column.value(row)));
    const rows = values(name, block.rows).map((label, row) => [label, number(before, row), number(after, row)]);
    const most = Math.max(...rows.flatMap(([, one, other]) => [one ?? 0, other ?? 0])) || 1;
    const says = (value) => (value === null ? "–" : exact(value, block.unit));
    const parts = rows.flatMap(([label, one, other]) => {
      const bars = make("div", { className: "pair" });
      for (const [kind, value] of [["before", one], ["after", other]]) {
        const bar = make("span", { className: kind, title: `${kind}: ${says(value)}` });
        bar.style.width = `${(100 * (value ?? 0)) / most}%`;
        bars.append(bar);
      }
      const difference = (other ?? 0) - (one ?? 0);
      const relative = one ? `${difference < 0 ? "−" : "+"}${Number(((100 * Math.abs(difference)) / one).toPrecision(3))} %` : "new";
      const words = difference === 0 ? "=" : other === null || (other === 0 && one) ? "gone" : relative;
      return [
        make("span", { className: "label", title: label }, shortened(label, 60)),
        bars,
        make("span", { className: "value" }, `${says(one)} → ${says(other)}`),
        make("span", { className: `change ${difference > 0 ? "more-of-it" : difference < 0 ? "less-of-it" : ""}` }, words),
      ];
    });
    const left = block.left ? [make("p", { className: "readout" }, `${grouped(String(block.left))} more rows in the table`)] : [];
    host.replaceChildren(make("div", { className: "pairs" }, ...parts), ...left);
  }

  // ---- source ----

  /** Lines of a file, with bars for what was measured of each. */
  function drawSource(host, block, columns) {
    const of = named(columns);
    const numbers = values(of.line, block.rows).map(Number);
    const texts = values(of.text, block.rows);
    const table = make("table", {}, make("tbody"));
    const choice = make("select", {}, ...block.measures.map((each, at) => make("option", { value: at }, each.label)));
    choice.setAttribute("aria-label", "Measure of the bars");
    const code = make("input", { type: "checkbox" });
    const body = table.tBodies[0];
    const instructions = (number) => {
      const { kernels, left } = block.code[number] ?? { kernels: [], left: 0 };
      const rows = kernels.flatMap(([kernel, ...lines]) => [
        ["", kernel, "kernel"],
        ...lines.map(([offset, text]) => [`0x${offset.toString(16)}`, text, "code"]),
      ]);
      if (left) rows.push(["", `${grouped(String(left))} more instructions`, "kernel"]);
      return rows.map(([offset, text, name]) => make("tr", { className: "sass" }, make("td"), make("td", { className: "number quiet" }, offset), make("td", { className: name }, text)));
    };
    const show = () => {
      const at = Number(choice.value) || 0;
      const unit = block.measures[at]?.unit ?? null;
      const amounts = values(of[`measure_${at}`], block.rows);
      const most = Math.max(...amounts.map((each) => Number(each ?? 0))) || 1;
      const rows = numbers.flatMap((number, row) => {
        const amount = amounts[row];
        const heat = make("td", { className: "number share" }, amount === null ? "" : exact(Number(amount), unit));
        heat.style.setProperty("--share", `${(100 * Number(amount ?? 0)) / most}%`);
        const line = make("tr", {}, make("td", { className: "number quiet" }, String(number)), heat, make("td", { className: "code" }, texts[row]));
        line.dataset.line = number;
        if (amount !== null && Number(amount) >= 0.1 * most) line.className = "hot";
        if (block.measures.some((_, each) => of[`measure_${each}`].value(row) !== null)) {
          const find = make("button", { type: "button", className: "more", title: "Show the rows of this line" }, String(number));
          find.addEventListener("click", () => links.rows(null, `${block.file.split("/").at(-1)}:${number}`));
          line.cells[0].replaceChildren(find);
        }
        const gap = row && number !== numbers[row - 1] + 1;
        const below = code.checked ? instructions(number) : [];
        return gap ? [make("tr", { className: "gap" }, make("td", { colSpan: 3 }, "⋯")), line, ...below] : [line, ...below];
      });
      body.replaceChildren(...rows);
    };
    choice.addEventListener("change", show);
    code.addEventListener("change", show);
    show();
    const hottest = () => {
      const bars = [...body.querySelectorAll("td.share")];
      const wide = (bar) => parseFloat(bar.style.getPropertyValue("--share")) || 0;
      return bars.reduce((most, bar) => (wide(bar) > wide(most) ? bar : most), bars[0]);
    };
    const scroll = make("div", { className: "scroll source", tabIndex: 0, role: "region" }, table);
    scroll.setAttribute("aria-label", block.file);
    const controls = [make("span", {}, "Bars:"), choice];
    if (Object.keys(block.code).length) controls.push(make("label", {}, code, " instructions (SASS)"));
    host.replaceChildren(make("div", { className: "controls" }, ...controls), scroll);
    scroll.scrollTop = hottest().offsetTop - scroll.clientHeight / 3;
    host.showLine = (number) => {
      const line = body.querySelector(`[data-line="${number}"]`);
      if (!line) return false;
      body.querySelector(".here")?.classList.remove("here");
      line.classList.add("here");
      line.scrollIntoView({ block: "center" });
      return true;
    };
  }

  return {
    treemap: (host, block, columns) => new TreeMap(host, block, columns),
    roofline: drawRoofline,
    pairs: drawPairs,
    source: drawSource,
  };
};
