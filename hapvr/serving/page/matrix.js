// The heat map of frame similarities: time of the reference from left to right, time of the query from top to bottom.

import { clock, element } from "./dom.js";
import { span } from "./words.js";

const COLORS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const MAX_SIDE = 640;
const MIN_SIDE = 120;

function color(value) {
  const place = Math.min(Math.max(value, 0), 1) * (COLORS.length - 1);
  const low = Math.min(Math.floor(place), COLORS.length - 2);
  return COLORS[low].map((one, channel) => one + (place - low) * (COLORS[low + 1][channel] - one));
}

function pixels(values) {
  const [height, width] = [values.length, values[0].length];
  const canvas = element("canvas", { width, height });
  const image = new ImageData(width, height);
  values.flat().forEach((value, cell) => image.data.set([...color(value), 255], 4 * cell));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// When a row or column ends: a frame stands for the time up to the next one.
const endOf = (times) => times.length > 1 ? 2 * times.at(-1) - times.at(-2) : times[0] + 1;

// seek(query second, reference second) is called for clicks. Gives the element, and a function that shows two times in it.
export function heatMap(found, segments, seek) {
  const { values, query_times_s: rows, reference_times_s: columns } = found;
  const [height_s, width_s] = [endOf(rows), endOf(columns)];
  const scale = Math.min(MAX_SIDE / width_s, 420 / height_s);
  const width = Math.round(Math.max(width_s * scale, MIN_SIDE));
  const height = Math.round(Math.max(height_s * scale, MIN_SIDE));
  const canvas = element("canvas", { width, height, class: "matrix", role: "img",
    "aria-label": `Similarity of frames, ${rows.length} by ${columns.length}. ` +
      (segments.length ? `Matching parts: ${segments.map(span).join("; ")}.` : "No part could be aligned.") });
  const readout = element("output", { class: "quiet readout" }, "Click a cell to see both videos there.");
  const cells = pixels(values);
  const context = canvas.getContext("2d");
  let now = null;

  function draw() {
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, 0, 0, width, height);
    for (const part of segments) {
      const line = new Path2D();
      line.moveTo((part.reference_start_s / width_s) * width, (part.query_start_s / height_s) * height);
      line.lineTo((part.reference_end_s / width_s) * width, (part.query_end_s / height_s) * height);
      for (const [stroke, thick] of [["#000", 5], ["#ff4d6d", 2.5]]) {
        context.strokeStyle = stroke;
        context.lineWidth = thick;
        context.stroke(line);
      }
    }
    if (now) {
      const [x, y] = [(now[1] / width_s) * width, (now[0] / height_s) * height];
      context.strokeStyle = "#fff";
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, 0); context.lineTo(x, height);
      context.moveTo(0, y); context.lineTo(width, y);
      context.stroke();
    }
  }

  const timesAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.max((event.clientY - box.top) / box.height, 0) * height_s, Math.max((event.clientX - box.left) / box.width, 0) * width_s];
  };
  const nearest = (times, second) => times.findLastIndex((one) => one <= second + 1e-6);
  canvas.addEventListener("click", (event) => seek(...timesAt(event)));
  canvas.addEventListener("mousemove", (event) => {
    const [first, second] = timesAt(event);
    const value = values[Math.max(nearest(rows, first), 0)][Math.max(nearest(columns, second), 0)];
    readout.textContent = `yours ${clock(first)}, this video ${clock(second)}: alike by ${value.toFixed(2)}`;
  });
  draw();
  const figure = element("figure", { class: "heat" },
    element("div", { class: "axes" },
      element("span", { class: "axis top quiet" }, element("span", {}, "this video 0:00"), element("span", {}, clock(width_s))),
      element("span", { class: "axis side quiet" }, element("span", {}, "yours 0:00"), element("span", {}, clock(height_s))),
      canvas),
    element("figcaption", {}, readout, element("span", { class: "scale quiet" }, "0 ",
      element("span", { class: "bar" }), " 1")));
  return { figure, show: (first, second) => { now = [first, second]; draw(); } };
}
