// The timeline of a PASTA report: rows of slices and counters on one canvas. Data: pasta/report/page.py.
"use strict";
const timelineWith = ({ make, colour, formatted, grouped, shortened, TableView, remote }) => {
  const LINE = 18; // CSS pixels: height of a row of slices
  const HEAD = 17;
  const COUNTER = 38;
  const AXIS = 24;
  const MOST_LABELS = 500; // in one picture
  const LEAST_SPAN = 20; // ns, of a view
  const IN_PIXEL = 24; // slices of one pixel that are summed one by one
  const SETTLED = 180; // ms after which the tables follow the view
  const FONT = "11px system-ui, sans-serif";
  const KINDS = {
    range: "range", operator: "operator", call: "call", wait: "wait", kernel: "kernel", copy: "copy",
    set: "set", block: "blocks of a kernel", sample: "sampled call", mark: "event",
  };
  const LINKED = new Set(["kernel", "operator", "range"]); // kinds whose names lead here
  const BLOCKS = /, ([\d,]+) blocks$/; // of a name: blocks.py
  const STEPS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];

  /** The first index from `low` to `high` whose value is above `limit`. */
  function above(values, limit, low, high) {
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (values[middle] > limit) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  const numbers = (column) =>
    column.values instanceof Float64Array ? column.values : Float64Array.from(column.values, Number);

  function hashed(text) {
    let hash = 7;
    for (let at = 0; at < text.length; at++) hash = (Math.imul(hash, 31) + text.charCodeAt(at)) | 0;
    return hash >>> 0;
  }

  /** Red, green and blue of any CSS colour. */
  function rgb(text) {
    const pen = make("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    return pen.getImageData(0, 0, 1, 1).data;
  }

  const packed = (red, green, blue) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

  /** `share` of 0 to 1 of a packed colour on another one. */
  function mixed(top, below, share) {
    const part = (shift) => {
      const low = (below >>> shift) & 255;
      return Math.round(low + (((top >>> shift) & 255) - low) * share);
    };
    return packed(part(0), part(8), part(16));
  }

  /** Slices, levels of detail and counters as typed arrays. */
  class Data {
    constructor(block, slices, bins, points, names) {
      const [gap, took, name] = slices.map(numbers);
      this.begin = block.begin;
      this.until = block.until;
      this.focus = block.focus; // the interval shown first, if it is not everything
      this.name = Uint32Array.from(name);
      this.start = new Float64Array(block.rows);
      this.end = new Float64Array(block.rows);
      this.kinds = Array.from({ length: names.rows }, (_, code) => names.columns[0].value(code));
      this.names = Array.from({ length: names.rows }, (_, code) => names.columns[1].value(code));
      this.colours = Array.from({ length: names.rows }, (_, code) => Number(names.columns[2].value(code)));
      const [binName, binShare] = [Int32Array.from(bins[0].values, Number), Uint8Array.from(bins[1].values, Number)];
      let at = 0;
      let bin = 0;
      this.lines = block.lines.map((line) => {
        const first = at;
        let time = 0;
        for (const last = first + line.count; at < last; at++) {
          this.start[at] = time + gap[at];
          time = this.end[at] = this.start[at] + took[at];
        }
        const levels = line.levels.map((count) => {
          const level = { first: 0, of: count, name: binName.subarray(bin, bin + count), share: binShare.subarray(bin, bin + count) };
          bin += count;
          return level;
        });
        const { group, heading, label, depth } = line;
        return { group, heading, label, depth, first, last: at, levels, found: null, remote: Boolean(line.remote), tile: null };
      });
      this.own = block.rows; // slices of the page itself; those of a tile follow
      this.tile = null; // the interval of which tiles are here
      const [time, value] = points.map(numbers);
      at = 0;
      this.counters = block.counters.map((counter) => {
        const last = at + counter.count;
        const of = { ...counter, time: time.subarray(at, last), value: value.subarray(at, last) };
        of.most = of.value.reduce((most, each) => Math.max(most, each), 0) || 1;
        at = last;
        return of;
      });
    }

    /** Takes what the server has of an interval instead of what was there of another. */
    take(tile, slices, bins) {
      const [gap, took, name] = slices.map(numbers);
      const joined = (before, length) => {
        const all = new before.constructor(this.own + length);
        all.set(before.subarray(0, this.own));
        return all;
      };
      this.name = joined(this.name, name.length);
      this.start = joined(this.start, name.length);
      this.end = joined(this.end, name.length);
      const [binName, binShare] = [Int32Array.from(bins[0].values, Number), Uint8Array.from(bins[1].values, Number)];
      let at = 0;
      let bin = 0;
      for (const row of tile.rows) {
        const line = this.lines[row.row];
        line.tile = null;
        line.first = line.last = this.own + at;
        if (row.slices === undefined) {
          line.tile = { first: row.first, of: row.of, name: binName.subarray(bin, bin + row.bins), share: binShare.subarray(bin, bin + row.bins) };
          bin += row.bins;
          continue;
        }
        let time = 0;
        for (const last = at + row.slices; at < last; at++) {
          this.start[this.own + at] = time + gap[at];
          time = this.end[this.own + at] = this.start[this.own + at] + took[at];
          this.name[this.own + at] = name[at];
        }
        line.last = this.own + at;
      }
      this.tile = [tile.begin, tile.until];
    }

    /** Whether all slices of an interval are here. */
    has(from, to) {
      const within = this.tile && this.tile[0] <= from && to <= this.tile[1];
      return this.lines.every((line) => !line.remote || (within && !line.tile));
    }

    /** The kernel, operator or range of a text: itself, or without template arguments; or undefined. */
    named(text) {
      this.known ??= new Set(this.names.filter((_, code) => LINKED.has(this.kinds[code])));
      return [text, text.split("<", 1)[0]].find((each) => this.known.has(each));
    }

    /** The slice of a line at a time, or within `slack` of it; -1 for none. */
    at(line, time, slack) {
      const here = above(this.end, time - 1e-9, line.first, line.last);
      for (const each of [here, here - 1])
        if (each >= line.first && each < line.last && this.start[each] <= time + slack && this.end[each] >= time - slack)
          return each;
      return -1;
    }
  }

  class Timeline {
    constructor(host, data) {
      this.host = host;
      this.data = data;
      this.full = [data.begin, data.until];
      this.focus = data.focus;
      this.view = [...(this.focus ?? this.full)];
      this.selection = null;
      this.picked = null; // a line and a slice
      this.wanted = null; // which codes the search found
      this.pointers = new Map();
      this.place();
      this.build();
      this.paint();
      new ResizeObserver(() => this.resize()).observe(this.scroll);
      this.resize();
    }

    /** Where each line, counter and heading lies, in CSS pixels from the top of all. */
    place() {
      this.items = [];
      let y = AXIS;
      let before = null;
      const draw = (line) => {
        const text = line.group === "host" ? line.heading : `${line.group}: ${line.heading}`;
        if (text !== before) {
          this.items.push({ head: text, y, height: HEAD });
          y += HEAD;
          before = text;
        }
        this.items.push({ line, y, height: LINE });
        y += LINE;
      };
      const isMany = (line) => line.heading !== line.label; // below everything else
      this.data.lines.filter((line) => !isMany(line)).forEach(draw);
      for (const counter of this.data.counters) {
        this.items.push({ head: counter.label, counter, y, height: HEAD }, { counter, y: y + HEAD, height: COUNTER });
        y += HEAD + COUNTER;
      }
      this.data.lines.filter(isMany).forEach(draw);
      this.tall = y + 4;
    }

    build() {
      this.search = make("input", { type: "search", placeholder: "Search names" });
      this.search.setAttribute("aria-label", "Search in the timeline");
      this.search.addEventListener("input", () => {
        clearTimeout(this.searching);
        this.searching = setTimeout(() => this.find(this.search.value), 120);
      });
      this.search.addEventListener("keydown", (event) => {
        if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      });
      const button = (text, name, act) => {
        const made = make("button", { type: "button", title: name }, text);
        made.setAttribute("aria-label", name);
        made.addEventListener("click", act);
        return made;
      };
      this.matches = make("span", { role: "status" });
      this.steps = [
        button("‹", "Previous match", () => this.step(-1)),
        button("›", "Next match", () => this.step(1)),
      ];
      const zooms = [
        button("+", "Zoom in", () => this.zoom(0.5)),
        button("−", "Zoom out", () => this.zoom(2)),
        button("All", "Show everything", () => this.look(...this.full)),
      ];
      if (this.focus) zooms.push(button("Main part", "Show the time with nearly all events", () => this.look(...this.focus)));
      this.clear = button("Clear selection", "Clear the selection", () => this.select(null));
      const controls = make(
        "div", { className: "controls" }, this.search, ...this.steps, this.matches,
        make("span", { className: "grow" }), this.clear, make("span", { className: "together" }, ...zooms),
      );
      this.canvas = make("canvas", { tabIndex: 0, role: "application" });
      this.canvas.setAttribute(
        "aria-label",
        "Timeline. W and S or up and down zoom, A and D or left and right move, F shows the picked slice, Home shows everything, Escape clears the selection. The table below lists what ran in view.",
      );
      this.pen = this.canvas.getContext("2d", { alpha: false });
      this.room = make("div", {}, this.canvas);
      this.scroll = make("div", { className: "timeline-scroll" }, this.room);
      this.room.style.height = `${this.tall}px`;
      this.tip = make("div", { className: "tip", hidden: true });
      this.readout = make("p", { className: "readout", role: "status" });
      this.help("");
      this.legend = make("div", { className: "key" });
      this.below = make("div", { className: "interval" });
      this.heading = make("h3");
      this.table = make("div");
      this.below.append(this.heading, this.table);
      this.host.replaceChildren(controls, this.scroll, this.tip, this.readout, this.legend, this.below);
      this.listen();
    }

    help(text) {
      const touch = matchMedia("(pointer: coarse)").matches;
      const keys =
        "Drag to move; Ctrl and wheel, or pinch, to zoom (click first: the wheel alone); Shift and drag, or drag on the scale, to select; w a s d and arrow keys.";
      this.readout.textContent =
        text || (touch ? "Drag to move, pinch to zoom, drag on the scale to select." : keys);
    }

    listen() {
      const { canvas, scroll } = this;
      scroll.addEventListener("scroll", () => this.draw());
      canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      canvas.addEventListener("keydown", (event) => this.key(event));
      canvas.addEventListener("pointerdown", (event) => this.down(event));
      canvas.addEventListener("pointermove", (event) => this.move(event));
      for (const name of ["pointerup", "pointercancel"])
        canvas.addEventListener(name, (event) => this.up(event));
      canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    }

    // ---- colours ----

    /** Takes the colours of the page's scheme. */
    paint() {
      const { names, kinds, colours } = this.data;
      const dark = matchMedia("(prefers-color-scheme: dark)").matches && !document.documentElement.hasAttribute("data-print");
      const known = new Map();
      const of = (text) => {
        if (!known.has(text)) known.set(text, packed(...rgb(text)));
        return known.get(text);
      };
      this.ink = { paper: colour("--paper"), text: colour("--ink"), quiet: colour("--quiet"), line: colour("--line"), accent: colour("--accent") };
      this.paper = of(this.ink.paper);
      const light = (low, high, hash) => (dark ? low - 12 : low) + (hash % (high - low));
      const chosen = (code) => {
        const hash = hashed(kinds[code] === "block" ? names[code].replace(BLOCKS, "") : names[code]);
        if (colours[code] >= 0) return of(colour(`--s${colours[code]}`));
        switch (kinds[code]) {
          case "operator": return of(`hsl(${190 + (hash % 60)} ${dark ? 35 : 48}% ${light(50, 68, hash >>> 8)}%)`);
          case "range": return of(`hsl(${35 + (hash % 20)} ${dark ? 50 : 70}% ${light(50, 66, hash >>> 8)}%)`);
          case "wait": return of(`hsl(5 ${dark ? 40 : 55}% ${light(56, 64, hash >>> 8)}%)`);
          case "block":
          case "kernel": return of(`hsl(${265 + (hash % 50)} ${dark ? 18 : 24}% ${light(52, 68, hash >>> 8)}%)`);
          case "copy":
          case "set": return of(`hsl(${150 + (hash % 25)} ${dark ? 30 : 40}% ${light(45, 55, hash >>> 8)}%)`);
          case "sample": return of(`hsl(${70 + (hash % 40)} ${dark ? 24 : 32}% ${light(56, 70, hash >>> 8)}%)`);
          case "mark": return of(`hsl(215 12% ${dark ? 66 : 42}%)`);
          default: return of(`hsl(215 8% ${dark ? 48 : 66}%)`);
        }
      };
      this.colours = Uint32Array.from(names, (_, code) => chosen(code));
      this.bright = Uint8Array.from(this.colours, (each) => {
        const [red, green, blue] = [each & 255, (each >>> 8) & 255, (each >>> 16) & 255];
        return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? 1 : 0;
      });
      this.faded = this.colours.map((each) => mixed(each, this.paper, 0.16));
      this.mark = of(this.ink.text);
      this.level = of(colour("--s0"));
      const present = [...new Set(kinds)].filter((kind) => kind in KINDS && kind !== "kernel");
      this.legend.replaceChildren(
        ...present.map((kind) => {
          const sample = make("i");
          const own = kinds.findIndex((each, code) => each === kind && colours[code] < 0);
          sample.style.background = this.css(this.colours[own < 0 ? kinds.indexOf(kind) : own]);
          return make("span", {}, sample, KINDS[kind]);
        }),
        make("span", {}, "colors as in the overview"),
      );
      if (this.pixels) this.picture(); // at once: a printer does not wait
    }

    css(colour) {
      return `rgb(${colour & 255} ${(colour >>> 8) & 255} ${(colour >>> 16) & 255})`;
    }

    // ---- the view ----

    resize() {
      const wide = Math.max(120, this.scroll.clientWidth);
      const most = Math.max(220, Math.round(0.62 * window.innerHeight));
      const high = Math.min(this.tall, most);
      this.scroll.style.maxHeight = `${most}px`;
      if (wide === this.wide && high === this.high) return;
      [this.wide, this.high] = [wide, high];
      this.dense = Math.min(2, window.devicePixelRatio || 1);
      this.canvas.width = Math.round(wide * this.dense);
      this.canvas.height = Math.round(high * this.dense);
      this.canvas.style.width = `${wide}px`;
      this.canvas.style.height = `${high}px`;
      this.image = this.pen.createImageData(this.canvas.width, this.canvas.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.scan = new Uint32Array(this.canvas.width);
      this.draw();
    }

    get span() {
      return this.view[1] - this.view[0];
    }

    time(x) {
      return this.view[0] + (x / this.wide) * this.span;
    }

    x(time) {
      return ((time - this.view[0]) / this.span) * this.wide;
    }

    /** Shows an interval, within everything. */
    look(from, to) {
      const [first, last] = this.full;
      const span = Math.min(Math.max(to - from, LEAST_SPAN), last - first);
      const begin = Math.min(Math.max(from + (to - from - span) / 2, first), last - span);
      this.view = [begin, begin + span];
      this.draw();
      this.settle();
    }

    zoom(factor, x = this.wide / 2) {
      const at = this.time(x);
      const share = x / this.wide;
      const span = Math.max(this.span * factor, LEAST_SPAN);
      this.look(at - share * span, at + (1 - share) * span);
    }

    pan(pixels) {
      const by = (pixels / this.wide) * this.span;
      const [from, to] = this.view;
      const [first, last] = this.full;
      const kept = Math.min(Math.max(by, first - from), last - to);
      this.look(from + kept, to + kept);
    }

    draw() {
      if (this.waiting || !this.pixels) return;
      this.waiting = requestAnimationFrame(() => {
        this.waiting = 0;
        this.picture();
      });
    }

    /** Draws everything in view. */
    picture() {
      const { pen, dense } = this;
      const top = this.scroll.scrollTop;
      this.pixels.fill(this.paper);
      this.labels = [];
      const seen = this.items.filter((item) => item.y + item.height > top + AXIS && item.y < top + this.high);
      for (const item of seen) {
        if (item.line) this.drawLine(item, item.y - top);
        else if (!item.head) this.drawCounter(item, item.y - top);
      }
      pen.setTransform(1, 0, 0, 1, 0, 0);
      pen.putImageData(this.image, 0, 0);
      pen.setTransform(dense, 0, 0, dense, 0, 0);
      pen.font = FONT;
      pen.textBaseline = "middle";
      this.drawLabels();
      pen.fillStyle = this.ink.quiet;
      for (const item of seen)
        if (item.head) pen.fillText(this.headOf(item), 4, item.y - top + HEAD / 2 + 1, this.wide - 8);
        else if (item.line?.heading !== item.line?.label) this.drawNumber(item, item.y - top);
      this.drawMarked(top);
      this.drawAxis();
    }

    /** The number of a track that has no heading of its own, at the left edge. */
    drawNumber({ line }, y) {
      const { pen } = this;
      const text = line.label.split(" ").at(-1);
      pen.fillStyle = this.ink.paper;
      pen.fillRect(0, y + 1, 7 * text.length + 6, LINE - 2);
      pen.fillStyle = this.ink.quiet;
      pen.fillText(text, 3, y + LINE / 2 + 0.5);
    }

    headOf({ head, counter }) {
      return shortened(counter ? `${head}, up to ${this.amount(counter, counter.most)}` : head, 90);
    }

    amount(counter, value) {
      if (counter.unit === "bytes") return formatted(value, "bytes", "int");
      return formatted(value, null, Number.isInteger(value) ? "int" : "float");
    }

    /** Colours of a slice's name: faded unless the search found it. */
    shade(code) {
      return this.wanted && !this.wanted[code] ? this.faded[code] : this.colours[code];
    }

    drawLine(item, y) {
      const { line } = item;
      const { scan } = this;
      scan.fill(this.paper);
      const per = this.span / scan.length; // ns of a device pixel
      const total = this.full[1] - this.full[0];
      const here = !line.remote || (this.data.tile && this.data.tile[0] <= this.view[0] && this.view[1] <= this.data.tile[1]);
      const levels = here && line.tile ? [...line.levels, line.tile] : line.levels;
      let level = levels.find((each) => total / each.of <= per);
      if (!level && (!here || line.tile)) level = levels.at(-1); // finer ones are asked for
      if (level) this.scanLevel(level, per, total);
      else this.scanSlices(line, per, y);
      if (line.found) this.scanFound(line, per);
      const [first, last] = this.rows(y + 1, y + item.height - 1);
      const wide = scan.length;
      for (let row = first; row < last; row++) this.pixels.set(scan, row * wide);
    }

    /** Device rows of the canvas below the scale. */
    rows(from, to) {
      const clip = (y) => Math.round(Math.min(Math.max(y, AXIS), this.high) * this.dense);
      return [clip(from), Math.min(clip(to), this.canvas.height)];
    }

    scanLevel(level, per, total) {
      const { scan } = this;
      const scale = level.of / total;
      const bins = level.name.length;
      for (let pixel = 0; pixel < scan.length; pixel++) {
        const low = Math.floor((this.view[0] - this.full[0] + pixel * per) * scale) - level.first;
        const high = Math.floor((this.view[0] - this.full[0] + (pixel + 1) * per) * scale) - level.first;
        let most = 0;
        let name = -1;
        let sum = 0;
        let count = 0;
        for (let bin = Math.max(0, low); bin < Math.max(high, low + 1) && bin < bins; bin++) {
          const share = level.share[bin];
          sum += share;
          count += 1;
          if (share > most) [most, name] = [share, level.name[bin]];
        }
        if (name >= 0) scan[pixel] = mixed(this.shade(name), this.paper, Math.max(0.35, sum / (255 * count)));
      }
    }

    scanSlices(line, per, y) {
      const { start, end, name } = this.data;
      const { scan } = this;
      const [from, to] = this.view;
      let at = above(end, from, line.first, line.last);
      if (at > line.first && end[at - 1] === from) at -= 1; // a mark at the edge
      while (at < line.last && start[at] < to) {
        const low = (start[at] - from) / per;
        const high = (end[at] - from) / per;
        const pixel = Math.max(0, Math.floor(low));
        if (high - low >= 1) {
          const stop = Math.min(scan.length, Math.max(Math.round(high), pixel + 1));
          const shade = this.shade(name[at]);
          const begin = Math.max(0, Math.round(low));
          scan.fill(shade, begin, stop);
          if (stop - begin > 3 && stop < scan.length) scan[stop - 1] = mixed(shade, this.paper, 0.35);
          const wide = (stop - begin) / this.dense;
          if (wide > 26 && this.labels.length < MOST_LABELS)
            this.labels.push([name[at], begin / this.dense, wide, y + LINE / 2 + 0.5]);
          at += 1;
          continue;
        }
        const first = at;
        const edge = from + (pixel + 1) * per;
        let cover = 0;
        while (at < line.last && start[at] < edge && at - first < IN_PIXEL) {
          cover += end[at] > start[at] ? Math.max(0, Math.min(end[at], edge) - Math.max(start[at], from)) : per;
          if (end[at] - start[at] >= per) break; // is wide itself
          at += 1;
        }
        if (at === first) at += 1;
        if (at - first === IN_PIXEL) {
          at = above(start, edge, at, line.last);
          cover = per;
        }
        if (pixel < scan.length)
          scan[pixel] = mixed(this.shade(name[first]), this.paper, Math.min(1, Math.max(0.45, cover / per)));
      }
    }

    /** Matches of the search, of which each pixel shows one, whatever is drawn there. */
    scanFound(line, per) {
      const { start, end, name } = this.data;
      const { found } = line;
      const { scan } = this;
      const [from, to] = this.view;
      let low = 0;
      let high = found.length;
      while (low < high) {
        const middle = (low + high) >>> 1;
        if (end[found[middle]] >= from) high = middle;
        else low = middle + 1;
      }
      while (low < found.length && start[found[low]] < to) {
        const slice = found[low];
        const pixel = Math.max(0, Math.floor((start[slice] - from) / per));
        const stop = Math.max(pixel + 1, Math.min(scan.length, Math.round((end[slice] - from) / per)));
        scan.fill(this.colours[name[slice]], pixel, stop);
        const edge = from + stop * per;
        low += 1;
        if (low < found.length && start[found[low]] < edge) {
          let after = found.length;
          while (low < after) {
            const middle = (low + after) >>> 1;
            if (start[found[middle]] >= edge) after = middle;
            else low = middle + 1;
          }
        }
      }
    }

    drawCounter({ counter, height }, y) {
      const { scan, pixels } = this;
      const wide = scan.length;
      const per = this.span / wide;
      const area = mixed(this.level, this.paper, 0.35);
      const [first, last] = this.rows(y + 1, y + height - 1);
      const high = Math.round((height - 2) * this.dense);
      const bottom = Math.round((y + height - 1) * this.dense);
      let at = above(counter.time, this.view[0], 0, counter.time.length) - 1;
      for (let pixel = 0; pixel < wide; pixel++) {
        const edge = this.view[0] + (pixel + 1) * per;
        let most = at >= 0 ? counter.value[at] : 0;
        while (at + 1 < counter.time.length && counter.time[at + 1] < edge) {
          at += 1;
          most = Math.max(most, counter.value[at]);
        }
        if (at < 0) continue;
        const top = bottom - Math.max(1, Math.round((most / counter.most) * high));
        for (let row = Math.max(first, top); row < last; row++)
          pixels[row * wide + pixel] = row < top + this.dense ? this.level : area;
      }
    }

    drawLabels() {
      const { pen } = this;
      for (const [code, x, wide, y] of this.labels) {
        if (y < AXIS + 4) continue;
        pen.fillStyle = this.wanted && !this.wanted[code] ? this.ink.quiet : this.bright[code] ? "#14171c" : "#ffffff";
        let text = this.fitting(code, Math.floor((wide - 5) / 6.2));
        // many have one name: it is no use in part
        if (text.endsWith("…") && this.data.kinds[code] === "block") text = BLOCKS.exec(this.data.names[code])?.[1] ?? "";
        pen.fillText(text, x + 3, y, wide - 5);
      }
    }

    /** A name in so many characters: its end is cut, after its namespaces. */
    fitting(code, most) {
      let text = this.data.names[code];
      if (text.length > most) text = text.replace(/^(?:[A-Za-z_]\w*::)+/, "");
      if (text.length <= most) return text;
      return most < 4 ? "" : `${text.slice(0, most - 1)}…`;
    }

    drawMarked(top) {
      const { pen } = this;
      if (this.selection) {
        const [from, to] = this.selection.map((time) => this.x(time));
        pen.fillStyle = this.ink.accent;
        pen.globalAlpha = 0.14;
        pen.fillRect(from, AXIS, to - from, this.high);
        pen.globalAlpha = 1;
        pen.fillRect(from, 0, 1, this.high);
        pen.fillRect(to, 0, 1, this.high);
      }
      if (!this.picked) return;
      const { line, slice } = this.picked;
      const item = this.items.find((each) => each.line === line);
      const y = item.y - top;
      if (y < AXIS - LINE) return;
      const x = this.x(this.data.start[slice]);
      pen.strokeStyle = this.ink.text;
      pen.lineWidth = 2;
      pen.strokeRect(x, y + 1, Math.max(3, this.x(this.data.end[slice]) - x), LINE - 2);
    }

    drawAxis() {
      const { pen } = this;
      pen.fillStyle = this.ink.paper;
      pen.fillRect(0, 0, this.wide, AXIS - 1);
      if (this.selection) {
        const [from, to] = this.selection.map((time) => this.x(time));
        pen.fillStyle = this.ink.accent;
        pen.globalAlpha = 0.3;
        pen.fillRect(from, 0, to - from, AXIS - 1);
        pen.globalAlpha = 1;
      }
      pen.fillStyle = this.ink.line;
      pen.fillRect(0, AXIS - 1, this.wide, 1);
      const rough = (this.span * 110) / this.wide;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = Math.max(1, power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999));
      const [size, unit] = STEPS.find(([each]) => step >= each) ?? STEPS.at(-1);
      pen.textBaseline = "middle";
      for (let tick = Math.ceil(this.view[0] / step) * step; tick < this.view[1]; tick += step) {
        const x = Math.round(this.x(tick));
        pen.fillStyle = this.ink.line;
        pen.fillRect(x, AXIS - 6, 1, 5);
        pen.fillStyle = this.ink.quiet;
        const text = `${grouped(String(Math.round(tick / size)))} ${unit}`;
        if (x + 4 + 6 * text.length < this.wide) pen.fillText(text, x + 3, AXIS / 2 - 2);
      }
    }

    // ---- input ----

    wheel(event) {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!sideways && !event.ctrlKey && document.activeElement !== this.canvas) {
        this.help("Hold Ctrl, or click the timeline first, to zoom with the wheel.");
        return;
      }
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 16 : 1;
      if (sideways || event.shiftKey) this.pan((sideways ? event.deltaX : event.deltaY) * unit);
      else this.zoom(Math.exp(Math.min(Math.max(event.deltaY * unit, -240), 240) * (event.ctrlKey ? 0.006 : 0.0022)), this.here(event)[0]);
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const step = this.wide / 6;
      const act = {
        w: () => this.zoom(0.7, this.pointed), ArrowUp: () => this.zoom(0.7),
        s: () => this.zoom(1 / 0.7, this.pointed), ArrowDown: () => this.zoom(1 / 0.7),
        a: () => this.pan(-step), ArrowLeft: () => this.pan(-step),
        d: () => this.pan(step), ArrowRight: () => this.pan(step),
        Home: () => this.look(...this.full),
        f: () => this.picked && this.show(this.picked),
        n: () => this.step(1), N: () => this.step(-1), "/": () => this.search.focus(),
        Escape: () => { this.pick(null); this.select(null); },
      }[event.key.length === 1 && event.key !== "N" ? event.key.toLowerCase() : event.key];
      if (!act) return;
      event.preventDefault();
      act();
    }

    here(event) {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    down(event) {
      if (event.button > 0) return;
      const [x, y] = this.here(event);
      this.canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, x);
      this.tip.hidden = true;
      if (this.pointers.size === 1) {
        const selects = event.shiftKey || y < AXIS;
        this.drag = { x, y, last: x, moved: false, from: selects ? this.time(x) : null };
      } else this.drag = null;
    }

    move(event) {
      const [x, y] = this.here(event);
      this.pointed = x;
      if (!this.pointers.has(event.pointerId)) {
        if (event.pointerType === "mouse") this.hover(x, y);
        return;
      }
      if (this.pointers.size === 2) {
        const other = [...this.pointers.entries()].find(([id]) => id !== event.pointerId)[1];
        const before = Math.abs(this.pointers.get(event.pointerId) - other);
        const now = Math.abs(x - other);
        if (before > 8 && now > 8) this.zoom(before / now, (x + other) / 2);
      } else if (this.drag) {
        this.drag.moved ||= Math.abs(x - this.drag.x) > 3;
        if (this.drag.moved && this.drag.from !== null) this.select([this.drag.from, this.time(x)], true);
        else if (this.drag.moved) this.pan(this.drag.last - x);
        this.drag.last = x;
      }
      this.pointers.set(event.pointerId, x);
    }

    up(event) {
      this.pointers.delete(event.pointerId);
      const { drag } = this;
      if (this.pointers.size || !drag) return;
      this.drag = null;
      if (event.type === "pointercancel") return;
      if (drag.moved) this.settle();
      else this.pick(this.under(...this.here(event)));
    }

    /** The line and slice at a point of the canvas. */
    under(x, y) {
      const from = y + this.scroll.scrollTop;
      const item = this.items.find((each) => each.line && from >= each.y && from < each.y + each.height);
      if (!item || y < AXIS) return null;
      const slice = this.data.at(item.line, this.time(x), (3 * this.span) / this.wide);
      return slice < 0 ? null : { line: item.line, slice };
    }

    /** A time since the program's start, to the microsecond. */
    clock(time) {
      return `${grouped((time / 1e6).toFixed(3))} ms`;
    }

    says({ line, slice }) {
      const { start, end, name, names, kinds } = this.data;
      const took = end[slice] - start[slice];
      const kind = KINDS[kinds[name[slice]]] ?? "";
      const where = line.group === "host" ? line.label : `${line.group}, ${line.label}`;
      return [
        names[name[slice]],
        `${kind}${took ? `, ${formatted(took, "ns", "int")}` : ""}, at ${this.clock(start[slice])}, ${where}`,
      ];
    }

    hover(x, y) {
      const found = this.under(x, y);
      let texts = found && this.says(found);
      if (!found) {
        const from = y + this.scroll.scrollTop;
        const item = this.items.find((each) => !each.head && each.counter && from >= each.y && from < each.y + each.height);
        if (item) {
          const { counter } = item;
          const at = above(counter.time, this.time(x), 0, counter.time.length) - 1;
          texts = [counter.label, at < 0 ? "nothing yet" : `${this.amount(counter, counter.value[at])} at ${this.clock(this.time(x))}`];
        }
      }
      this.tip.hidden = !texts;
      if (!texts) return;
      this.tip.replaceChildren(make("b", {}, shortened(texts[0], 160)), make("span", {}, texts[1]));
      const left = Math.min(x + 14, this.wide - this.tip.offsetWidth - 4);
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${this.scroll.offsetTop + y + 18}px`;
    }

    // ---- search and selection ----

    pick(found) {
      this.picked = found;
      this.help(found ? this.says(found).join(": ") : "");
      this.draw();
    }

    /** Looks at a slice, scrolled to its line, with what is around it. */
    show({ line, slice }) {
      const { start, end } = this.data;
      const around = Math.max(8 * (end[slice] - start[slice]), Math.min(this.span, 200 * LEAST_SPAN));
      const middle = (start[slice] + end[slice]) / 2;
      const item = this.items.find((each) => each.line === line);
      const top = this.scroll.scrollTop;
      if (item.y < top + AXIS || item.y + LINE > top + this.high) this.scroll.scrollTop = item.y - this.high / 2;
      this.look(middle - around / 2, middle + around / 2);
    }

    /** Marks slices whose name has each of the words, or, if `exact`, is the text. */
    find(text, exact = false) {
      const words = text.toLowerCase().split(/\s+/).filter(Boolean);
      const { data } = this;
      const found = (name) => words.every((word) => name.toLowerCase().includes(word));
      this.wanted = words.length
        ? Uint8Array.from(data.names, (name) => Number(exact ? name === text : found(name)))
        : null;
      const [count, took] = this.markFound();
      this.sought_text = [text, exact];
      this.matches.textContent = this.wanted ? `${grouped(String(count))} found, ${formatted(took, "ns", "int")}` : "";
      for (const step of this.steps) step.disabled = !count;
      if (remote && this.wanted) this.count(text, exact);
      this.draw();
    }

    /** Counts matches where the slices are. */
    async count(text, exact) {
      const { count, took } = await remote.ask({ what: "find", text, exact: exact ? "1" : "0" });
      if (this.sought_text[0] !== text) return;
      this.matches.textContent = `${grouped(String(count))} found, ${formatted(took, "ns", "int")}`;
      for (const step of this.steps) step.disabled = !count;
    }

    /** Collects the slices that are here and match; their number and summed time. */
    markFound() {
      const { data } = this;
      let count = 0;
      let took = 0;
      for (const line of data.lines) {
        line.found = null;
        if (!this.wanted) continue;
        const found = [];
        for (let at = line.first; at < line.last; at++)
          if (this.wanted[data.name[at]]) {
            found.push(at);
            took += data.end[at] - data.start[at];
          }
        line.found = Uint32Array.from(found);
        count += found.length;
      }
      return [count, took];
    }

    /** Picks the next match in time, or the one before. */
    step(direction) {
      if (!this.wanted) return;
      if (remote) {
        this.stepRemote(direction);
        return;
      }
      const { start } = this.data;
      const now = this.picked ? [start[this.picked.slice], this.picked.slice] : [this.view[0] - 1, -1];
      const later = (a, b) => a[0] > b[0] || (a[0] === b[0] && a[1] > b[1]);
      let best = null;
      for (const line of this.data.lines)
        for (const slice of line.found ?? []) {
          const at = [start[slice], slice];
          if (direction > 0 ? !later(at, now) : !later(now, at)) continue;
          if (!best || (direction > 0 ? later(best.at, at) : later(at, best.at))) best = { at, line, slice };
        }
      if (!best) return;
      this.pick(best);
      this.show(best);
    }

    async stepRemote(direction) {
      const [text, exact] = this.sought_text;
      const time = this.picked ? this.data.start[this.picked.slice] : this.view[0] - 1;
      const query = { what: "step", text, exact: exact ? "1" : "0", time: Math.floor(time), forward: direction > 0 ? "1" : "0" };
      const found = await remote.ask(query);
      if (!found) return;
      const around = Math.max(8 * (found.end - found.start), 200 * LEAST_SPAN);
      const middle = (found.start + found.end) / 2;
      this.sought = found;
      this.look(middle - around / 2, middle + around / 2);
      if (this.data.has(...this.view)) this.pickAt(found);
    }

    select(interval, moving = false) {
      this.selection = interval && [Math.min(...interval), Math.max(...interval)];
      this.draw();
      if (!moving) this.settle();
    }

    settle() {
      clearTimeout(this.settling);
      this.settling = setTimeout(() => {
        this.fetch();
        this.summarize();
      }, SETTLED);
    }

    /** Asks the server for what is in view, and as much on both sides, unless it is here. */
    async fetch() {
      if (!remote) return;
      const [from, to] = this.view;
      const { tile, lines } = this.data;
      const wide = tile && tile[1] - tile[0];
      const coarse = lines.some((line) => line.tile);
      if (tile && tile[0] <= from && to <= tile[1] && (!coarse || wide <= 4 * this.span)) return;
      const margin = this.span;
      const begin = Math.floor(Math.max(this.full[0], from - margin));
      const until = Math.ceil(Math.min(this.full[1], to + margin));
      const number = (this.fetching = (this.fetching ?? 0) + 1);
      try {
        const reply = await remote.ask({ what: "tile", begin, until });
        const parts = [await remote.unpacked(reply.slices), await remote.unpacked(reply.bins)];
        if (number !== this.fetching) return; // asked again meanwhile
        this.data.take(reply, ...parts);
        this.picked = null;
        if (this.wanted) this.markFound();
        if (this.sought) this.pickAt(this.sought);
        this.draw();
      } catch (error) {
        this.readout.textContent = `The server does not answer: ${error.message}`;
      }
    }

    /** Picks the slice that the server found, once it is here. */
    pickAt({ row, start, end }) {
      this.sought = null;
      const line = this.data.lines[row];
      const slice = this.data.at(line, (start + end) / 2, 1);
      if (slice >= 0) this.pick({ line, slice });
    }

    /** By name: slices in an interval, their time in it, and that without what is nested in them. */
    sums(from, to) {
      const { start, end, name, names, lines } = this.data;
      const counts = new Uint32Array(names.length);
      const times = new Float64Array(names.length);
      const own = new Float64Array(names.length);
      const isAround = (line) => (each) =>
        each.group === line.group && each.label === line.label && each.depth === line.depth - 1;
      for (const line of lines) {
        const outer = lines.find(isAround(line));
        const nested = outer !== undefined;
        let around = nested ? above(end, from - 1e-9, outer.first, outer.last) : 0;
        for (let at = above(end, from - 1e-9, line.first, line.last); at < line.last && start[at] <= to; at++) {
          const part = Math.max(0, Math.min(end[at], to) - Math.max(start[at], from));
          counts[name[at]] += 1;
          times[name[at]] += part;
          own[name[at]] += part;
          if (!nested) continue;
          while (around < outer.last && end[around] < end[at]) around += 1;
          if (around < outer.last && start[around] <= start[at]) own[name[around]] -= part;
        }
      }
      return { counts, times, own };
    }

    /** The table of what ran in the selection, otherwise in the view. */
    async summarize() {
      const [from, to] = this.selection ?? this.view;
      this.clear.hidden = !this.selection;
      const key = `${from} ${to}`;
      if (key === this.summarized) return;
      this.summarized = key;
      if (!remote || this.data.has(from, to)) {
        this.list(from, to, this.sums(from, to));
        return;
      }
      const query = { what: "sums", begin: Math.floor(from), until: Math.ceil(to) };
      const reply = await remote.ask(query).catch(() => null);
      if (!reply || key !== this.summarized) return;
      const spread = (values) => {
        const all = new Float64Array(this.data.names.length);
        reply.codes.forEach((code, at) => (all[code] = values[at]));
        return all;
      };
      this.list(from, to, { counts: spread(reply.counts), times: spread(reply.times), own: spread(reply.own) });
    }

    /** Lists the sums of an interval by name. */
    list(from, to, { counts, times, own }) {
      const { names, kinds } = this.data;
      const codes = [...names.keys()].filter((code) => counts[code]);
      codes.sort((a, b) => own[b] - own[a] || times[b] - times[a] || a - b);
      const what = this.selection ? "the selection" : "view";
      const long = (span) => formatted(Math.round(span), "ns", "int");
      const all = this.full[1] - this.full[0];
      const of = to - from < all ? `, of ${long(all)}` : "";
      this.heading.textContent = `In ${what}: ${long(to - from)} from ${this.clock(from)}${of}`;
      const texts = [...names, ...Object.values(KINDS)];
      const kindAt = Object.fromEntries(Object.keys(KINDS).map((kind, at) => [kind, names.length + at]));
      const column = (name, label, type, unit, values) => ({
        name, label, type, unit, values, missing: null, hidden: false,
        value: (row) => (type === "text" ? texts[values[row]] : values[row]),
      });
      const columns = [
        column("name", "name", "text", null, codes),
        column("kind", "what", "text", null, codes.map((code) => kindAt[kinds[code]])),
        column("own", "own time", "int", "ns", codes.map((code) => Math.round(own[code]))),
        column("share", `of ${what}`, "float", "share", codes.map((code) => own[code] / (to - from))),
        column("time", "including calls", "int", "ns", codes.map((code) => Math.round(times[code]))),
        column("count", "count", "int", null, codes.map((code) => counts[code])),
        column("mean", "mean", "int", "ns", codes.map((code) => Math.round(times[code] / counts[code]))),
      ];
      const words = this.view_?.search.value;
      this.view_ = new TableView(this.table, { rows: codes.length, title: `What ran in ${what}` }, columns, texts);
      if (words) {
        this.view_.search.value = words;
        this.view_.find(words);
      }
    }
  }

  return (host, block, slices, bins, points, names) =>
    new Timeline(host, new Data(block, slices, bins, points, names));
};
