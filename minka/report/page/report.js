// Draws the plan that the page carries (report/page.h says what is in it) with D3.
"use strict";
(() => {
  const plan = JSON.parse(document.getElementById("plan").textContent);
  const report = d3.select("#report");
  const tip = d3.select("body").append("div").attr("id", "tip");

  const KINDS = {
    forward: "#4c83c3", backward: "#e08a3c", "weight-gradient": "#c2a12c", apply: "#5a9e6f", front: "#8a9a5b",
    collective: "#a05195", reshard: "#b8a3c9", send: "#a05195", receive: "#cf8fbf", run: "#4c83c3",
  };
  const MEMORY = [
    ["given", "state and inputs", "#7f97b8"], ["made", "activations and gradients", "#e0a95c"],
    ["received", "received from other meshes", "#cf8fbf"], ["temporary", "temporary, of the program that runs", "#9fbf8f"],
  ];
  const AXES = ["#bcd5f2", "#f6d3ae", "#c4e3c6", "#e3c8e8", "#f2e2a6", "#f3c0c0", "#bfe5e5", "#d9d0c4"];
  const STAGES = d3.schemeTableau10;

  const colorOfKind = (kind) => KINDS[kind] || "#9aa3b0";
  // Axes of equal names have one color on all meshes.
  const axisNames = [...new Set(plan.meshes.flatMap((mesh) => mesh.axes.map((axis) => axis.name)))];
  const colorOfAxis = (name) => AXES[axisNames.indexOf(name) % AXES.length];

  const time = (us) =>
    us >= 1e6 ? `${d3.format(".3~r")(us / 1e6)} s` : us >= 1e3 ? `${d3.format(".3~r")(us / 1e3)} ms` : `${d3.format(".3~r")(us)} us`;
  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    for (; n >= 1024 && unit < units.length - 1; ++unit) n /= 1024;
    return `${d3.format(".3~r")(n)} ${units[unit]}`;
  };

  // Round numbers of the unit in which the largest is said.
  function byteTicks(most) {
    const unit = 1024 ** Math.floor(Math.log(Math.max(most, 1)) / Math.log(1024));
    return d3.ticks(0, most / unit, 4).map((tick) => tick * unit);
  }

  function withTip(selection, text) {
    selection
      .on("mousemove", (d) => {
        tip.style("display", "block").text(text(d));
        const width = tip.node().offsetWidth;
        tip.style("left", `${Math.min(d3.event.clientX + 12, window.innerWidth - width - 8)}px`).style("top", `${d3.event.clientY + 14}px`);
      })
      .on("mouseout", () => tip.style("display", "none"));
  }

  function section(id, title) {
    const made = report.append("section").attr("id", id);
    made.append("h2").text(title);
    return made;
  }

  function facts(parent, rows) {
    const list = parent.append("dl");
    for (const [name, value] of rows) {
      const entry = list.append("div");
      entry.append("dt").text(name);
      entry.append("dd").text(value);
    }
  }

  function legend(parent, entries) {
    const line = parent.append("p").attr("class", "legend");
    for (const [name, color] of entries) {
      const entry = line.append("span");
      entry.append("i").style("background", color);
      entry.append("span").text(name);
    }
  }

  // All charts over time have one scale and move together.
  const charts = [];
  const end = d3.max([...plan.predicted, ...plan.measured], (row) => d3.max(row.events, (event) => event[3])) || 1;
  const width = 1240, left = 160, right = 12;
  const scale = d3.scaleLinear().domain([0, end]).range([left, width - right]);

  // Every device as a square, its mesh around it.
  function drawCluster() {
    const parent = section("cluster", "Devices and stages");
    const cell = 22, gap = 3, perRow = Math.floor((width - left - right) / (cell + gap));
    const svg = parent.append("svg");
    let y = 0;
    plan.meshes.forEach((mesh, number) => {
      const stages = plan.stages.map((stage, i) => ({ ...stage, number: i })).filter((stage) => stage.mesh === number);
      const rows = Math.ceil(mesh.devices.length / perRow);
      const axes = mesh.axes.map((axis) => `${axis.name}=${axis.size}`).join(", ");
      const group = svg.append("g").attr("class", "mesh").attr("transform", `translate(0,${y})`);
      const isPipeline = plan.meshes.length > 1 || plan.stages.length > 1;
      group.append("text").attr("x", 0).attr("y", 14).text(isPipeline ? `mesh ${number}: ${axes}` : axes);
      group.append("text").attr("class", "soft").attr("x", 0).attr("y", 29)
        .text(stages.filter((stage) => stage.layers !== "").map((stage) => `stage ${stage.number}: layers ${stage.layers}`).join("; "));
      const squares = group.selectAll("rect").data(mesh.devices).enter().append("rect").attr("class", "device")
        .attr("x", (d, i) => left + (i % perRow) * (cell + gap)).attr("y", (d, i) => Math.floor(i / perRow) * (cell + gap))
        .attr("width", cell).attr("height", cell).attr("rx", 4).attr("fill", STAGES[number % STAGES.length]);
      withTip(squares, (device) => `${device}\n${stages.map((stage) => stage.facts.map(([name, value]) => `${name}: ${value}`).join("\n")).join("\n")}`);
      const hasRoomBehind = mesh.devices.length < perRow;
      group.append("text").attr("class", "soft").attr("x", hasRoomBehind ? left + mesh.devices.length * (cell + gap) + 6 : 0)
        .attr("y", hasRoomBehind ? 14 : 44).text(mesh.device);
      y += Math.max(rows * (cell + gap), 36) + 10;
    });
    svg.attr("viewBox", `0 0 ${width} ${y}`).attr("height", null);
  }

  // Wheel and drag zoom and move along time.
  function addZoom(svg, height, draw) {
    const zoom = d3.zoom().scaleExtent([1, 2000]).translateExtent([[left, 0], [width - right, height]])
      .extent([[left, 0], [width - right, height]])
      .on("zoom", () => {
        const { transform, sourceEvent } = d3.event;
        draw(transform.rescaleX(scale));
        if (!sourceEvent || sourceEvent.type === "zoom") return;
        for (const other of charts) {
          if (other.svg !== svg) other.svg.call(other.zoom.transform, transform);
        }
      });
    svg.call(zoom).attr("class", "zoomable");
    charts.push({ svg, zoom });
    draw(scale);
  }

  // Rows of events, predicted ones above measured ones.
  function drawTimeline() {
    const parent = section("timeline", "One step");
    const rows = [
      ...plan.predicted.map((row) => ({ ...row, label: plan.measured.length ? `${row.name}, predicted` : row.name })),
      ...plan.measured.map((row) => ({ ...row, label: `${row.name}, measured` })),
    ];
    const kinds = [...new Set(rows.flatMap((row) => row.events.map((event) => event[1])))];
    legend(parent, kinds.map((kind) => [kind, colorOfKind(kind)]));
    const height = 24, svg = parent.append("svg").attr("viewBox", `0 0 ${width} ${rows.length * (height + 6) + 26}`);
    svg.append("clipPath").attr("id", "inside").append("rect").attr("x", left).attr("y", 0)
      .attr("width", width - left - right).attr("height", rows.length * (height + 6) + 4);
    const lines = svg.selectAll("g.row").data(rows).enter().append("g").attr("class", "row")
      .attr("transform", (row, i) => `translate(0,${i * (height + 6)})`);
    lines.append("text").attr("x", 0).attr("y", 16).text((row) => row.label);
    const clipped = svg.append("g").attr("clip-path", "url(#inside)");
    const bars = clipped.selectAll("rect").data(rows.flatMap((row, i) => row.events.map((event) => ({ event, i }))))
      .enter().append("rect").attr("class", "event").attr("y", (d) => d.i * (height + 6)).attr("height", height)
      .attr("fill", (d) => colorOfKind(d.event[1])).attr("stroke", "#fff").attr("stroke-width", 0.4);
    withTip(bars, (d) => `${d.event[0]}\n${time(d.event[3] - d.event[2])}, from ${time(d.event[2])}`);
    const axis = svg.append("g").attr("class", "axis").attr("transform", `translate(0,${rows.length * (height + 6) + 2})`);
    addZoom(svg, rows.length * (height + 6), (x) => {
      bars.attr("x", (d) => x(d.event[2])).attr("width", (d) => Math.max(x(d.event[3]) - x(d.event[2]), 0.2));
      axis.call(d3.axisBottom(x).ticks(10).tickFormat(time));
    });
    parent.append("p").attr("class", "hint").text("Scroll to zoom, drag to move, point at a task for its name and time.");
  }

  function drawMemory() {
    if (!plan.memory.some((moments) => moments.length)) return;
    const parent = section("memory", "Memory of a device while its programs run, predicted");
    legend(parent, MEMORY.map(([, name, color]) => [name, color]));
    plan.memory.forEach((moments, number) => {
      const height = 110, svg = parent.append("svg").attr("viewBox", `0 0 ${width} ${height + 30}`);
      const sum = (d) => d.given + d.made + d.received + d.temporary;
      const peak = d3.max(moments, sum) || 1;
      const y = d3.scaleLinear().domain([0, peak * 1.08]).range([height, 4]);
      svg.append("clipPath").attr("id", `memory${number}`).append("rect").attr("x", left).attr("y", 0)
        .attr("width", width - left - right).attr("height", height);
      svg.append("text").attr("x", 0).attr("y", 16).text(`mesh ${number}`);
      svg.append("text").attr("class", "soft").attr("x", 0).attr("y", 31).text(`peak ${bytes(peak)}`);
      const has = plan.meshes[number].device_memory;
      if (has) svg.append("text").attr("class", "soft").attr("x", 0).attr("y", 46).text(`of ${bytes(has)}`);
      svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).tickValues(byteTicks(peak)).tickFormat(bytes));
      const clipped = svg.append("g").attr("clip-path", `url(#memory${number})`);
      const parts = moments.flatMap((moment) => {
        let below = 0;
        return MEMORY.map(([field, , color]) => {
          const part = { moment, color, from: below, to: below + moment[field] };
          below = part.to;
          return part;
        });
      });
      const bars = clipped.selectAll("rect").data(parts).enter().append("rect").attr("fill", (d) => d.color)
        .attr("y", (d) => y(d.to)).attr("height", (d) => y(d.from) - y(d.to));
      withTip(bars, ({ moment }) => `${moment.name}: ${bytes(sum(moment))}\n${MEMORY.map(([field, name]) => `${name}: ${bytes(moment[field])}`).join("\n")}`);
      const axis = svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height})`);
      addZoom(svg, height, (x) => {
        bars.attr("x", (d) => x(d.moment.begin)).attr("width", (d) => Math.max(x(d.moment.end) - x(d.moment.begin), 0.2));
        axis.call(d3.axisBottom(x).ticks(10).tickFormat(time));
      });
    });
  }

  function drawStages() {
    if (plan.stages.length < 2) return;
    const parent = section("stages", "Stages").append("div").attr("class", "scroll");
    const names = plan.stages[0].facts.map(([name]) => name);
    const table = parent.append("table");
    table.append("tr").selectAll("th").data(["stage", "layers", "mesh", ...names]).enter().append("th").text((d) => d);
    plan.stages.forEach((stage, number) => {
      const axes = plan.meshes[stage.mesh].axes.map((axis) => `${axis.name}=${axis.size}`).join(", ");
      table.append("tr").attr("class", "stage").selectAll("td")
        .data([number, stage.layers, `${stage.mesh}: ${axes}`, ...stage.facts.map(([, value]) => value)]).enter().append("td").text((d) => d);
    });
  }

  // "[data,-]{partial: model}" as the axes of each dimension.
  function axesOfDims(sharding) {
    const inside = sharding.slice(1, sharding.indexOf("]"));
    return inside === "" ? [] : inside.split(",").map((axes) => (axes === "-" ? [] : axisNames.filter((name) => axes.split(/[^\w]+/).includes(name))));
  }

  function drawTensors() {
    const parent = section("tensors", "How every tensor lies");
    legend(parent, [["not split", "#eceef2"], ...axisNames.map((name) => [`split along ${name}`, colorOfAxis(name)])]);
    const all = plan.stages.flatMap((stage, number) => stage.tensors.map((tensor) => ({ ...tensor, stage: number })));
    const controls = parent.append("div").attr("class", "controls");
    const search = controls.append("input").attr("id", "search").attr("placeholder", "part of a name").attr("aria-label", "part of a name");
    const kinds = ["all kinds", ...new Set(all.map((tensor) => tensor.kind))];
    const kind = controls.append("select").attr("aria-label", "kind");
    kind.selectAll("option").data(kinds).enter().append("option").text((d) => d);
    const stage = controls.append("select").attr("aria-label", "stage").style("display", plan.stages.length > 1 ? null : "none");
    stage.selectAll("option").data(["all stages", ...plan.stages.keys()]).enter().append("option").text((d) => (typeof d === "number" ? `stage ${d}` : d));
    const body = parent.append("div").attr("class", "scroll").append("table");
    const hint = parent.append("p").attr("class", "hint");
    const most = 300, isPipeline = plan.stages.length > 1;
    const columns = ["kind", ...(isPipeline ? ["stage"] : []), "name", "shape", "sharding", "per device"];
    function show() {
      const text = search.property("value").toLowerCase();
      const chosenKind = kind.property("value"), chosenStage = stage.property("selectedIndex") - 1;
      const found = all.filter((tensor) => tensor.name.toLowerCase().includes(text) &&
        (chosenKind === "all kinds" || tensor.kind === chosenKind) && (chosenStage < 0 || tensor.stage === chosenStage));
      body.selectAll("tr").remove();
      body.append("tr").selectAll("th").data(columns).enter().append("th")
        .attr("class", (d) => (d === "per device" ? "number" : null)).text((d) => d);
      for (const tensor of found.slice(0, most)) {
        const row = body.append("tr").attr("class", "tensor");
        row.append("td").text(tensor.kind + (tensor.kept ? ", kept" : ""));
        if (isPipeline) row.append("td").text(tensor.stage);
        row.append("td").attr("class", "name").text(tensor.name);
        const dims = row.append("td");
        dims.append("span").text(`${tensor.type} `);
        const axes = axesOfDims(tensor.sharding);
        tensor.shape.forEach((size, i) => {
          const split = axes[i] || [];
          const chip = dims.append("span").attr("class", "dim").text(size);
          if (split.length === 1) chip.style("background", colorOfAxis(split[0]));
          if (split.length > 1) chip.style("background", `linear-gradient(90deg, ${split.map((name) => colorOfAxis(name)).join(", ")})`);
        });
        row.append("td").text(tensor.sharding);
        row.append("td").attr("class", "number").text(bytes(tensor.bytes));
      }
      hint.text(found.length > most ? `${most} of ${found.length} tensors` : `${found.length} tensors`);
    }
    search.on("input", show);
    kind.on("change", show);
    stage.on("change", show);
    show();
  }

  document.title = `minka: ${plan.title}`;
  report.append("h1").text(plan.title);
  facts(section("summary", "Plan"), plan.facts);
  drawCluster();
  drawTimeline();
  drawMemory();
  drawStages();
  drawTensors();
  facts(section("search-statistics", "Search"), plan.search);
  if (plan.notes.length) {
    section("notes", "Notes").append("ul").selectAll("li").data(plan.notes).enter().append("li").text((d) => d);
  }
  report.attr("data-drawn", "true");
})();
