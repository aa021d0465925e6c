// Confirms actions, draws the charts of the overview, and pauses live updates.
(() => {
  "use strict";
  const FIELDS = ["at", "requests", "errors", "refused", "hit_ratio", "p50", "p95", "p99"];
  const NAMES = { requests: "requests", errors: "errors", refused: "refused", hit_ratio: "hit ratio", p50: "p50", p95: "p95", p99: "p99" };
  const COLORS = { errors: "--series-6", refused: "--series-3", p95: "--series-2", p99: "--series-4" };
  const KEPT = 1800;
  // A custom property still contains `light-dark()`: only an element's computed style resolves it.
  const color = name => {
    const probe = document.createElement("span");
    probe.className = "probe";
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const short = value => Math.abs(value) >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(3)}`;
  const UNITS = {
    rate: value => value == null ? "-" : short(value),
    percent: value => value == null ? "-" : `${+(value * 100).toFixed(1)} %`,
    seconds: value => value == null ? "-" : value === 0 ? "0" : value >= 1 ? `${+value.toPrecision(3)} s` : value >= 1e-3 ? `${+(value * 1e3).toPrecision(3)} ms` : `${+(value * 1e6).toPrecision(3)} µs`,
  };

  const clock = (at, second) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second, hour12: false });
  const clocks = (_, ticks) => ticks.map(at => clock(at, ticks.at(-1) - ticks[0] < 240 ? "2-digit" : undefined));

  function options(figure, plot) {
    const unit = UNITS[figure.dataset.unit];
    const names = figure.dataset.series.split(" ");
    const text = color("--soft");
    const axis = { stroke: text, grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    return {
      width: plot.clientWidth,
      height: plot.clientHeight - 26,
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      legend: { live: true, markers: { width: 2 } },
      scales: { x: { time: true }, y: figure.dataset.unit === "percent" ? { range: [0, 1] } : { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [{ ...axis, size: 28, values: clocks, space: 72 }, { ...axis, size: 58, space: 32, values: (_, ticks) => ticks.map(unit) }],
      series: [
        { label: "time", value: (_, at) => at == null ? "-" : new Date(at * 1000).toLocaleTimeString() },
        ...names.map(name => ({ label: NAMES[name] || name, stroke: color(COLORS[name] || "--series-1"), width: 1.5, spanGaps: false, points: { show: false }, value: (_, value) => unit(value) })),
      ],
    };
  }

  // Browsers open at most six connections to a host, so a hidden page closes its connection.
  class VisibleEventSource extends EventTarget {
    constructor(url) {
      super();
      this.url = url;
      this.names = new Set();
      this.source = null;
      this.isClosed = false;
      this.follow = () => document.hidden ? this.release() : this.open();
      document.addEventListener("visibilitychange", this.follow);
      this.follow();
    }

    get readyState() { return this.isClosed ? EventSource.CLOSED : this.source ? this.source.readyState : EventSource.CONNECTING; }

    addEventListener(name, listener, ...more) {
      super.addEventListener(name, listener, ...more);
      if (this.names.has(name)) return;
      this.names.add(name);
      if (this.source) this.forward(name);
    }

    open() {
      if (this.source || this.isClosed) return;
      this.source = new EventSource(this.url, { withCredentials: true });
      this.source.onopen = event => this.onopen?.(event);
      this.source.onerror = event => {
        if (this.source.readyState === EventSource.CLOSED) this.close(); // htmx then creates a new source
        this.onerror?.(event);
      };
      for (const name of this.names) this.forward(name);
    }

    forward(name) { this.source.addEventListener(name, event => this.dispatchEvent(new MessageEvent(name, { data: event.data }))); }

    release() {
      this.source?.close();
      this.source = null;
    }

    close() {
      this.isClosed = true;
      document.removeEventListener("visibilitychange", this.follow);
      this.source?.close();
    }
  }
  htmx.createEventSource = url => new VisibleEventSource(url);

  class Charts {
    constructor(element) {
      this.element = element;
      this.points = [];
      this.plots = [];
    }

    async start() {
      if (!await this.load()) return;
      this.make();
      new ResizeObserver(() => this.resize()).observe(this.element);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.make());
      document.addEventListener("visibilitychange", async () => {
        if (!document.hidden && await this.load()) this.draw();
      });
    }

    async load() {
      const response = await fetch(this.element.dataset.charts, { headers: { "HX-Request": "true" } });
      if (response.ok) this.points = await response.json();
      return response.ok;
    }

    make() {
      for (const [plot] of this.plots) plot.destroy();
      this.plots = [...this.element.querySelectorAll(".chart")].map(figure => {
        const place = figure.querySelector(".plot");
        const columns = ["at", ...figure.dataset.series.split(" ")].map(name => FIELDS.indexOf(name));
        return [new uPlot(options(figure, place), this.columns(columns), place), columns, place];
      });
      this.resize();
      this.markEmpty();
      this.showLatest();
    }

    markEmpty() {
      for (const [plot, , place] of this.plots) place.classList.toggle("is-empty", plot.data.slice(1).every(values => values.every(value => value == null)));
    }

    // While no pointer is over a chart, its legend shows the latest values.
    showLatest() {
      if (!this.points.length) return;
      for (const [plot] of this.plots) if (plot.cursor.idx == null) plot.setLegend({ idx: this.points.length - 1 }, false);
    }

    columns(wanted) { return wanted.map(index => this.points.map(point => point[index])); }

    resize() {
      for (const [plot, , place] of this.plots) {
        if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: place.clientHeight - 26 });
      }
    }

    add(point) {
      const last = this.points.at(-1);
      if (last && last[0] >= point[0]) return;
      this.points.push(point);
      if (this.points.length > KEPT) this.points.shift();
      this.draw();
    }

    draw() {
      for (const [plot, columns] of this.plots) plot.setData(this.columns(columns));
      this.markEmpty();
      this.showLatest();
    }
  }

  const charts = new Map();
  let isPaused = false;

  document.addEventListener("DOMContentLoaded", () => {
    for (const element of document.querySelectorAll("[data-charts]")) {
      const made = new Charts(element);
      charts.set(element, made);
      made.start();
    }
    const pause = document.getElementById("pause");
    pause?.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      pause.textContent = isPaused ? "Resume" : "Pause";
    });
  });

  document.addEventListener("htmx:sseBeforeMessage", event => {
    const found = charts.get(event.target);
    if (found || isPaused) event.preventDefault();
    if (found) found.add(JSON.parse(event.detail.data));
  });
  document.addEventListener("htmx:sseClose", event => {
    if (event.detail.type === "message") location.reload(); // the session has ended
  });
  document.addEventListener("htmx:beforeRequest", event => {
    if (isPaused && event.detail.requestConfig.triggeringEvent?.type !== "click" && event.target.hasAttribute("data-live")) event.preventDefault();
  });

  // A button that is replaced while its dialog is open would send nothing.
  const isAsked = () => document.getElementById("confirm")?.open;
  document.addEventListener("htmx:beforeSwap", event => {
    if (isAsked() && event.detail.requestConfig.elt.hasAttribute("data-live")) event.detail.shouldSwap = false;
  });

  // A new action removes the notice about the last action.
  document.addEventListener("htmx:beforeRequest", event => {
    if (event.detail.requestConfig.verb === "post") document.getElementById("notice")?.replaceChildren();
  });

  document.addEventListener("htmx:confirm", event => {
    if (!event.detail.question) return;
    event.preventDefault();
    const asked = document.getElementById("confirm");
    asked.querySelector("p").textContent = event.detail.question;
    asked.returnValue = "no";
    asked.addEventListener("close", () => {
      if (asked.returnValue === "yes") event.detail.issueRequest(true);
    }, { once: true });
    asked.showModal();
  });
  document.addEventListener("htmx:sendError", () => {
    const text = document.createElement("p");
    text.className = "notice bad";
    text.textContent = "The gateway cannot be reached. Try again.";
    document.getElementById("notice")?.replaceChildren(text);
  });
})();
