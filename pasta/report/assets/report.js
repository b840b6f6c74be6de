// Tables, plots, heat maps and flame graphs of a PASTA report. Blocks: see pasta/report/pack.py.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const LONGEST = 72; // characters of a cell
  const NAMESPACES = /(?<![\w:])(?:(?:[A-Za-z_]\w*|\(anonymous namespace\))::)+/;
  const PAGE = 15;
  const SERIES = 8; // colours of series in report.css
  const MOST_BARS = 16; // of numbers, below each other; more stand side by side
  const MOST_NAMES = 40;
  const FLAME_ROW = 18;
  const NARROW = matchMedia("(max-width: 760px)"); // as in report.css

  /** An element with properties and children; texts never become HTML. */
  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const series = (number) => `var(--s${number % SERIES})`;
  /** A text of at most `limit` characters, as pasta.report.layout.shortened makes it. */
  const shortened = (text, limit = LONGEST) => {
    if (text.length <= limit) return text;
    const name = text.replace(NAMESPACES, "…");
    if (name.length <= limit) return name;
    let last = Math.floor((2 * limit) / 5);
    const file = name.includes("/") ? name.length - name.lastIndexOf("/") : 0;
    if (last < file && file < limit - 1) last = file;
    return `${name.slice(0, limit - last - 1)}…${name.slice(-last)}`;
  };

  // ---- numbers as pasta.table.formatted writes them ----

  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const TIMES = ["ns", "us", "ms", "s"];
  const BINARY = Array.from({ length: 60 }, (_, power) => 2 ** power);

  /** Decimal digits, halves to even as Python has it. */
  function fixed(value, digits) {
    const exact = Math.abs(value) < 1e16 ? value.toFixed(20) : "";
    const point = exact.indexOf(".") + 1 + digits;
    if (exact && /^50*$/.test(exact.slice(point))) {
      const cut = digits ? exact.slice(0, point) : exact.slice(0, point - 1);
      if (Number(cut.at(-1)) % 2 === 0) return cut;
    }
    return value.toFixed(digits);
  }

  function grouped(text) {
    const [whole, fraction] = text.split(".");
    const commas = whole.replace(/\B(?=(\d{3})+$)/g, ",");
    return fraction === undefined ? commas : `${commas}.${fraction}`;
  }

  function scaled(value, units, step) {
    let size = Math.abs(Number(value));
    let at = 0;
    while (at + 1 < units.length && Number(fixed(size, 2)) >= step) {
      size /= step;
      at += 1;
    }
    const sign = value < 0 ? "-" : "";
    return `${sign}${grouped(fixed(size, at ? 2 : 0))} ${units[at]}`;
  }

  /** Three digits that count: Python's format ".3g". */
  function general(value) {
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value < 0 ? "-inf" : "inf";
    if (value === 0) return "0";
    let power = Math.floor(Math.log10(Math.abs(value)));
    let digits = fixed(value / 10 ** power, 2);
    if (Math.abs(Number(digits)) >= 10) digits = fixed(value / 10 ** ++power, 2);
    if (Math.abs(Number(digits)) < 1) digits = fixed(value / 10 ** --power, 2);
    if (power >= -4 && power < 3) {
      const text = fixed(value, 2 - power);
      return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
    }
    const strength = String(Math.abs(power)).padStart(2, "0");
    return `${digits.replace(/\.?0+$/, "")}e${power < 0 ? "-" : "+"}${strength}`;
  }

  function formatted(value, unit, type) {
    if (value === null) return "-";
    if (type === "text") return value;
    if (type === "bool") return value ? "True" : "False";
    if (unit === "address") return `0x${value.toString(16)}`;
    if (unit === "share") return `${fixed(100 * value, 1)} %`;
    if (unit === "bytes") return scaled(value, BYTES, 1024);
    if (unit === "ns") return scaled(value, TIMES, 1000);
    return type === "int" ? grouped(value.toString()) : general(value);
  }

  // ---- columns as pasta.report.numbers writes them ----

  /** Power of `step` that is the unit of numbers that are not negative. */
  function unitOf(numbers, units, step) {
    const largest = Math.max(0, ...numbers);
    const smallest = Math.min(...numbers.filter((number) => number));
    let at = 0;
    while (at + 1 < units && Number(fixed(largest / step ** at, 2)) >= step) at += 1;
    while (at && largest <= 99999.5 * step ** (at - 1)) {
      if (smallest === Infinity || smallest >= (at > 1 ? 0.01 : 1) * step ** at) break;
      at -= 1;
    }
    return at;
  }

  /** Decimals with which the smallest number has three digits, the largest not too many. */
  function significant(numbers) {
    const largest = Math.max(0, ...numbers);
    const smallest = Math.min(...numbers.filter((number) => number));
    if (smallest === Infinity || numbers.every(Number.isInteger)) return 0;
    const power = (number) => Math.floor(Math.log10(number));
    const most = largest < 1 ? 3 - power(largest) : largest < 1e4 ? 3 : largest < 1e5 ? 1 : 0;
    return Math.min(Math.max(2 - power(smallest), 0), most);
  }

  function withDecimals(value, size, decimals, unit) {
    const text = fixed(Number(value) / size, decimals);
    if (Number(value) === 0 || /[1-9]/.test(text)) return `${grouped(text)}${unit}`;
    return `${value < 0 ? ">-" : "<"}${fixed(10 ** -decimals, decimals)}${unit}`;
  }

  /** Values that are shown together, with one unit and as many decimals. */
  function columnTexts(values, unit, type) {
    const plain = (value) => formatted(value, unit, type);
    const measured = unit === "bytes" || unit === "ns";
    if (!measured && (type !== "float" || (unit && unit !== "count"))) return values.map(plain);
    const finite = (value) => value !== null && Number.isFinite(Number(value));
    const numbers = values.filter(finite).map((value) => Math.abs(Number(value)));
    let [size, decimals, name] = [1, 0, ""];
    if (measured) {
      const [names, step] = unit === "bytes" ? [BYTES, 1024] : [TIMES, 1000];
      const at = unitOf(numbers, names.length, step);
      size = step ** at;
      name = ` ${names[at]}`;
      const sizes = numbers.map((number) => number / size);
      if (at && !sizes.every(Number.isInteger))
        decimals = 2 + Number(sizes.some((each) => each >= 0.0005 && each < 0.1));
    } else {
      const largest = Math.max(0, ...numbers);
      if (largest && (largest < 1e-6 || largest >= 1e15)) return values.map(plain);
      decimals = significant(numbers);
    }
    return values.map((value) =>
      finite(value) ? withDecimals(value, size, decimals, name) : plain(value),
    );
  }

  /** The number itself, for a tooltip; nothing where the cell says it. */
  function raw(value, unit, type) {
    if (value === null || type === "text" || type === "bool") return "";
    if (unit === "bytes") return `${value} bytes`;
    if (unit === "ns") return `${value} ns`;
    if (unit === "address") return `${value}`;
    return unit === "share" || type === "float" ? `${Number(value.toPrecision(9))}` : "";
  }

  /** A tick of an axis: without zeros at its end. */
  const tick = (value, unit) =>
    unit === null && Number.isInteger(value)
      ? grouped(String(value))
      : formatted(value, unit, "float").replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");

  // ---- blocks ----

  const read = (id) => JSON.parse($(id).textContent);

  async function inflated(base64) {
    const text = atob(base64);
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  let dictionary = null;
  function strings() {
    dictionary ??= inflated(read("strings")).then((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
    return dictionary;
  }

  /** Numbers of `width` planes from `at` on; BigInt where they may be too large to be exact. */
  function planes(bytes, at, rows, width) {
    const big = width > 6;
    const values = big ? new Array(rows).fill(0n) : new Float64Array(rows);
    for (let plane = 0; plane < width; plane++) {
      const factor = big ? 256n ** BigInt(plane) : 256 ** plane;
      for (let row = 0; row < rows; row++) {
        const byte = bytes[at + plane * rows + row];
        values[row] += big ? BigInt(byte) * factor : byte * factor;
      }
    }
    return values;
  }

  function floats(bytes, at, rows, width) {
    const joined = new Uint8Array(8 * rows);
    for (let plane = 0; plane < width; plane++)
      for (let row = 0; row < rows; row++) joined[8 * row + plane] = bytes[at + plane * rows + row];
    return new Float64Array(joined.buffer);
  }

  function numbers(bytes, at, rows, about) {
    if (about.bits) return floats(bytes, at, rows, about.width);
    const found = planes(bytes, at, rows, about.width);
    if (about.delta) {
      let value = Number(about.low);
      for (let row = 0; row < rows; row++) {
        const step = Number(found[row]);
        value += step % 2 ? -(step + 1) / 2 : step / 2;
        found[row] = value;
      }
      return found instanceof Float64Array ? found : Float64Array.from(found);
    }
    const low = BigInt(about.low ?? 0);
    const safe = low > -(2n ** 53n) && low < 2n ** 52n && about.width <= 6;
    if (safe) {
      const add = Number(low);
      for (let row = 0; row < rows; row++) found[row] += add;
      return found;
    }
    return Array.from(found, (value) => {
      const sum = BigInt(value) + low;
      return BigInt.asIntN(54, sum) === sum ? Number(sum) : sum;
    });
  }

  /** The columns of a block, each with `value(row)`: a number, BigInt, text, boolean or null. */
  async function unpacked(block) {
    const bytes = await inflated(block.data);
    const texts = await strings();
    const columns = [];
    let at = 0;
    for (const about of block.columns) {
      const column = { ...about, missing: null };
      if (about.same !== undefined) {
        column.values = columns[about.same].values;
        column.missing = columns[about.same].missing;
      } else {
        if (about.missing) {
          const length = (block.rows + 7) >> 3;
          column.missing = bytes.subarray(at, at + length);
          at += length;
        }
        column.values = numbers(bytes, at, block.rows, about);
        at += block.rows * about.width;
      }
      const { values, missing, type } = column;
      column.value = (row) => {
        if (missing && (missing[row >> 3] >> (row & 7)) & 1) return null;
        if (type === "text") return texts[values[row]];
        return type === "bool" ? values[row] !== 0 : values[row];
      };
      columns.push(column);
    }
    return columns;
  }

  let timeline = null;

  // ---- tables ----

  class TableView {
    constructor(host, block, columns, texts) {
      this.host = host;
      this.rows = block.rows;
      this.title = block.title;
      this.columns = columns;
      this.texts = texts;
      this.all = false; // hidden columns, too
      this.page = 0;
      this.size = PAGE;
      this.sorted = { column: null, descending: false };
      this.words = [];
      this.order = Uint32Array.from({ length: this.rows }, (_, row) => row);
      this.build();
      this.draw();
    }

    /** Columns in the order shown: on narrow screens numbers follow the first name. */
    get shown() {
      const shown = this.columns.filter((column) => this.all || !column.hidden);
      if (!NARROW.matches) return shown;
      const named = Math.max(0, shown.findIndex((column) => column.type === "text"));
      const first = shown.slice(0, named + 1); // after the rank, in merged tables
      const others = shown.slice(named + 1);
      const isText = (column) => column.type === "text" || column.type === "bool";
      return [...first, ...others.filter((each) => !isText(each)), ...others.filter(isText)];
    }

    build() {
      this.count = make("span", { className: "count", role: "status" });
      this.search = make("input", { type: "search", placeholder: "Search" });
      this.search.setAttribute("aria-label", `Search in ${this.title}`);
      this.search.addEventListener("input", () => {
        clearTimeout(this.waiting);
        this.waiting = setTimeout(() => this.find(this.search.value), this.rows > 5000 ? 150 : 0);
      });
      const step = (label, name, where) => {
        const button = make("button", { type: "button" }, label);
        button.setAttribute("aria-label", name);
        button.addEventListener("click", () => this.turn(where()));
        return button;
      };
      this.back = [step("«", "First page", () => 0), step("‹", "Previous page", () => this.page - 1)];
      this.on = [
        step("›", "Next page", () => this.page + 1),
        step("»", "Last page", () => this.pages - 1),
      ];
      const sizes = [PAGE, 50, 200, 1000].map((size) =>
        make("option", { value: size }, `${size} rows`),
      );
      this.sizes = make("select", {}, ...sizes);
      this.sizes.setAttribute("aria-label", "Rows per page");
      this.sizes.addEventListener("change", () => {
        this.size = Number(this.sizes.value);
        this.turn(0);
      });
      const controls = make("div", { className: "controls" }, this.search);
      const hidden = this.columns.filter((column) => column.hidden).length;
      if (hidden) {
        const more = make("button", { type: "button" }, `${hidden} more columns`);
        more.setAttribute("aria-pressed", "false");
        more.addEventListener("click", () => {
          this.all = !this.all;
          more.setAttribute("aria-pressed", String(this.all));
          this.draw();
        });
        controls.append(more);
      }
      this.paging = make("span", {}, ...this.back, ...this.on, " ", this.sizes);
      controls.append(make("span", { className: "grow" }), this.count, this.paging);
      this.table = make("table", {}, make("thead"), make("tbody"));
      this.table.setAttribute("aria-label", this.title);
      const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region" }, this.table);
      scroll.setAttribute("aria-label", this.title);
      const edges = () => {
        const left = scroll.scrollLeft;
        scroll.classList.toggle("scrolled", left > 0);
        scroll.classList.toggle("cut", left + scroll.clientWidth < scroll.scrollWidth - 1);
      };
      scroll.addEventListener("scroll", edges, { passive: true });
      const observer = new ResizeObserver(edges);
      for (const each of [scroll, this.table]) observer.observe(each);
      this.none = make("p", { className: "none" }, "No matching rows.");
      this.host.replaceChildren(controls, scroll, this.none);
    }

    get found() {
      return this.order.length;
    }

    rowsInPage(from) {
      return Array.from(this.order.subarray(from, from + this.size));
    }

    get pages() {
      return Math.max(1, Math.ceil(this.found / this.size));
    }

    turn(page) {
      this.page = Math.min(Math.max(0, page), this.pages - 1);
      this.draw();
    }

    /** Rows of which some cell has each of the words. */
    find(text) {
      this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
      this.select();
    }

    /** Shows the rows with these words, if there are any. */
    showOnly(text) {
      const before = this.search.value;
      for (const each of [text, before]) {
        this.search.value = each;
        this.find(each);
        if (each === text && this.found) return true;
      }
      return false;
    }

    sortBy(column) {
      const first = column.type !== "text"; // of numbers the largest first
      const { sorted } = this;
      if (sorted.column !== column) this.sorted = { column, descending: first };
      else if (sorted.descending === first) this.sorted = { column, descending: !first };
      else this.sorted = { column: null, descending: false };
      this.select();
    }

    select() {
      const tests = this.words.map((word) => this.test(word));
      const kept = [];
      for (let row = 0; row < this.rows; row++)
        if (tests.every((test) => test(row))) kept.push(row);
      this.order = Uint32Array.from(kept);
      if (this.sorted.column) this.order.sort(this.comparison());
      this.page = 0;
      this.draw();
    }

    /** Whether a row has a word: in texts anywhere, at the begin of a number or of what is shown. */
    test(word) {
      const tests = this.shown.map((column) => {
        const { values, missing } = column;
        const there = (row) => !missing || !((missing[row >> 3] >> (row & 7)) & 1);
        if (column.type === "text") {
          const known = new Map();
          return (row) => {
            const code = values[row];
            if (!known.has(code)) known.set(code, this.texts[code].toLowerCase().includes(word));
            return there(row) && known.get(code);
          };
        }
        if (column.type !== "bool" && !/^[-\d.,]/.test(word)) return () => false;
        const plain = word.replaceAll(",", "");
        return (row) => {
          if (!there(row)) return false;
          const value = column.value(row);
          if (column.type !== "bool" && String(value).startsWith(plain)) return true;
          return formatted(value, column.unit, column.type).toLowerCase().startsWith(word);
        };
      });
      return (row) => tests.some((test) => test(row));
    }

    comparison() {
      const { column, descending } = this.sorted;
      const sign = descending ? -1 : 1;
      const { values } = column;
      let key = (row) => values[row];
      if (column.type === "text") {
        const codes = [...new Set(values)];
        const { compare } = new Intl.Collator("en", { numeric: true });
        const plain = (a, b) => (a < b ? -1 : Number(a > b));
        const by = codes.length <= 20000 ? compare : plain; // a collator takes its time
        codes.sort((a, b) => by(this.texts[a], this.texts[b]));
        const rank = new Map(codes.map((code, at) => [code, at]));
        key = (row) => rank.get(values[row]);
      }
      const absent = (row) =>
        (column.missing && (column.missing[row >> 3] >> (row & 7)) & 1) || values[row] !== values[row];
      return (a, b) => {
        const gone = Number(Boolean(absent(a))) - Number(Boolean(absent(b)));
        if (gone || absent(a)) return gone || a - b; // absent ones come last in both orders
        const x = key(a);
        const y = key(b);
        return x < y ? -sign : x > y ? sign : a - b;
      };
    }

    draw() {
      const { shown } = this;
      const focused = this.table.tHead.contains(document.activeElement)
        ? document.activeElement.dataset.column
        : null;
      this.stuck = shown.find((column) => column.type === "text") ?? shown[0]; // at the left edge
      const headings = shown.map((column) => {
        const button = make("button", { type: "button" }, column.label);
        button.dataset.column = column.name;
        button.addEventListener("click", () => this.sortBy(column));
        const heading = make("th", { scope: "col" }, button);
        if (column.type !== "text") heading.className = "number";
        heading.classList.toggle("stuck", column === this.stuck);
        const order = this.sorted.descending ? "descending" : "ascending";
        heading.setAttribute("aria-sort", this.sorted.column === column ? order : "none");
        return heading;
      });
      this.table.tHead.replaceChildren(make("tr", {}, ...headings));
      if (focused !== null)
        this.table.tHead.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
      const from = this.page * this.size;
      const order = this.rowsInPage(from);
      const texts = shown.map((column) =>
        columnTexts(order.map((row) => column.value(row)), column.unit, column.type),
      );
      const rows = order.map((row, at) =>
        make("tr", {}, ...shown.map((column, number) => this.cell(column, row, texts[number][at]))),
      );
      this.table.tBodies[0].replaceChildren(...rows);
      this.none.hidden = rows.length > 0;
      const { found } = this;
      const of = found < this.rows ? ` (of ${grouped(String(this.rows))})` : "";
      const range = found ? `${grouped(String(from + 1))}–${grouped(String(from + rows.length))} of ` : "";
      this.count.textContent = `${range}${grouped(String(found))}${of}`;
      this.paging.hidden = this.rows <= PAGE;
      for (const button of this.back) button.disabled = this.page === 0;
      for (const button of this.on) button.disabled = this.page >= this.pages - 1;
    }

    cell(column, row, text) {
      const value = column.value(row);
      const cell = make("td", { className: column.type === "text" ? "text" : "number" });
      cell.classList.toggle("stuck", column === this.stuck);
      if (text.length > LONGEST) {
        const more = make("button", { type: "button", className: "more" }, shortened(text));
        more.title = "Show the whole text";
        more.addEventListener("click", () => whole(text));
        cell.append(more);
        return cell;
      }
      const name = column.type === "text" ? timeline?.data.named(text) : undefined;
      const place = name === undefined && column.type === "text" ? sourceOf(text) : undefined;
      if (name !== undefined) cell.append(foundButton(name, text));
      else if (place !== undefined) cell.append(sourceButton(place, text));
      else cell.textContent = text;
      cell.title = raw(value, column.unit, column.type);
      if (column.unit === "share" && value !== null) {
        cell.classList.add("share");
        cell.style.setProperty("--share", `${Math.min(100, Math.max(0, 100 * value))}%`);
      }
      return cell;
    }
  }

  function whole(text) {
    const name = timeline?.data.named(text);
    const found = name === undefined ? [] : [foundButton(name, "Show in the timeline")];
    $("whole").querySelector("pre").replaceChildren(text);
    $("whole").querySelector("span").replaceChildren(...found);
    $("whole").showModal();
  }

  /** An answer of the server that serves this page. */
  async function asked(what, query) {
    const reply = await fetch(`${what}?${new URLSearchParams(query)}`);
    if (!reply.ok) throw new Error((await reply.text()) || `the server answers ${reply.status}`);
    return reply.json();
  }

  /** A table of which the server has the rows. */
  class RemoteTable extends TableView {
    constructor(host, block, columns, texts) {
      let view = null;
      for (const [number, column] of columns.entries())
        column.value = (row) => {
          const value = view.reply.columns[number][row];
          return column.type === "int" && typeof value === "string" ? BigInt(value) : value;
        };
      super(host, block, columns, texts);
      view = this;
    }

    get found() {
      return this.reply?.found ?? 0;
    }

    rowsInPage() {
      return Array.from({ length: this.reply?.columns[0]?.length ?? 0 }, (_, row) => row);
    }

    build() {
      super.build();
      this.block = read(this.host.dataset.table);
    }

    select() {
      this.page = 0;
      this.draw();
    }

    showOnly(text) {
      this.search.value = text;
      this.find(text);
      return true; // the server is asked
    }

    async draw() {
      const number = (this.asking = (this.asking ?? 0) + 1);
      const { tool, table } = this.block;
      const query = {
        tool, name: table, first: this.page * this.size, count: this.size, words: this.words.join(" "),
        columns: this.shown.map((column) => column.name).join("\x1f"),
        sort: this.sorted.column?.name ?? "", descending: this.sorted.descending ? "1" : "0",
      };
      this.host.setAttribute("aria-busy", "true");
      try {
        const reply = await asked("table", query);
        if (number !== this.asking) return; // asked again meanwhile
        this.reply = reply;
        super.draw();
      } catch (error) {
        this.count.textContent = error.message;
      }
      this.host.removeAttribute("aria-busy");
    }
  }

  async function drawTable(host) {
    const block = read(host.dataset.table);
    const columns = await unpacked(block);
    const View = block.tool === undefined ? TableView : RemoteTable;
    host.view = new View(host, block, columns, await strings());
    NARROW.addEventListener("change", () => host.view.draw());
  }

  // ---- plots ----

  const key = (labels, colors) =>
    make(
      "div",
      { className: "key" },
      ...labels.map((label, number) => {
        const sample = make("i");
        sample.style.background = series(colors?.[number] ?? number);
        return make("span", {}, sample, shortened(label));
      }),
    );

  async function drawFigure(host) {
    const block = read(host.dataset.figure);
    const [x, ...lines] = await unpacked(block);
    const rows = Array.from({ length: block.rows }, (_, row) => row);
    const number = (column) =>
      rows.map((row) => {
        const value = column.value(row);
        return value === null || Number.isNaN(value) ? null : Number(value);
      });
    const levels = lines.map(number);
    const names = rows.map((row) => x.value(row));
    if (block.kind !== "bar") drawPlot(host, block, number(x), lines, levels);
    else if (x.type === "text" || rows.length <= MOST_BARS) drawBars(host, block, names, x.type, lines, levels);
    else drawPlot(host, block, rows, lines, levels, (at) => (at in names ? tick(Number(names[at]), block.x_unit) : ""));
  }

  /** Bars one below the other, each of the parts that its series give. */
  function drawBars(host, block, names, type, lines, levels) {
    const totals = names.map((_, row) => levels.reduce((sum, level) => sum + (level[row] ?? 0), 0));
    const most = Math.max(...totals, 0) || 1;
    const parts = [];
    for (const [row, name] of names.slice(0, MOST_NAMES).entries()) {
      const label = formatted(name, block.x_unit, type);
      const bar = make("div", { className: "bar" });
      for (const [number, level] of levels.entries()) {
        if (!level[row]) continue;
        const part = make("span", { title: `${lines[number].label}: ${formatted(level[row], block.y_unit, lines[number].type)}` });
        part.style.width = `${(100 * level[row]) / most}%`;
        part.style.background = series(block.colors?.[number] ?? number);
        bar.append(part);
      }
      const value = formatted(totals[row], block.y_unit, Number.isInteger(totals[row]) ? "int" : "float");
      parts.push(
        make("span", { className: "label", title: label }, label === "" ? "(none)" : shortened(label)),
        bar,
        make("span", { className: "value" }, value),
      );
    }
    const left = names.length - MOST_NAMES;
    host.replaceChildren(
      make("p", { className: "readout" }, [block.x_label, block.y_label].filter(Boolean).join(": ")),
      ...(lines.length > 1 ? [key(lines.map((line) => line.label), block.colors)] : []),
      make("div", { className: "bars" }, ...parts),
      ...(left > 0 ? [make("p", { className: "readout" }, `${left} more`)] : []),
    );
  }

  /** Each series with those before it below it; the last one, which covers all, first. */
  function stacked(lines, levels) {
    const sums = [];
    for (const level of levels)
      sums.push(level.map((value, row) => (value ?? 0) + (sums.at(-1)?.[row] ?? 0)));
    return [[...lines].reverse(), sums.reverse()];
  }

  const DOUBLE_CLICK = 350; // ms in which a second click makes a first one double
  const plots = [];
  /** Lines, steps or bars over numbers; `named` gives the text of an x where that is not its number. */
  function drawPlot(host, block, x, lines, levels, named) {
    const bars = block.kind === "bar";
    const filled = bars || block.kind === "area";
    const own = filled ? [...levels].reverse() : levels;
    const given = block.colors ?? lines.map((_, number) => number % SERIES);
    const colours = filled ? [...given].reverse() : given;
    if (filled) [lines, levels] = stacked(lines, levels);
    const paths = bars
      ? uPlot.paths.bars({ size: [0.8, 60] })
      : block.kind === "step" || block.kind === "area"
        ? uPlot.paths.stepped({ align: 1 })
        : undefined;
    const of = (number) => (_, value, at, row) =>
      row === null || row === undefined
        ? ""
        : own[number][row] === null
          ? "-"
          : formatted(own[number][row], block.y_unit, Number.isInteger(own[number][row]) ? "int" : "float");
    const axis = (unit, named, size) => ({
      font: "11px system-ui, sans-serif",
      stroke: () => colour("--quiet"),
      grid: { stroke: () => colour("--line"), width: 1 },
      ticks: { stroke: () => colour("--line"), width: 1, size: 4 },
      values: (_, ticks) => ticks.map((each) => (named ? named(each) : tick(each, unit))),
      ...(unit === "bytes" ? { incrs: BINARY } : {}),
      size,
    });
    const width = () => Math.max(200, host.clientWidth);
    const height = block.kind === "area" ? 230 : 170;
    const options = {
      width: width(),
      height,
      scales: {
        x: {
          time: false,
          ...(block.last === undefined ? {} : { range: (_, low, high) => [low, Math.max(high, block.last)] }),
          ...(bars ? { range: [-0.6, x.length - 0.4] } : {}),
        },
        y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, block.most ?? 0) * 1.06 || 1] },
      },
      axes: [axis(block.x_unit, named, 26), axis(block.y_unit, null, 62)],
      cursor: { sync: block.x_unit === "ns" ? { key: "time" } : undefined, points: { size: 6 } },
      series: [
        {
          label: block.x_label || "x",
          value: (_, at) => (at === null ? "" : named ? named(at) : formatted(at, block.x_unit, "int")),
        },
        ...lines.map((line, number) => ({
          label: shortened(line.label, 40),
          value: of(number),
          stroke: () => colour(`--s${colours[number]}`),
          fill: () => colour(`--s${colours[number]}`) + (filled ? "" : "22"),
          width: filled ? 0 : 1.25,
          points: { show: !bars && x.length < 3 },
          paths,
        })),
      ],
    };
    host.replaceChildren(make("p", { className: "readout" }, block.y_label));
    const plot = new uPlot(options, [x, ...levels], host);
    plots.push(plot);
    plot.over.title = "Drag to zoom, double click to show everything";
    if (block.x_unit === "ns" && block.x_label === "time since start") {
      if ($("timeline-section")) plot.over.title += ", click for this moment in the timeline";
      let waiting = 0;
      plot.over.addEventListener("click", () => {
        clearTimeout(waiting);
        const time = plot.posToVal(plot.cursor.left, "x");
        waiting = setTimeout(() => showTime(time), DOUBLE_CLICK);
      });
      plot.over.addEventListener("dblclick", () => clearTimeout(waiting));
    }
    new ResizeObserver(() => {
      if (plot.width !== width()) plot.setSize({ width: width(), height });
    }).observe(host);
  }
  const repaint = () => {
    plots.forEach((plot) => plot.redraw());
    timeline?.paint();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  for (const [event, printing] of [["beforeprint", true], ["afterprint", false]])
    addEventListener(event, () => {
      document.documentElement.toggleAttribute("data-print", printing); // paper is light
      repaint();
    });

  // ---- heat maps ----

  const STOPS = [
    [68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37],
  ]; // viridis, every fifth
  function heatColour(share) {
    const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
    const low = Math.min(Math.floor(at), STOPS.length - 2);
    return STOPS[low].map((from, part) => Math.round(from + (STOPS[low + 1][part] - from) * (at - low)));
  }

  async function drawHeat(host) {
    const block = read(host.dataset.heat);
    const [column] = await unpacked(block);
    let most = 1;
    for (let row = 0; row < block.rows; row++) most = Math.max(most, Number(column.value(row) ?? 0));
    const share = (value) => Math.log1p(value) / Math.log1p(most);
    const readout = make("p", { className: "readout", role: "status" }, "Point at a strip, or move with the arrow keys");
    const grid = make("div", { className: "heat" });
    let begin = 0;
    for (const strip of block.strips) {
      const { points, lines } = strip;
      const canvas = make("canvas", { width: points, height: lines, tabIndex: 0, role: "img" });
      canvas.setAttribute("aria-label", `${block.title}: ${strip.label}`);
      canvas.style.height = `${lines === 1 ? 16 : Math.max(48, 2 * lines)}px`;
      const first = begin;
      const at = (line, point) => column.value(first + line * points + point);
      const context = canvas.getContext("2d");
      const image = context.createImageData(points, lines);
      for (let cell = 0; cell < points * lines; cell++) {
        const value = column.value(first + cell);
        if (!value) continue; // the paper shows what was not accessed
        image.data.set([...heatColour(share(Number(value))), 255], 4 * cell);
      }
      context.putImageData(image, 0, 0);
      const show = (line, point) => {
        const offset = strip.start + point * strip.step;
        const hex = (number) => `0x${number.toString(16)}`;
        const range = strip.step ? `${hex(offset)}–${hex(offset + strip.step - 1)}` : hex(offset);
        const which = block.lines === "row"
          ? ` of row ${line * strip.lines_step}${strip.lines_step > 1 ? `–${(line + 1) * strip.lines_step - 1}` : ""}`
          : block.lines === "word" ? `, word +${4 * line}` : block.lines ? `, ${block.lines} ${line * strip.lines_step}` : "";
        const value = at(line, point);
        const says = value === null ? "not accessed" : `${formatted(value, null, "int")} accesses`;
        readout.textContent = `${shortened(strip.label)}, offset ${range}${which}: ${says}`;
      };
      let here = [0, 0];
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const place = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
        here = [place((event.clientY - box.top) / box.height, lines), place((event.clientX - box.left) / box.width, points)];
        show(...here);
      });
      canvas.addEventListener("keydown", (event) => {
        const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
        if (!steps[event.key]) return;
        event.preventDefault();
        const [line, point] = steps[event.key];
        here = [Math.min(lines - 1, Math.max(0, here[0] + line)), Math.min(points - 1, Math.max(0, here[1] + point))];
        show(...here);
      });
      begin += points * lines;
      grid.append(make("span", { className: "label", title: strip.label }, shortened(strip.label)), canvas);
    }
    const scale = make("canvas", { width: 128, height: 1, role: "img" });
    scale.setAttribute("aria-label", "Color scale, logarithmic");
    const pen = scale.getContext("2d");
    for (let point = 0; point < 128; point++) {
      pen.fillStyle = `rgb(${heatColour(point / 127)})`;
      pen.fillRect(point, 0, 1, 1);
    }
    const legend = make("div", { className: "scale" }, "1", scale, `${grouped(String(most))} accesses (logarithmic)`);
    host.replaceChildren(grid, legend, readout);
  }

  // ---- flame graph ----

  class Flame {
    constructor(host, block, columns) {
      this.host = host;
      const of = Object.fromEntries(columns.map((column) => [column.name, column]));
      this.of = of;
      this.weights = block.weights;
      this.count = block.rows;
      this.parents = Array.from({ length: this.count }, (_, node) => Number(of.parent.value(node)));
      this.children = Array.from({ length: this.count }, () => []);
      for (let node = 1; node < this.count; node++) this.children[this.parents[node]].push(node);
      this.zoomed = 0;
      this.build();
      this.weigh(this.weights[0]);
      new ResizeObserver(() => this.draw()).observe(this.box);
    }

    build() {
      this.choice = make("select", {}, ...this.weights.map((weight, at) => make("option", { value: at }, weight.label)));
      this.choice.setAttribute("aria-label", "Measure of the widths");
      this.choice.addEventListener("change", () => this.weigh(this.weights[Number(this.choice.value)]));
      this.out = make("button", { type: "button" }, "Zoom out");
      this.out.addEventListener("click", () => this.zoom(0));
      const kinds = this.weights[0].other
        ? [["grown", "more than before"], ["same", "as before"], ["shrunk", "less than before"]]
        : [["python", "Python line"], ["native", "native function"], ["module", "module"], ["operator", "operator"], ["kernel", "kernel"]];
      const legend = make(
        "div",
        { className: "key" },
        ...kinds.map(([name, label]) => {
          const sample = make("i");
          sample.style.background = `var(--${name})`;
          return make("span", {}, sample, label);
        }),
      );
      this.readout = make("p", { className: "readout", role: "status" });
      this.box = make("div", { className: "flame", role: "group" });
      this.box.setAttribute("aria-label", "Flame graph; arrow keys move, Enter zooms, Escape zooms out");
      this.box.addEventListener("keydown", (event) => this.walk(event));
      const controls = make("div", { className: "controls" }, this.choice, this.out, make("span", { className: "grow" }), legend);
      this.host.replaceChildren(controls, this.box, this.readout);
    }

    /** A column's sums over the nodes below each, too. */
    summed(name) {
      const total = Float64Array.from({ length: this.count }, (_, node) => Number(this.of[name].value(node)));
      for (let node = this.count - 1; node > 0; node--) total[this.parents[node]] += total[node];
      return total;
    }

    weigh(weight) {
      this.weight = weight;
      this.total = this.summed(weight.column);
      this.other = weight.other ? this.summed(weight.other) : null; // the same of the other run
      for (const below of this.children) below.sort((a, b) => this.total[b] - this.total[a]);
      this.zoom(this.total[this.zoomed] ? this.zoomed : 0);
    }

    zoom(node) {
      this.zoomed = node;
      this.out.disabled = node === 0;
      this.draw();
      this.show(node);
    }

    says(node) {
      const share = formatted(this.total[node] / this.total[0], "share", "float");
      const place = this.of.place.value(node);
      const name = shortened(this.of.name.value(node), 160);
      const text = `${name}: ${formatted(this.total[node], this.weight.unit, "int")}, ${share}${place ? ` (${shortened(place, 100)})` : ""}`;
      if (!this.other) return text;
      return `${text}; ${this.weight.otherName}: ${formatted(this.other[node], this.weight.unit, "int")}`;
    }

    /** Of a comparison: red where the later run has more, blue where it has less. */
    tint(node) {
      const [one, other] = this.weight.otherName === "before" ? [this.other[node], this.total[node]] : [this.total[node], this.other[node]];
      if (!one || !other) return one ? -1 : 1;
      return Math.min(1, Math.max(-1, Math.log2(other / one)));
    }

    show(node) {
      const name = timeline?.data.named(this.of.name.value(node));
      const place = this.of.place.value(node);
      const line = place ? sourceOf(place) : undefined;
      const buttons = [
        ...(name === undefined ? [] : [" ", foundButton(name, "timeline")]),
        ...(line === undefined ? [] : [" ", sourceButton(line, "source")]),
      ];
      this.readout.replaceChildren(this.says(node), ...buttons);
    }

    draw() {
      const wide = this.box.clientWidth;
      if (!wide || (this.drawn === `${wide} ${this.zoomed} ${this.weight.column}`)) return;
      this.drawn = `${wide} ${this.zoomed} ${this.weight.column}`;
      const focused = this.box.contains(document.activeElement);
      const bars = [];
      const around = [];
      for (let node = this.zoomed; node > 0; node = this.parents[node]) around.unshift(this.parents[node]);
      around.forEach((node, depth) => bars.push(this.bar(node, 0, wide, depth, true)));
      let deepest = around.length;
      const waiting = [[this.zoomed, 0, wide, around.length]];
      while (waiting.length) {
        const [node, left, width, depth] = waiting.pop();
        deepest = Math.max(deepest, depth);
        bars.push(this.bar(node, left, width, depth, false));
        let at = left;
        for (const child of this.children[node]) {
          const part = (width * this.total[child]) / this.total[node];
          if (part >= 0.5) waiting.push([child, at, part, depth + 1]);
          at += part;
        }
      }
      this.box.style.height = `${(deepest + 1) * FLAME_ROW}px`;
      this.box.replaceChildren(...bars);
      const entry = this.box.querySelector(`[data-node="${this.zoomed}"]`);
      entry.tabIndex = 0;
      if (focused) entry.focus();
    }

    bar(node, left, width, depth, around) {
      const name = width > 24 ? shortened(this.of.name.value(node), 200) : "";
      const bar = make("button", { type: "button", tabIndex: -1, title: this.says(node) }, name);
      bar.className = `${this.of.kind.value(node)}${around ? " around" : ""}`;
      bar.dataset.node = node;
      bar.setAttribute("aria-label", this.says(node));
      const wide = this.box.clientWidth;
      bar.style.left = `${(100 * left) / wide}%`; // paper has another width
      bar.style.top = `${depth * FLAME_ROW}px`;
      bar.style.width = `${(100 * Math.max(1, width - 1)) / wide}%`;
      if (width < 10) bar.style.padding = "0";
      if (this.other) {
        const tint = this.tint(node);
        const strength = `${Math.round(100 * Math.abs(tint))}%`;
        bar.style.background = `color-mix(in srgb, var(${tint > 0 ? "--grown" : "--shrunk"}) ${strength}, var(--same))`;
      }
      bar.addEventListener("click", () => this.zoom(node));
      bar.addEventListener("pointerenter", () => this.show(node));
      bar.addEventListener("focus", () => this.show(node));
      return bar;
    }

    walk(event) {
      if (event.key === "Escape") this.zoom(0);
      const node = Number(document.activeElement.dataset.node);
      const beside = this.children[this.parents[node]] ?? [node];
      const next = {
        ArrowUp: () => this.parents[node],
        ArrowDown: () => this.children[node][0],
        ArrowLeft: () => beside[beside.indexOf(node) - 1],
        ArrowRight: () => beside[beside.indexOf(node) + 1],
      }[event.key]?.();
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      const bar = this.box.querySelector(`[data-node="${next}"]`);
      if (!bar) return;
      document.activeElement.tabIndex = -1;
      bar.tabIndex = 0;
      bar.focus();
    }
  }

  async function drawFlame(host) {
    const block = read(host.dataset.flame);
    new Flame(host, block, await unpacked(block));
  }

  // ---- timeline ----

  async function drawTimeline(host) {
    const block = read("timeline");
    const parts = {};
    for (const name of ["bins", "points", "names"]) {
      const part = read(`timeline-${name}`);
      parts[name] = { rows: part.rows, columns: await unpacked(part) };
    }
    const remote = block.lines.some((line) => line.remote)
      ? {
          ask: (query) => asked("timeline", query),
          unpacked,
        }
      : null;
    const make_ = timelineWith({ make, colour, formatted, grouped, shortened, TableView, remote });
    timeline = make_(host, block, await unpacked(block), parts.bins.columns, parts.points.columns, parts.names);
    timeline.summarize(); // at once, so that nothing moves later
    host.timeline = timeline; // for scripts that measure
  }

  /** Searches the timeline for a name, and scrolls to it. */
  function findInTimeline(name) {
    $("whole").close();
    timeline.search.value = name;
    timeline.find(name, true);
    $("timeline-section").scrollIntoView();
    timeline.pick(null);
    timeline.step(1);
  }

  function foundButton(name, text) {
    const button = make("button", { type: "button", className: "more", title: `Show in the timeline: ${shortened(name)}` }, text);
    button.addEventListener("click", () => findInTimeline(name));
    return button;
  }

  /** Shows a moment, in ns since the start, in the timeline. */
  function showTime(time) {
    if (!timeline || !(time >= 0)) return;
    const [from, to] = timeline.full;
    const span = (to - from) / 20;
    timeline.look(time - span / 2, time + span / 2);
    $("timeline-section").scrollIntoView();
  }

  // ---- source lines ----

  const LINE = /(?:^|[\s(/])([^\s:/()]+):(\d{1,7})(?!\d)/;
  let sources = null;
  /** The host and number of the source line that a text names, or undefined. */
  function sourceOf(text) {
    sources ??= [...document.querySelectorAll("[data-source]")].map((host) => ({ host, ...read(host.dataset.source) }));
    const found = sources.length ? LINE.exec(text) : null;
    const of = found && sources.find((each) => each.file.endsWith(`/${found[1]}`));
    return of ? { host: of.host, number: Number(found[2]), text: `${found[1]}:${found[2]}` } : undefined;
  }

  async function findInSource({ host, number }) {
    $("whole").close();
    host.closest("details").open = true;
    if (host.dataset.drawn === undefined) await draw(host);
    if (!host.showLine?.(number)) host.scrollIntoView();
  }

  function sourceButton(place, text) {
    const button = make("button", { type: "button", className: "more", title: `Show the source of ${place.text}` }, text);
    button.addEventListener("click", () => findInSource(place));
    return button;
  }

  /** Shows the rows with a text, of the section of `host` if there is one. */
  const links = {
    async rows(host, text) {
      const within = host?.closest("section") ?? document;
      for (const details of within.querySelectorAll("details[open], details")) {
        const table = details.querySelector("[data-table]");
        if (!table) continue;
        if (table.dataset.drawn === undefined) await draw(table);
        if (!table.view?.showOnly(text)) continue;
        details.open = true;
        table.scrollIntoView({ block: "center" });
        return true;
      }
      return false;
    },
  };

  /** Names in the overview and in findings lead to the timeline. */
  function linkNames() {
    for (const label of document.querySelectorAll(".whole-bar .label, .findings .where")) {
      const text = label.textContent;
      for (const part of [text, text.split(" at ")[0]]) {
        const name = timeline.data.named(part);
        if (name === undefined) continue;
        label.replaceChildren(foundButton(name, part), text.slice(part.length));
        break;
      }
    }
  }

  /** Lines of findings lead to their source. */
  function linkSources() {
    for (const place of document.querySelectorAll(".findings .where, .findings .remedy")) {
      for (const text of [...place.childNodes].filter((each) => each.nodeType === Node.TEXT_NODE)) {
        const line = sourceOf(text.data);
        if (line === undefined) continue;
        const at = text.data.indexOf(line.text);
        text.replaceWith(text.data.slice(0, at), sourceButton(line, line.text), text.data.slice(at + line.text.length));
      }
    }
  }

  /** Commands in findings have a button that copies them. */
  function copyCommands() {
    for (const command of document.querySelectorAll(".command")) {
      const button = make("button", { type: "button", title: "Copy the command" }, "Copy");
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(command.textContent);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(command); // browsers may forbid it: Ctrl-C copies it
          button.textContent = "Selected";
        }
      });
      command.after(" ", button);
    }
  }

  /** The tool of a finding shows the rows about its place. */
  function linkFindings() {
    for (const link of document.querySelectorAll('.findings a[href^="#tool-"]'))
      link.addEventListener("click", (event) => {
        const where = link.closest("li").querySelector(".where").textContent;
        const tables = $(decodeURIComponent(link.hash.slice(1))).querySelectorAll("[data-table]");
        for (const text of [where, ...where.split(" at ")])
          for (const table of tables)
            if (table.view?.showOnly(text)) {
              event.preventDefault();
              table.scrollIntoView({ block: "center" });
              return;
            }
      });
  }

  // ---- the page ----

  const pictures = picturesWith({ make, formatted, grouped, shortened, series, seriesCount: SERIES, links });
  const picture = (name) => async (host) => {
    const block = read(host.dataset[name]);
    pictures[name](host, block, await unpacked(block));
  };
  const DRAW = {
    table: drawTable, figure: drawFigure, heat: drawHeat, flame: drawFlame, timeline: drawTimeline,
    ...Object.fromEntries(Object.keys(pictures).map((name) => [name, picture(name)])),
  };
  async function draw(host) {
    const [kind] = Object.keys(host.dataset).filter((name) => name in DRAW);
    host.dataset.drawn = "";
    try {
      await DRAW[kind](host);
    } catch (error) {
      console.error(error); // the rest of the report is still drawn
      host.textContent = `This cannot be shown: ${error.message}`;
    }
  }

  function followSections() {
    const links = new Map([...document.querySelectorAll("nav a")].map((a) => [decodeURIComponent(a.hash.slice(1)), a]));
    const seen = new Set();
    const observer = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries)
          if (isIntersecting) seen.add(target.id);
          else seen.delete(target.id);
        const here = [...links.keys()].find((id) => seen.has(id));
        for (const [id, link] of links)
          if (id === here) link.setAttribute("aria-current", "true");
          else link.removeAttribute("aria-current");
      },
      { rootMargin: "-10% 0px -60% 0px" },
    );
    for (const id of links.keys()) if ($(id)) observer.observe($(id));
  }

  async function start() {
    if (typeof DecompressionStream === "undefined") {
      $("too-old").hidden = false;
      return;
    }
    const waiting = Object.keys(DRAW).map((name) => `[data-${name}]`).join(",");
    for (const details of document.querySelectorAll("details"))
      details.addEventListener("toggle", () => {
        for (const host of details.open ? details.querySelectorAll(waiting) : [])
          if (host.dataset.drawn === undefined && host.closest("details:not([open])") === null) draw(host);
      });
    for (const host of document.querySelectorAll(waiting))
      if (host.closest("details:not([open])") === null && host.dataset.drawn === undefined) await draw(host);
    if (timeline) linkNames();
    linkSources();
    copyCommands();
    linkFindings();
    followSections();
    if (location.hash) document.querySelector(`[id="${CSS.escape(decodeURIComponent(location.hash.slice(1)))}"]`)?.scrollIntoView();
    document.documentElement.dataset.ready = "";
  }
  start();
})();
