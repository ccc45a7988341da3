// The live explorer: sliders, the network's field, cuts through the cursor, and the reference beside them.

// Fill the section `root`. `data` is what explorer.py tells of the problem; evaluate(points, theta) is the network.
function explore(root, data, evaluate) {
  root.id ||= `clpinn-explorer-${document.querySelectorAll(".clpinn-explorer").length}`;
  const view = new View(data, evaluate);
  const reference = data.references && new Reference(data.references, view);
  const drawing = new Drawing(root, view, reference), redraws = new Redraws(drawing);
  const controls = new Controls(root, view, drawing, redraws, data.tasks);
  new Cursor(view, drawing, controls, redraws);
  drawing.words.introduce(data);
  arrange(root, view.planar, Boolean(reference));
  drawing.restyle();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawing.restyle());
  redraws.open();
  new ResizeObserver(() => requestAnimationFrame(() => drawing.paint())).observe(root);
  return handles(view, drawing, redraws);
}

// Hide the figures that are not needed: a curve has no cuts, and shows the reference in its own frame.
function arrange(root, planar, hasReference) {
  const find = (selector) => root.querySelector(selector);
  find(".reference").hidden = !hasReference || !planar;
  find(".field").classList.toggle("alone", !hasReference || !planar);
  root.querySelectorAll(".cut").forEach((figure) => { figure.hidden = !planar; });
  if (!planar && hasReference) find(".range").after(find(".reference figcaption"));
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
    // What is drawn: box coordinates row by row, the theta, and the outputs there.
    field: () => {
      const { points, theta, values } = drawing.field;
      return { points: [...points], theta, values: plain(values) };
    },
  };
}
