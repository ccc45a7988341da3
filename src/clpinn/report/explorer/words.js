// All that the page says in words about what it shows, for readers and for screen readers.
class Words {
  constructor(root, view, reference, estimates) {
    this.find = (selector) => root.querySelector(selector);
    this.view = view;
    this.reference = reference;
    this.estimates = estimates;
  }

  // Title, equation and notes, which do not change.
  introduce(data) {
    this.find("h2").textContent = data.title;
    this.find(".equation").textContent = data.equation;
    const trained = data.tasks.length
      ? `The marks on the sliders are the ${data.tasks.length} training tasks.`
      : "It was trained over the whole box of parameters.";
    this.find(".notes").textContent = [
      "The network itself runs in this page, with its weights in single precision.",
      data.parameters.length ? trained : "",
      data.heads ? `Its heads at ${data.heads} single thetas are left out here.` : "",
      data.unmasked ? "The shape of the domain cannot run in this page: fields are drawn outside it, too." : "",
      this.reference ? "" : "There is no reference to compare with.",
      this.estimates ? "Estimated errors come from solving the linearised equations for them." : "",
      "The address of this page holds what you see: copy it to share this view.",
    ].join(" ");
  }

  // "from 0.1 to 0.5": the smallest and the largest value, if there are any inside the domain.
  covered(values, digits) {
    const [low, high] = extremes(values), { domain } = this.view;
    return domain && low > high ? "nowhere: all is outside" : `from ${text(low, digits)} to ${text(high, digits)}`;
  }

  // " at nu = 0.03", or nothing where there are no parameters.
  at(theta) {
    return this.view.parameters.length ? ` at ${named(this.view.parameters, theta)}` : "";
  }

  // The value at the cursor, and those of the reference and of the pinned theta there.
  describePoint(value, error, pinned) {
    const { view } = this;
    const outside = view.domain && Number.isNaN(value); // of a shape
    const shown = outside ? "outside the domain" : `${view.output} = ${text(value, 6)}`;
    const parts = [`At ${named(view.coordinates, view.drawnPoint())}: ${shown}`];
    if (error !== null && !outside) parts.push(`reference ${text(value - error, 6)}, error ${text(error, 2)}`);
    if (pinned !== null) parts.push(`pinned ${Number.isFinite(pinned) ? text(pinned, 6) : "outside its domain"}`);
    this.find("output").textContent = parts.join("; ");
  }

  describeField(values) {
    const { view } = this, covered = this.covered(values);
    const title = view.output + this.at(view.theta);
    this.find(".field h3").textContent = title;
    this.find(".range").textContent = `${view.output} ${covered}`;
    this.find(".field canvas").setAttribute("aria-label", `${title}, ${covered}`);
  }

  describeCut(figure, along, values) {
    const { view } = this, covered = this.covered(values);
    const other = along === view.across ? view.up : view.across;
    const where = named([view.coordinates[other]], [view.drawnPoint()[other]]);
    const title = `${view.output} along ${view.coordinates[along].name} at ${where}`;
    figure.querySelector("h3").textContent = title;
    figure.querySelector("canvas").setAttribute("aria-label", `${title}, ${covered}`);
  }

  // Which line is which, below a figure with lines.
  describeLines(figure, compared) {
    const { view } = this, legend = figure.querySelector(".legend");
    const entry = (kind, words) => element("span", { class: kind }, words);
    legend.replaceChildren(
      entry("now", view.pin ? `now${this.at(view.theta)}` : "network"),
      ...(view.pin ? [entry("pin", `pinned${this.at(view.pin)}`)] : []),
      ...(compared ? [entry("truth", view.pin ? `reference${this.at(view.theta)}` : "reference")] : []),
    );
  }

  // The reference's kind and theta, and the error of the network there.
  describeReference(index, compared) {
    const { view, reference } = this, theta = reference.thetas[index];
    const relative = reference.relativeError(index);
    const size = relative === null ? "not defined: the reference is zero" : text(relative, 3);
    const error = `The relative L2 error of ${view.output} there is ${size} (${reference.points} points).`;
    const elsewhere = `The nearest theta with a reference is ${named(view.parameters, theta)}. Go there to compare.`;
    this.find(".reference h3").textContent = `Reference${this.at(theta)}`;
    const kind = reference.kind ? `Reference: ${reference.kind}.` : "";
    const caption = this.find(".reference-caption");
    caption.textContent = [compared ? "" : elsewhere, compared ? error.replace(" there", "") : error, kind]
      .filter(Boolean).join(" ");
    this.find(".reference canvas").setAttribute("aria-label", `Reference of ${view.output}. ${caption.textContent}`);
  }

  // The estimated error at the chosen theta, or why it is not known.
  describeEstimate() {
    const { view, estimates } = this, index = estimates.nearest(), near = this.at(estimates.thetas[index]);
    const why = () => {
      if (!estimates.resolved[index]) return `the nearest estimate${near} is not resolved. ${estimates.reasons[index]}`;
      return estimates.process() ? `the only estimate is${near}.` : "too few estimates are resolved, or it is zero.";
    };
    this.find(".estimate").textContent = estimates.known()
      ? `Estimated relative L2 error of ${view.output}: ${between(estimates.spread())}. No reference is used.`
      : `The error of ${view.output} is not known here: ${why()}`;
  }

  // The figure of differences: what is subtracted from what, at which thetas, and how large it is.
  describeDifference(layer, theta, values) {
    const { view } = this, range = this.covered(values, 3);
    const [title, what] = {
      error: () => [`Error${this.at(theta)}: network minus reference`, `Error of ${view.output} ${range}.`],
      estimate: () => [`Estimated error${this.at(theta)}: network minus solution`, this.estimatedRange(range)],
      change: () => [
        `Change of ${view.output} since the pin`,
        `${view.output}${this.at(theta)} minus ${view.output}${this.at(view.pin)}: ${range}.`,
      ],
    }[layer]();
    this.find(".difference h3").textContent = title;
    this.find(".difference figcaption").textContent = what;
    this.find(".difference canvas").setAttribute("aria-label", `${title}. ${what}`);
  }
  estimatedRange(range) {
    const { view, estimates } = this, index = estimates.nearest();
    const where = view.parameters.length && !estimates.isAt(index) ? " It is at the nearest theta with an estimate." : "";
    const doubt = estimates.resolved[index] ? "" : " Do not trust it: it is not resolved.";
    return `Estimated error of ${view.output} ${range}.${where}${doubt}`;
  }
}

// "0.0012 (0.001 to 0.0014)": a value with the ends of its spread, if there is one.
function between({ low, middle, high }) {
  const [value, ...ends] = [middle, low, high].map((number) => text(number, 2));
  return ends.every((end) => end === value) ? value : `${value} (90 %: ${ends.join(" to ")})`;
}
