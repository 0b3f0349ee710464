// "Your turn" without Python: a figure's stored states (lab.states), chosen by controls and drawn by uPlot.

const GREY = "#4d4d4d";
const FONT = "12px system-ui, 'Noto Sans', 'Noto Sans CJK SC', sans-serif";

function element(name, words = {}, ...children) {
  const made = Object.assign(document.createElement(name), words);
  made.append(...children);
  return made;
}

// A control as {node, at()}, `at` the place of its value; a slider, or a list for words and where the lesson has one.
function control({ name, values, at, list }, moved) {
  const label = element("label", {}, element("span", { textContent: name }));
  if (list || values.length < 3) {
    const options = values.map((text, i) => element("option", { textContent: text, value: i, selected: i === at }));
    const select = element("select", { oninput: moved }, ...options);
    select.setAttribute("aria-label", name);
    label.append(select);
    return { node: label, at: () => select.selectedIndex };
  }
  const slider = element("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: at });
  slider.setAttribute("aria-label", name);
  const said = element("output");
  const show = () => {
    said.textContent = values[+slider.value];
    slider.setAttribute("aria-valuetext", values[+slider.value]);
  };
  slider.addEventListener("input", () => (show(), moved()));
  show();
  label.append(slider, said);
  return { node: label, at: () => +slider.value };
}

function logTicks([low, high], base) {
  const [from, to] = [low, high].map((limit) => Math.log(limit) / Math.log(base));
  const every = Math.max(1, Math.ceil((to - from) / 7));
  const found = [];
  for (let power = Math.ceil(from - 1e-9); power <= to + 1e-9; power += every) found.push(base ** power);
  if (found.length > 1) return found;
  const finer = [1, 2, 5].flatMap((digit) => found.concat(10 ** Math.floor(Math.log10(low))).map((at) => digit * at));
  return [...new Set(finer)].filter((at) => at >= low && at <= high).sort((a, b) => a - b);
}

const powers = "⁰¹²³⁴⁵⁶⁷⁸⁹";
function shortly(value) {
  const power = Math.round(Math.log10(Math.abs(value)));
  if (value && Math.abs(power) > 4 && Math.abs(value / 10 ** power - 1) < 1e-6)
    return `10${power < 0 ? "⁻" : ""}${[...String(Math.abs(power))].map((digit) => powers[digit]).join("")}`;
  return String(+value.toPrecision(3));
}

function width(words) {
  const context = (width.context ??= document.createElement("canvas").getContext("2d"));
  context.font = FONT;
  return Math.max(0, ...words.map((word) => context.measureText(word).width));
}

function scale({ limits, log }) {
  const [low, high] = [Math.min(...limits), Math.max(...limits)];
  return { time: false, auto: false, range: () => [low, high], distr: log ? 3 : 1, log: log === 2 ? 2 : 10, dir: limits[0] > limits[1] ? -1 : 1 };
}

function axis({ label, limits, log, ticks }, side, frame) {
  const sorted = [Math.min(...limits), Math.max(...limits)];
  const words = new Map(ticks ?? []);
  const made = { show: frame || Boolean(ticks?.length), label, stroke: GREY, font: FONT, labelFont: FONT, labelSize: label ? 18 : 0, gap: 4 };
  made.grid = { show: !ticks || ticks.length > 0, stroke: "#00000018", width: 1 };
  made.ticks = { size: 4, stroke: GREY, width: 1 };
  made.border = { show: frame, stroke: GREY, width: 1 };
  if (ticks) Object.assign(made, { splits: () => [...words.keys()], values: (_, at) => at.map((each) => words.get(each) ?? ""), filter: (_, at) => at });
  else if (log) Object.assign(made, { splits: () => logTicks(sorted, log), values: (_, at) => at.map(shortly), filter: (_, at) => at });
  else made.values = (_, at) => at.map(shortly);
  if (side === "y") made.size = (_, said) => 10 + width(said ?? []);
  else {
    made.size = 24;
    const long = ticks && width(ticks.map(([, word]) => word)) * ticks.length > 300;
    if (long) Object.assign(made, { rotate: -40, size: 16 + 0.65 * width(ticks.map(([, word]) => word)) });
  }
  return made;
}

const dashes = { "--": [6, 4], ":": [2, 3], "-.": [6, 3, 2, 3] };

function dot(context, kind, x, y, size) {
  context.beginPath();
  if (kind === "*")
    for (let i = 0; i < 10; i++) {
      const [r, angle] = [i % 2 ? size * 0.45 : size * 1.1, (i * Math.PI) / 5 - Math.PI / 2];
      context.lineTo(x + r * Math.cos(angle), y + r * Math.sin(angle));
    }
  else if (kind === "s") context.rect(x - size, y - size, 2 * size, 2 * size);
  else context.arc(x, y, kind === "." ? size * 0.6 : size, 0, 2 * Math.PI);
  context.fill();
}

const painted = {
  l(plot, context, mark, points, unit) {
    context.strokeStyle = context.fillStyle = mark.c || GREY;
    if (mark.w) {
      context.lineWidth = mark.w * unit;
      context.setLineDash((dashes[mark.dash] ?? []).map((part) => part * unit));
      context.beginPath();
      let before = null;
      for (const point of points) {
        if (point && before && mark.step) {
          const turn = mark.step === "steps-post" ? point[0] : mark.step === "steps-mid" ? (before[0] + point[0]) / 2 : before[0];
          context.lineTo(turn, before[1]);
          context.lineTo(turn, point[1]);
        }
        if (point) before ? context.lineTo(...point) : context.moveTo(...point);
        before = point;
      }
      context.stroke();
      context.setLineDash([]);
    }
    if (mark.m) for (const point of points) if (point) dot(context, mark.m, ...point, (mark.s * unit) / 2);
  },
  a(plot, context, mark, points, unit) {
    context.beginPath();
    points.forEach((point) => point && context.lineTo(...point));
    context.closePath();
    if (mark.c) (context.fillStyle = mark.c), context.fill();
    if (mark.e) (context.strokeStyle = mark.e), (context.lineWidth = unit), context.stroke();
  },
  p(plot, context, mark, [[left, bottom], [right, top]]) {
    const picture = (plot.pictures[mark.p] ??= Object.assign(new Image(), { onload: () => plot.redraw(false), src: mark.p }));
    context.imageSmoothingEnabled = false;
    if (picture.complete && picture.naturalWidth)
      context.drawImage(picture, Math.min(left, right), Math.min(top, bottom), Math.abs(right - left), Math.abs(bottom - top));
  },
  t(plot, context, mark, [point], unit) {
    if (!point) return;
    context.save();
    context.translate(...point);
    context.rotate((-(mark.turn ?? 0) * Math.PI) / 180);
    Object.assign(context, { fillStyle: mark.c || GREY, textAlign: "center", textBaseline: "middle" });
    context.font = FONT.replace("12px", `${Math.max(10, mark.s * 1.3) * devicePixelRatio}px`);
    context.fillText(mark.t, 0, 0);
    context.restore();
  },
};

function drawn(axes, pool, pictures, place, wide) {
  const ratio = Math.abs((axes.y.limits[1] - axes.y.limits[0]) / (axes.x.limits[1] - axes.x.limits[0]));
  const across = axes.square ? Math.min(wide, 420) : wide;
  const high = axes.square ? (across - 60) * Math.min(ratio, 1.5) + 50 : Math.min(360, Math.max(200, across * Math.max(axes.high, 0.4)));
  const paint = (plot) => {
    const [{ ctx, bbox }, unit] = [plot, devicePixelRatio * 1.15];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - 6, bbox.top - 6, bbox.width + 12, bbox.height + 12);
    ctx.clip();
    for (const mark of axes.marks.map((at) => pool[at])) {
      const [x, y] = mark.k === "t" ? mark.at.map((value) => [value]) : [pool[mark.x], pool[mark.y]];
      const seen = (value, log) => value !== null && (!log || value > 0);
      const points = x.map((value, i) => seen(value, axes.x.log) && seen(y[i], axes.y.log)
        ? [plot.valToPos(value, "x", true), plot.valToPos(y[i], "y", true)] : null);
      painted[mark.k](plot, ctx, mark, points, unit);
    }
    ctx.restore();
  };
  const options = {
    width: across, height: Math.round(high), legend: { show: false }, cursor: { show: false }, select: { show: false }, padding: [8, 12, 4, 4],
    scales: { x: scale(axes.x), y: scale(axes.y) }, series: [{}, { paths: () => null, points: { show: false } }],
    axes: [axis(axes.x, "x", axes.frame), axis(axes.y, "y", axes.frame)],
    hooks: { init: [(plot) => (plot.pictures = pictures)], draw: [paint] },
  };
  const ends = [Math.min(...axes.x.limits), Math.max(...axes.x.limits)];
  return new uPlot(options, [ends, [null, null]], place);
}

