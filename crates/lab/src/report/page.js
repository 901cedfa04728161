"use strict";
// Compares any two cells, sorts and searches the table, and enlarges frames of the cost tree. What it draws for a pair is what the
// page had for the leading pair before any script ran.
(() => {
  const TICKS = 1000;
  const STEPS = [1, 2, 5, 10];
  const MOST_STEPS = 7, MOST_INTERVALS = 3, FAR_FROM_ZERO = 0.5, LEAST_SPAN = 0.003, BELOW = 0.25, NARROWEST = 0.0015, ROW = 20, SAME = 0.005;

  const element = (name, attributes = {}, ...content) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...content.filter((part) => part !== null));
    return made;
  };
  const number = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "-" : "") + number(Math.abs(value));
  const rounded = (ticks) => Math.sign(ticks) * Math.floor((Math.abs(ticks) + TICKS / 2) / TICKS);
  const cycles = (ticks) => signed(rounded(ticks));
  const percent = (part) => Math.round(part * 100000) / 1000;
  const share = (ticks, total) => (total === 0 ? null : (ticks / total * 100).toFixed(1) + "%");
  const trimmed = (text) => text.replace(/0+$/, "").replace(/\.$/, "");
  const short = (value) => {
    const units = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]];
    const [divisor, unit] = units.find(([from]) => Math.abs(value) >= from) || [1, ""];
    return trimmed((value / divisor).toFixed(3)) + unit;
  };
  const figure = (value) => {
    const size = Math.abs(value);
    return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 || size === 0 ? 2 : size >= 0.1 ? 3 : 4);
  };
  const roundUp = (least) => {
    const decade = 10 ** Math.floor(Math.log10(least));
    const step = STEPS.find((step) => step * decade >= least * (1 - 1e-9));
    return step === undefined ? least : step * decade;
  };
  const axis = (least, most) => {
    if (!(most > 0)) most = 1;
    const span = most - least;
    const zoomed = span >= most * LEAST_SPAN && least >= most * FAR_FROM_ZERO;
    const base = zoomed ? least - span * BELOW : 0;
    const step = roundUp((most - base) / MOST_INTERVALS);
    const first = Math.floor(base / step + 1e-9), intervals = Math.ceil(most / step - 1e-9) - first;
    const begin = first * step;
    const at = (value) => percent(Math.min(Math.max((value - begin) / (step * intervals), 0), 1));
    const marks = Array.from({ length: intervals + 1 }, (_, n) => ({ at: at(begin + n * step), text: short(begin + n * step) }));
    return { at, marks, begin: zoomed ? short(begin) : null };
  };

  // The page's own badges have the tooltips.
  const badge = (measured, estimated) => {
    if (measured + estimated === 0) return null;
    const part = measured / (measured + estimated);
    const word = part >= 0.9 ? "measured" : part <= 0.1 ? "estimated" : "mixed";
    const same = document.querySelector(".badge." + word);
    return same ? same.cloneNode(true) : element("span", { class: "badge " + word }, word);
  };

  const byName = (list) => new Map(list.map((line) => [line[0], line]));
  const changes = (before, after, names) => {
    const [first, second] = [byName(before), byName(after)];
    const none = [0, 0, 0, 0, 0];
    return [...new Set([...first.keys(), ...second.keys()])]
      .map((name) => {
        const [, count, ticks, measured = 0, estimated = 0] = first.get(name) || none;
        const [, count2, ticks2, measured2 = 0, estimated2 = 0] = second.get(name) || none;
        return { name: names[name], counts: [count, count2], ticks: [ticks, ticks2], change: ticks2 - ticks, measured: measured + measured2, estimated: estimated + estimated2 };
      })
      .filter((line) => line.change !== 0 || line.counts[0] !== line.counts[1])
      .sort((a, b) => Math.abs(b.change) - Math.abs(a.change) || Math.abs(b.counts[1] - b.counts[0]) - Math.abs(a.counts[1] - a.counts[0]) || (a.name < b.name ? -1 : 1));
  };

  const titles = (a, b) => a.row === b.row ? [a.column, b.column, a.row] : a.column === b.column ? [a.row, b.row, a.column] : [a.row + ", " + a.column, b.row + ", " + b.column, ""];

  const headline = (a, b, causes) => {
    const [from, to, within] = titles(a, b);
    const comparable = a.unit === b.unit && a.value > 0 && b.value > 0;
    const times = !comparable ? 1 : b.rate ? b.value / a.value : a.value / b.value;
    const words = b.count ? ["fewer", "more"] : ["faster", "slower"];
    const [ratio, word] = !comparable ? ["–", "not comparable"] : Math.abs(times - 1) < SAME ? ["1.00×", "no difference"] : times > 1 ? [figure(times) + "×", words[0]] : [figure(1 / times) + "×", words[1]];
    const total = b.total[1] - a.total[1];
    const cause = causes.find((line) => Math.sign(line.change) === Math.sign(total));
    const why = cause && total !== 0 ? ` Of the cycles ${total < 0 ? "saved" : "added"}, ${share(cause.change, total)} are ${cause.name}.` : "";
    const verb = b.count || b.rate ? "has" : "takes";
    const sentence = `${within ? within + ": " : ""}${to} ${verb} ${b.figure}, ${from} ${a.figure}.${why}`;
    return [
      element("p", { class: "ratio small" }, element("b", {}, ratio), " ", element("span", {}, word)),
      element("p", { class: "sentence" }, sentence),
    ];
  };

  const grid = (marks) => marks.map((mark) => element("u", { style: `left:${mark.at}%` }));
  const waterfall = (a, b, causes) => {
    const [from, to] = titles(a, b);
    const total = b.total[1] - a.total[1];
    const moved = causes.filter((line) => line.change !== 0);
    const own = moved.length === MOST_STEPS + 1 ? moved.length : Math.min(moved.length, MOST_STEPS);
    const steps = moved.slice(0, own).map((line) => ({ ...line, times: `${number(line.counts[0])} → ${number(line.counts[1])} times` }));
    const rest = moved.slice(own);
    if (rest.length) steps.push({ name: `${rest.length} other causes`, change: rest.reduce((sum, line) => sum + line.change, 0), measured: 0, estimated: 0 });
    let level = a.total[1], least = Math.min(a.total[1], b.total[1]), most = Math.max(a.total[1], b.total[1]);
    for (const step of steps) {
      level += step.change;
      [least, most] = [Math.min(least, level), Math.max(most, level)];
    }
    const { at, marks, begin } = axis(least / TICKS, most / TICKS);
    const row = (kind, name, left, width, value) => element("tr", { class: kind }, name, element("td", { class: "track" }, ...grid(marks), element("i", { style: `left:${left}%;width:${width}%` })), value);
    const end = (name, ticks) => row(begin ? "total cut" : "total", element("th", { scope: "row" }, name), 0, at(ticks / TICKS), element("td", { class: "number" }, number(rounded(ticks))));
    const body = element("tbody", {}, end(from, a.total[1]));
    level = a.total[1];
    for (const step of steps) {
      const low = Math.min(level, level + step.change) / TICKS, high = Math.max(level, level + step.change) / TICKS;
      level += step.change;
      const mark = badge(step.measured, step.estimated);
      const name = element("th", { scope: "row" }, step.name, step.times ? element("br") : null, step.times ? element("small", {}, step.times) : null, mark ? " " : null, mark);
      const part = share(step.change, total);
      const value = element("td", { class: "number" }, cycles(step.change), part ? " " : null, part ? element("small", {}, part) : null);
      body.append(row(step.change < 0 ? "less" : "more", name, at(low), percent((at(high) - at(low)) / 100), value));
    }
    body.append(end(to, b.total[1]));
    const scale = element("div", { class: "axis", "aria-hidden": "true" }, ...marks.map((mark) => element("span", { style: `left:${mark.at}%` }, mark.text)));
    const head = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "cause", begin ? element("br") : null, begin ? element("small", {}, "axis from " + begin) : null), element("th", { scope: "col", class: "track" }, scale, element("span", { class: "hidden" }, "from " + (begin || "zero"))), element("th", { scope: "col", class: "number" }, "cycles")));
    return element("table", { class: "waterfall" }, head, body);
  };

  const flame = (a, b, names) => {
    const node = () => ({ before: 0, after: 0, below: new Map() });
    const root = node();
    const add = (stacks, side) => {
      for (const [frames, count] of stacks) {
        root[side] += count;
        let at = root;
        for (const frame of frames) {
          if (!at.below.has(frame)) at.below.set(frame, node());
          at = at.below.get(frame);
          at[side] += count;
        }
      }
    };
    add(a.stacks, "before");
    add(b.stacks, "after");
    const all = root.before + root.after;
    if (all === 0) return null;
    const drawn = element("div", { class: "flame", tabindex: "0", role: "group", "aria-label": "flame graph: arrow keys move, Enter enlarges, Escape shows all", "data-before": root.before, "data-after": root.after });
    let height = 0;
    const draw = (node, left, depth) => {
      for (const [name, below] of [...node.below].map(([name, below]) => [names[name], below]).sort(([a], [b]) => (a < b ? -1 : 1))) {
        const width = (below.before + below.after) / all;
        if (width >= NARROWEST) {
          const change = (below.after - below.before) / (below.before + below.after);
          const kind = change <= -0.005 ? "less" : change >= 0.005 ? "more" : "even";
          const style = `left:${percent(left)}%;width:${percent(width)}%;top:${depth * ROW}px;--t:${Math.round(Math.abs(change) * 100)}%`;
          drawn.append(element("div", { class: kind, style, title: `${name}: ${below.before} → ${below.after} cycles` }, name));
          height = Math.max(height, (depth + 1) * ROW);
          draw(below, left, depth + 1);
        }
        left += width;
      }
    };
    draw(root, 0, 0);
    drawn.style.height = height + "px";
    return drawn;
  };

  // Frames as they were drawn, so that one can be enlarged to the whole width and all be shown again.
  const enlargeable = (drawn, picked) => {
    const frames = [...drawn.children].map((frame) => ({ frame, x: parseFloat(frame.style.left), w: parseFloat(frame.style.width), y: parseFloat(frame.style.top) / ROW }));
    let current = null;
    const pick = (at) => {
      if (current) current.frame.classList.remove("at");
      current = at || null;
      if (!current) return;
      current.frame.classList.add("at");
      picked.textContent = current.frame.title.replace(/\d{4,}/g, number);
    };
    const enlarge = (at) => {
      for (const one of frames) {
        const around = at && one.y < at.y && one.x <= at.x + 1e-6 && one.x + one.w >= at.x + at.w - 1e-6;
        const inside = !at || (one.y >= at.y && one.x >= at.x - 1e-6 && one.x + one.w <= at.x + at.w + 1e-6);
        one.frame.hidden = !around && !inside;
        one.frame.style.left = (around ? 0 : at ? (one.x - at.x) / at.w * 100 : one.x) + "%";
        one.frame.style.width = (around ? 100 : at ? one.w / at.w * 100 : one.w) + "%";
      }
    };
    const of = (target) => frames.find((one) => one.frame === target);
    drawn.addEventListener("mouseover", (event) => pick(of(event.target)));
    drawn.addEventListener("click", (event) => { const at = of(event.target); pick(at); enlarge(at); });
    drawn.addEventListener("keydown", (event) => {
      const seen = frames.filter((one) => !one.frame.hidden);
      const from = current || seen[0];
      const beside = seen.filter((one) => one.y === from.y).sort((a, b) => a.x - b.x);
      const within = (outer, inner) => inner.x >= outer.x - 1e-6 && inner.x + inner.w <= outer.x + outer.w + 1e-6;
      const moves = {
        ArrowRight: () => beside[beside.indexOf(from) + 1],
        ArrowLeft: () => beside[beside.indexOf(from) - 1],
        ArrowDown: () => seen.filter((one) => one.y === from.y + 1 && within(from, one)).sort((a, b) => b.w - a.w)[0],
        ArrowUp: () => seen.find((one) => one.y === from.y - 1 && within(one, from)),
      };
      if (moves[event.key]) pick(current ? moves[event.key]() || from : from);
      else if (event.key === "Enter") enlarge(from);
      else if (event.key === "Escape") enlarge(null);
      else return;
      event.preventDefault();
    });
  };

  const table = (a, b, data) => {
    const lines = data.lists.flatMap((list, at) => changes(a.lists[at], b.lists[at], data.names).map((line) => ({ ...line, list })));
    const size = (line) => [Math.abs(line.change), Math.abs(line.counts[1] - line.counts[0])];
    lines.sort((x, y) => size(y)[0] - size(x)[0] || size(y)[1] - size(x)[1]);
    const most = lines.length ? Math.max(size(lines[0])[0], 1) : 1;
    return lines.map((line) => {
      const cell = (label, key, text) => element("td", { class: "number", "data-label": label, "data-key": key }, text);
      const bar = element("td", { class: "number bar", "data-label": "change", "data-key": line.change }, element("span", {}, cycles(line.change)), element("i", { style: `width:${Math.round(Math.abs(line.change) / most * 1000) / 10}%` }));
      const kind = line.change === 0 ? "even" : line.change < 0 ? "less" : "more";
      return element("tr", { class: kind }, element("th", { scope: "row" }, line.name), element("td", {}, line.list),
        cell("before", line.ticks[0], number(rounded(line.ticks[0]))), cell("after", line.ticks[1], number(rounded(line.ticks[1]))), bar,
        cell("count before", line.counts[0], number(line.counts[0])), cell("after", line.counts[1], number(line.counts[1])));
    });
  };

  const sortable = (all) => {
    for (const [at, head] of [...all.tHead.rows[0].cells].entries()) {
      const button = element("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") !== "descending";
        for (const other of all.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const key = (row) => {
          const cell = row.cells[at];
          const value = Number(cell.dataset.key);
          return cell.dataset.key === undefined ? cell.textContent : at === 4 ? Math.abs(value) : value;
        };
        const compare = (x, y) => (key(x) < key(y) ? -1 : key(x) > key(y) ? 1 : 0) * (descending ? -1 : 1);
        all.tBodies[0].append(...[...all.tBodies[0].rows].sort(compare));
      });
    }
  };

  const prepare = (place) => {
    const script = place.querySelector("script");
    const data = script ? JSON.parse(script.textContent) : null;
    const [from, to] = place.querySelectorAll("select");
    const [graph, picked, chosen] = [".graph", ".picked", ".chosen"].map((name) => place.querySelector(name));
    const all = place.querySelector(".all");
    const search = place.querySelector(".search");
    const several = data && new Set(data.cells.map((cell) => cell.row)).size > 1;
    for (const select of data ? [from, to] : []) {
      const groups = new Map();
      data.cells.forEach((cell, at) => {
        if (!groups.has(cell.row)) groups.set(cell.row, element("optgroup", { label: cell.row }));
        groups.get(cell.row).append(element("option", { value: at }, several ? `${cell.column}, ${cell.row}` : cell.column));
      });
      select.append(...groups.values());
    }
    const find = () => {
      const words = search.querySelector("input").value.toLowerCase().split(/\s+/);
      let seen = 0;
      for (const row of all.tBodies[0].rows) {
        const text = (row.cells[0].textContent + " " + row.cells[1].textContent).toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        seen += row.hidden ? 0 : 1;
      }
      search.querySelector("output").textContent = `${seen} of ${all.tBodies[0].rows.length}`;
    };
    const watch = () => { const drawn = place.querySelector(".flame"); if (drawn) enlargeable(drawn, picked); };
    const show = () => {
      const [a, b] = [data.cells[from.value], data.cells[to.value]];
      const causes = changes(a.causes, b.causes, data.names);
      chosen.replaceChildren(...headline(a, b, causes), waterfall(a, b, causes));
      if (graph) graph.replaceChildren(...[flame(a, b, data.names)].filter((drawn) => drawn !== null));
      all.tBodies[0].replaceChildren(...table(a, b, data));
      for (const head of all.tHead.rows[0].cells) head.removeAttribute("aria-sort");
      all.tHead.rows[0].cells[4].setAttribute("aria-sort", "descending");
      if (picked) picked.textContent = "";
      watch();
      find();
    };
    const choose = (a, b) => { [from.value, to.value] = [a, b]; show(); };
    search.addEventListener("input", find);
    search.hidden = false;
    sortable(all);
    if (data) {
      from.addEventListener("change", show);
      to.addEventListener("change", show);
      place.querySelector(".choose").hidden = false;
    }
    if (data && place.dataset.from !== undefined) choose(place.dataset.from, place.dataset.to);
    else { watch(); find(); }
    return choose;
  };

  const choices = new Map([...document.querySelectorAll(".compare")].map((place) => [place.dataset.for, prepare(place)]));
  for (const link of document.querySelectorAll(".full a")) {
    const choose = choices.get(link.dataset.section);
    if (!choose) continue;
    link.parentElement.hidden = false;
    link.addEventListener("click", () => choose(link.dataset.from, link.dataset.to));
  }
})();
