// The two charts of the overview, drawn from samples that the server keeps in memory.
(() => {
  const box = document.getElementById("charts");
  if (!box) return;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const charts = {};

  const draw = (id, data) => {
    const place = document.getElementById(id);
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 } };
    charts[id]?.destroy();
    charts[id] = new uPlot({
      width: place.clientWidth,
      height: 160,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_chart, _low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
      series: [{}, { stroke: colour("--accent"), width: 2, points: { show: false } }],
      axes: [axis, { ...axis, size: 70 }],
    }, data, place);
    place.dataset.points = String(data[0].length);
  };

  const refresh = async () => {
    if (document.hidden) return;
    const response = await fetch(box.dataset.samples, { headers: { Accept: "application/json" } });
    if (!response.ok) return;
    const samples = await response.json();
    draw("pending", [samples.times, samples.pending]);
    draw("rate", [samples.times, samples.rate]);
  };

  const poll = () => refresh().catch(() => {}).finally(() => setTimeout(poll, 2000));
  poll();
})();