function legend(entries) {
  const items = entries.map(([color, style, words]) => {
    const sign = element("span", { className: style === "area" ? "area" : "line" });
    sign.style.borderTopStyle = { "--": "dashed", ":": "dotted", "-.": "dashed" }[style] ?? "solid";
    sign.style.borderTopColor = color || GREY;
    return element("li", {}, sign, words);
  });
  return element("ul", { className: "legend" }, ...items);
}

function turn(figure) {
  const { controls, pool, states } = JSON.parse(figure.querySelector("script").textContent);
  const moving = controls.filter(({ values }) => values.length > 1);
  const [place, said] = [element("div", { className: "panels" }), element("p", { className: "said" })];
  said.setAttribute("aria-live", "polite");
  let [plots, asked, pictures] = [[], 0, {}];
  const show = () => {
    asked = 0;
    let at = 0;
    const places = chosen.map((each) => each.at());
    for (const { values } of controls) at = at * values.length + (values.length > 1 ? places.shift() : 0);
    const state = states[at];
    plots.forEach((plot) => plot.destroy());
    plots = [];
    place.replaceChildren();
    said.textContent = state.error === undefined ? state.axes.map(({ title }) => title).concat(state.title).filter(Boolean).join(". ") : state.error || figure.dataset.nothing;
    said.classList.toggle("refused", state.error !== undefined);
    if (state.title) place.append(element("p", { className: "title", textContent: state.title }));
    for (const axes of state.axes ?? []) {
      const wide = Math.max(230, Math.min(place.clientWidth, 720, place.clientWidth / Math.min(state.columns, Math.floor(place.clientWidth / 250) || 1) - 12));
      const plot = element("div", { className: "plot" });
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", [axes.title, axes.y.label, axes.x.label].filter(Boolean).join("; ") || figure.querySelector("img").alt);
      const panel = element("div", { className: "panel" }, element("p", { className: "title", textContent: axes.title }), plot, legend(axes.legend));
      panel.style.width = `${wide}px`;
      place.append(panel);
      plots.push(drawn(axes, pool, pictures, plot, wide));
    }
  };
  const soon = () => (asked ||= requestAnimationFrame(show));
  const chosen = moving.map((each) => control(each, soon));
  figure.querySelector("img").hidden = true;
  figure.querySelector("figcaption").textContent = figure.dataset.alive;
  figure.prepend(element("div", { className: "controls" }, ...chosen.map(({ node }) => node)), place, said);
  let before = 0;
  new ResizeObserver(() => {
    if (place.clientWidth !== before) (before = place.clientWidth), soon();
  }).observe(place);
}

// A figure is made when it comes near: a page opens as fast as without them.
document.addEventListener("DOMContentLoaded", () => {
  if (!globalThis.uPlot) return;
  const near = new IntersectionObserver((seen) => seen.filter((each) => each.isIntersecting).forEach(({ target }) => (near.unobserve(target), turn(target))), { rootMargin: "600px" });
  document.querySelectorAll("figure.turn").forEach((figure) => near.observe(figure));
});
