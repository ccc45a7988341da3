// All that the page says in words about what it shows, for readers and for screen readers.
class Words {
  constructor(root, view, reference) {
    this.find = (selector) => root.querySelector(selector);
    this.view = view;
    this.reference = reference;
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
      this.reference ? "" : "There is no reference to compare with.",
      "The address of this page holds what you see: copy it to share this view.",
    ].join(" ");
  }

  // " at nu = 0.03", or nothing where there are no parameters.
  at(theta) {
    return this.view.parameters.length ? ` at ${named(this.view.parameters, theta)}` : "";
  }

  // The value at the cursor, and those of the reference and of the pinned theta there.
  describePoint(value, error, pinned) {
    const { view } = this;
    const parts = [`At ${named(view.coordinates, view.drawnPoint())}: ${view.output} = ${text(value, 6)}`];
    if (error !== null) parts.push(`reference ${text(value - error, 6)}, error ${text(error, 2)}`);
    if (pinned !== null) parts.push(`pinned ${Number.isFinite(pinned) ? text(pinned, 6) : "outside its domain"}`);
    this.find("output").textContent = parts.join("; ");
  }

  describeField(values) {
    const { view } = this, [low, high] = extremes(values);
    const title = view.output + this.at(view.theta);
    this.find(".field h3").textContent = title;
    this.find(".range").textContent = `${view.output} from ${text(low)} to ${text(high)}`;
    this.find(".field canvas").setAttribute("aria-label", `${title}, from ${text(low)} to ${text(high)}`);
  }

  describeCut(figure, along, values) {
    const { view } = this, [low, high] = extremes(values);
    const other = along === view.across ? view.up : view.across;
    const where = named([view.coordinates[other]], [view.drawnPoint()[other]]);
    const title = `${view.output} along ${view.coordinates[along].name} at ${where}`;
    figure.querySelector("h3").textContent = title;
    figure.querySelector("canvas").setAttribute("aria-label", `${title}, from ${text(low)} to ${text(high)}`);
  }

  // Which line is which, below a figure with lines.
  describeLines(figure, compared) {
    const { view } = this, legend = figure.querySelector(".legend");
    const entry = (kind, words) => element("span", { class: kind }, words);
    legend.replaceChildren(
      entry("now", view.pin ? `now${this.at(view.theta)}` : "network"),
      ...(view.pin ? [entry("pin", `pinned${this.at(view.pin)}`)] : []),
      ...(compared ? [entry("truth", "reference")] : []),
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

  // The figure of differences: what is subtracted from what, at which thetas, and how large it is.
  describeDifference(layer, theta, values) {
    const { view } = this, [low, high] = extremes(values);
    const range = `${text(low, 3)} to ${text(high, 3)}`;
    const title = layer === "error"
      ? `Error${this.at(theta)}: network minus reference`
      : `Change of ${view.output} since the pin`;
    const what = layer === "error"
      ? `Error of ${view.output} from ${range}.`
      : `${view.output}${this.at(theta)} minus ${view.output}${this.at(view.pin)}: from ${range}.`;
    this.find(".difference h3").textContent = title;
    this.find(".difference figcaption").textContent = what;
    this.find(".difference canvas").setAttribute("aria-label", `${title}. ${what}`);
  }
}
