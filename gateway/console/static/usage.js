// Draws the usage charts. The attribute `data-chart` of an element contains the chart as JSON.
(() => {
  "use strict";
  const COLOURS = 6;
  const drawn = new Map();
  const DAY = 86400;
  const probe = document.createElement("i");
  // A canvas cannot resolve light-dark(), so the colour is read from an element's computed style.
  const style = name => {
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };
  const utc = seconds => new Date(seconds * 1e3).toISOString();
  const times = (_, splits) => splits.map((each, index) =>
    each % DAY === 0 ? utc(each).slice(5, 10) : index > 0 && splits[index] - splits[index - 1] >= DAY ? "" : utc(each).slice(11, 16));

  const short = value => {
    const size = Math.abs(value);
    const [by, unit] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
    return `${Number((value / by).toPrecision(3))}${unit}`;
  };

  // As wide as the longest label, because amounts may be small fractions.
  const width = (_, labels) => 28 + 7 * Math.max(4, ...(labels ?? []).map(each => each.length));

  const draw = element => {
    const chart = JSON.parse(element.dataset.chart);
    drawn.get(element)?.destroy();
    element.replaceChildren();
    element.classList.toggle("is-empty", chart.series.every(each => each.values.every(value => !value)));
    const soft = style("--soft");
    const axis = { stroke: soft, grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
    const series = chart.series.map((each, index) => ({
      label: each.label,
      total: each.values.reduce((sum, value) => sum + value, 0),
      stroke: style(`--series-${index % COLOURS + 1}`),
      dash: index < COLOURS ? undefined : [6, 3],
      width: 1.5,
      points: { show: chart.times.length < 3 },
      // While no pointer is over the chart, the legend shows the sum.
      value: (plot, value, place) => value == null ? `${short(plot.series[place].total)} in total` : short(value),
    }));
    const options = {
      width: element.clientWidth,
      height: 190,
      tzDate: seconds => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
      series: [{ label: "UTC", value: (_, value) => value == null ? "-" : utc(value).slice(0, 16).replace("T", " ") }, ...series],
      axes: [{ ...axis, values: times }, { ...axis, size: width, values: (_, values) => values.map(short) }],
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.05 : 1] } },
    };
    drawn.set(element, new uPlot(options, [chart.times, ...chart.series.map(each => each.values)], element));
  };

  const drawAll = () => {
    // uPlot keeps each chart until it is destroyed, also those in fragments that htmx has replaced.
    for (const [element, plot] of drawn) if (!element.isConnected) { plot.destroy(); drawn.delete(element); }
    document.querySelectorAll("[data-chart]").forEach(draw);
  };

  document.addEventListener("htmx:afterSettle", drawAll);
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
