// The live explorer: sliders, the network's field, the reference and errors beside it, cuts through the cursor.

// Fill the section `root`. `data` is what explorer.py tells of the problem; evaluate(points, theta) is the network;
// place(points, theta) gives physical coordinates, distance(points, theta) the signed distance to the boundary; both
// may be null.
function explore(root, data, evaluate, place, distance) {
  const number = document.querySelectorAll(".clpinn-explorer").length;
  root.id ||= `clpinn-explorer-${number}`;
  const view = new View(data, evaluate, place, distance);
  const reference = data.references && new Reference(data.references, view);
  if (reference) view.theta = [...reference.thetas[reference.nearest()]]; // so that the page opens with a comparison
  view.enter();
  const estimates = data.estimates && new Estimates(data.estimates, view);
  const drawing = new Drawing(root, view, reference, estimates, new Colours(data.colours));
  const redraws = new Redraws(drawing);
  const controls = new Controls(root, view, drawing, redraws, data.tasks);
  new Cursor(view, drawing, controls, redraws);
  new Fragment(view, controls, redraws, number).read();
  controls.show();
  drawing.words.introduce(data);
  arrange(root, view, Boolean(reference), Boolean(estimates));
  drawing.restyle();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawing.restyle());
  redraws.open();
  new ResizeObserver(() => requestAnimationFrame(() => drawing.paint())).observe(root);
  return handles(view, drawing, redraws);
}

// Hide the figures that are not needed: a curve has no cuts, and shows the reference in its own frame. Where one unit
// is equally long on both axes, fields are as high as their frame needs.
function arrange(root, view, hasReference, hasEstimates) {
  const { planar } = view, aspect = view.aspect(), find = (selector) => root.querySelector(selector);
  if (aspect) root.style.setProperty("--aspect", aspect);
  for (const name of [".field", ".reference", ".difference"]) find(name).classList.toggle("equal", aspect !== null);
  find(".reference").hidden = !hasReference || !planar;
  find(".field .legend").hidden = planar;
  find(".estimate").hidden = !hasEstimates;
  root.querySelectorAll(".cut").forEach((figure) => { figure.hidden = !planar; });
  if (!planar && hasReference) find(".range").after(find(".reference-caption"));
}

// What other scripts may ask, as plain numbers, texts and arrays.
function handles(view, drawing, redraws) {
  const plain = (values) => Object.fromEntries(Object.entries(values).map(([name, numbers]) => [name, [...numbers]]));
  return {
    // Outputs by name at points (rows of box coordinates) and one theta.
    evaluate: (points, theta) => plain(view.evaluate(Float64Array.from(points.flat()), theta)),
    // Milliseconds of the drawings: the first one, those while dragging, those at rest.
    redrawTimes: () => redraws.times,
    settled: () => redraws.settled(),
    output: () => view.output,
    theta: () => [...view.theta],
    pin: () => view.pin && [...view.pin],
    // The cursor as it is drawn, and the layer that is shown beside the field.
    cursor: () => view.drawnPoint(),
    layer: () => view.shownLayer(),
    // The error in the page, at points (rows of box coordinates) and the theta of the nearest reference.
    errors: (points) => [...drawing.reference.errorsAt(drawing.reference.nearest(), points.flat())],
    // The same of the nearest estimate; and the estimated relative L2 error at the chosen theta, null if it is not known.
    estimatedErrors: (points) => [...drawing.estimates.errorsAt(drawing.estimates.nearest(), points.flat())],
    estimate: () => drawing.estimates.spread(),
    // The straight line through the cursor along a coordinate: places on it (box points), and the output there.
    cut: (along, units) => {
      const line = view.line(along, units, view.theta);
      return { points: [...line.points], inside: line.inside, values: [...view.outputAlong(line, view.theta)] };
    },
    // The frame of the field in CSS pixels, and the bytes of both colour tables.
    frame: () => drawing.fieldPanel.inside,
    colours: () => ({ values: [...drawing.colours.values], signed: [...drawing.colours.signed] }),
    // The derivative of the output at the cursor by each parameter.
    derivatives: () => view.parameters.map((_, k) => drawing.sensitivities.derivative(k)),
    // What is drawn: box coordinates row by row, the theta, and the outputs there.
    field: () => {
      const { points, theta, values } = drawing.field;
      return { points: [...points], theta, values: plain(values) };
    },
  };
}
