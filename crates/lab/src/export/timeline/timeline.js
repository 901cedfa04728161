"use strict";
(() => {
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const area = document.querySelector(".timeline");
  const canvas = area.querySelector("canvas");
  const told = area.querySelector(".told");
  const box = area.querySelector(".lanes");
  const inView = area.querySelector("[type=checkbox]");
  const paint = canvas.getContext("2d");
  if (!paint) return;
  area.hidden = false;

  // Lanes have rows of [start, length, ...], in the order of their starts.
  const lane = (title, kind) => ({ title, kind, rows: [], longest: 0 });
  const add = (to, row) => { to.rows.push(row); to.longest = Math.max(to.longest, row[1]) };
  const cpus = new Map(), tasks = trace.tasks.slice(0, trace.lanes).map(([name, , tid]) => lane(tid ? `${tid} ${name}` : name, "task"));
  const of = (cpu) => {
    if (!cpus.has(cpu)) cpus.set(cpu, { ran: lane(`CPU ${cpu}`, "cpu"), crossed: lane("crossings", "crossings"), cpu });
    return cpus.get(cpu);
  };
  let end = 1;
  const { runs, crossings, samples } = trace;
  for (let i = 0; i < runs.length; i += 4) {
    const [cpu, task, start, long] = runs.slice(i, i + 4);
    add(of(cpu).ran, [start, long, task, cpu]);
    if (tasks[task]) add(tasks[task], [start, long, task, cpu]);
    end = Math.max(end, start + long);
  }
  for (let i = 0; i < crossings.length; i += 6) {
    const [cpu, kind, start, long, task, stack] = crossings.slice(i, i + 6);
    add(of(cpu).crossed, [start, long, task, cpu, stack, kind]);
    end = Math.max(end, start + long);
  }
  for (let i = 0; i < samples.length; i += 5) {
    const [cpu, start, count, task, stack] = samples.slice(i, i + 5);
    add(of(cpu).crossed, [start, 0, task, cpu, stack, -1, count]);
    end = Math.max(end, start);
  }
  const lanes = [...cpus.values()].sort((a, b) => a.cpu - b.cpu).flatMap(({ ran, crossed }) => [ran, crossed]).concat(tasks);
  for (const one of lanes) one.rows.sort((a, b) => a[0] - b[0]);

  const TOP = 24, LEAST = 20;
  // In a narrow window a lane has its title above it, and otherwise to the left of it.
  const forms = { wide: { row: 22, bar: 3, high: 16, title: 11 }, narrow: { row: 38, bar: 17, high: 18, title: 9 } };
  let from = 0, to = end, wanted = lanes, shown = lanes, asked = false, names = 150, form = forms.wide;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let colours = {};
  const look = () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    colours = {
      ink: style("--ink"), soft: style("--soft"), line: style("--line"), grid: style("--grid"), idle: style("--even"),
      task: (number) => `hsl(${(number * 137.5) % 360} ${dark ? "38% 42%" : "48% 68%"})`,
      interrupt: style("--far"), exit: style("--more"), exception: style("--tint-more"), call: style("--less"), halt: style("--even"), other: style("--published"), sample: style("--measured"),
    };
  };
  const colour = (kind, row) => kind !== "crossings" ? (trace.tasks[row[2]][3] ? colours.idle : colours.task(row[2])) : row[5] < 0 ? colours.sample : colours[trace.families[row[5]]];

  const time = (ns) => {
    const [unit, size] = ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    return `${+(ns / size).toPrecision(5)} ${unit}`;
  };
  const exact = (ns) => ns >= 1e9 ? `${(ns / 1e9).toFixed(9)} s` : ns >= 1e6 ? `${(ns / 1e6).toFixed(6)} ms` : ns >= 1e3 ? `${(ns / 1e3).toFixed(3)} µs` : `${ns} ns`;
  const mark = (ns, step) => {
    const [unit, size] = step >= 1e9 ? ["s", 1e9] : step >= 1e6 ? ["ms", 1e6] : step >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    return `${+(ns / size).toFixed(3)} ${unit}`;
  };
  const width = () => canvas.clientWidth;
  const x = (ns) => names + (ns - from) / (to - from) * (width() - names);
  const ns = (px) => from + (px - names) / (width() - names) * (to - from);
  // Returns the first row that starts at a time or later.
  const first = (rows, at) => {
    let low = 0, high = rows.length;
    while (low < high) { const middle = low + high >> 1; if (rows[middle][0] < at) low = middle + 1; else high = middle }
    return low;
  };

  const reaches = ({ rows, longest }) => {
    for (let at = first(rows, from - longest); at < rows.length && rows[at][0] <= to; at++) if (rows[at][0] + rows[at][1] >= from) return true;
    return false;
  };

  const draw = () => {
    asked = false;
    shown = inView.checked ? wanted.filter((one) => one.kind !== "task" || reaches(one)) : wanted;
    const wide = width(), ratio = devicePixelRatio || 1, narrow = wide < 560;
    form = narrow ? forms.narrow : forms.wide;
    const ROW = form.row, high = TOP + shown.length * ROW, font = "12px system-ui, sans-serif";
    paint.font = font;
    names = narrow ? 8 : Math.min(Math.max(170, ...shown.map(({ title }) => paint.measureText(title).width + 20)), wide * .4);
    canvas.style.height = `${high}px`;
    const pixels = [Math.round(wide * ratio), Math.min(Math.round(high * ratio), 32000)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    paint.setTransform(ratio, 0, 0, pixels[1] / high, 0, 0);
    paint.clearRect(0, 0, wide, high);
    paint.font = font;
    paint.textBaseline = "middle";
    const rough = (to - from) / Math.max(2, (wide - names) / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough));
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      paint.fillStyle = colours.grid;
      paint.fillRect(x(at), TOP, 1, high - TOP);
      paint.fillStyle = colours.soft;
      const text = mark(at, step);
      if (x(at) + paint.measureText(text).width + 4 < wide) paint.fillText(text, x(at) + 3, TOP / 2);
    }
    const [seen, unseen] = [box.scrollTop - ROW, box.scrollTop + box.clientHeight];
    shown.forEach(({ title, kind, rows, longest }, number) => {
      const y = TOP + number * ROW;
      if (y < seen || y > unseen) return;
      let last = -1;
      for (let at = first(rows, from - longest); at < rows.length && rows[at][0] <= to; at++) {
        const row = rows[at];
        if (row[0] + row[1] < from) continue;
        const left = Math.max(x(row[0]), names), right = Math.min(x(row[0] + row[1]), wide);
        if (right < last + .5) continue;
        const size = Math.max(right - left, 1);
        paint.fillStyle = colour(kind, row);
        paint.fillRect(left, y + form.bar, size > 2 ? size - .5 : size, form.high);
        last = left + size;
        if (size > 42 && kind !== "task") {
          paint.save();
          paint.beginPath();
          paint.rect(left, y, size - 4, ROW);
          paint.clip();
          paint.fillStyle = colours.ink;
          paint.fillText(kind === "cpu" ? trace.tasks[row[2]][0] : row[5] < 0 ? "" : trace.kinds[row[5]], left + 4, y + form.bar + form.high / 2);
          paint.restore();
        }
      }
      paint.fillStyle = colours.line;
      paint.fillRect(0, y + ROW - .5, wide, .5);
      paint.save();
      paint.beginPath();
      paint.rect(0, y, narrow ? wide : names - 6, ROW);
      paint.clip();
      paint.fillStyle = kind === "crossings" ? colours.soft : colours.ink;
      paint.fillText(title, 8, y + form.title);
      paint.restore();
    });
  };
  const ask = () => { if (!asked) { asked = true; requestAnimationFrame(draw) } };
  const show = (begin, long) => {
    long = Math.min(Math.max(long, LEAST), end);
    from = Math.min(Math.max(begin, 0), end - long);
    to = from + long;
    ask();
  };
  const zoom = (by, at = (from + to) / 2) => show(at - (at - from) * by, (to - from) * by);
  const move = (by) => show(from + (to - from) * by, to - from);
  const acts = { in: () => zoom(.5), out: () => zoom(2), left: () => move(-.25), right: () => move(.25), all: () => show(0, end) };

  const escape = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
  const tell = (px, py) => {
    const one = shown[Math.floor((py - TOP) / form.row)];
    if (!one || px < names) return;
    const at = ns(px), near = (to - from) / (width() - names) * 3;
    let found, distance = near;
    for (let i = first(one.rows, at - one.longest - near); i < one.rows.length && one.rows[i][0] <= at + near; i++) {
      const [start, long] = one.rows[i], off = Math.max(start - at, at - start - long, 0);
      if (off <= distance) [found, distance] = [one.rows[i], off];
    }
    if (!found) return;
    const [start, long, task, cpu, stack, kind, count] = found, [name, , tid] = trace.tasks[task];
    const who = tid ? `${name} (${tid})` : name;
    const what = kind === undefined ? who : kind < 0 ? `${count} sample${count > 1 ? "s" : ""} in ${who}` : `${trace.kinds[kind]} in ${who}`;
    const frames = stack ? trace.stacks[stack - 1].map((number) => trace.names[number]).join(" ← ") : "";
    told.innerHTML = `<b>${escape(what)}</b>, CPU ${cpu}, at ${exact(start)}${long ? `, for ${time(long)}` : ""}${frames ? `<br><code>${escape(frames)}</code>` : ""}`;
  };

  area.querySelector(".tools").addEventListener("click", (event) => acts[event.target.dataset.do]?.());
  area.querySelector("[type=search]").addEventListener("input", (event) => {
    const text = event.target.value.toLowerCase();
    wanted = lanes.filter(({ title, kind }) => kind !== "task" || title.toLowerCase().includes(text));
    ask();
  });
  inView.addEventListener("change", ask);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
    event.preventDefault();
    if (event.ctrlKey) zoom(2 ** (event.deltaY / 200), ns(event.offsetX)); else move(event.deltaX / width());
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(.25, ns(event.offsetX)));
  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, event.offsetX); try { canvas.setPointerCapture(event.pointerId) } catch {} tell(event.offsetX, event.offsetY) });
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) return tell(event.offsetX, event.offsetY);
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other === undefined) move((before - event.offsetX) / (width() - names));
    else if (Math.abs(event.offsetX - other) > 4) zoom(Math.abs(before - other) / Math.abs(event.offsetX - other), ns((event.offsetX + other) / 2));
    fingers.set(event.pointerId, event.offsetX);
  });
  canvas.addEventListener("keydown", (event) => {
    const act = { "+": "in", "=": "in", w: "in", "-": "out", s: "out", ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", 0: "all" }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    acts[act]();
  });
  box.addEventListener("scroll", ask);
  addEventListener("resize", ask);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { look(); ask() });
  look();
  draw();
})();
