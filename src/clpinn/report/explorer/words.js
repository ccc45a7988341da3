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
    ].join(" ");
  }

  // The value at the cursor.
  describePoint(index, place, value) {
    const { view, reference } = this;
    let words = `At ${named(view.coordinates, place)}: ${view.output} = ${text(value, 6)}`;
    if (index >= 0) {
      const nearest = reference.interpolated(reference.values(index), view.point);
      words += `; nearest reference about ${text(nearest, 3)}`;
    }
    this.find("output").textContent = words;
  }

  describeField(values) {
    const { view } = this, [low, high] = extremes(values);
    const title = view.output + (view.parameters.length ? ` at ${named(view.parameters, view.theta)}` : "");
    this.find(".field h3").textContent = title;
    this.find(".range").textContent = `${view.output} from ${text(low)} to ${text(high)}`;
    this.find(".field canvas").setAttribute("aria-label", `${title}, from ${text(low)} to ${text(high)}`);
  }

  describeCut(figure, along, place, values) {
    const { view } = this, [low, high] = extremes(values);
    const other = along === view.across ? view.up : view.across;
    const where = named([view.coordinates[other]], [place[other]]);
    const title = `${view.output} along ${view.coordinates[along].name} at ${where}`;
    figure.querySelector("h3").textContent = title;
    figure.querySelector("canvas").setAttribute("aria-label", `${title}, from ${text(low)} to ${text(high)}`);
  }

  // The reference's kind and theta, and how far the network is from it: exactly, or only if that is known already.
  describeReference(index, exact) {
    const { view, reference } = this;
    const grid = reference.axes.map((axis) => axis.length).join(" × ");
    const difference = exact || reference.hasDifference(index) ? text(reference.difference(index), 3) : "…";
    const theta = named(view.parameters, reference.thetas[index]);
    const subject = view.parameters.length ? `The nearest reference in this page is at ${theta}. There the` : "The";
    const sentence = `${subject} network differs by ${difference} (relative L2, ${grid} points).`;
    const caption = this.find("figcaption");
    caption.textContent = `${sentence} Circles show the reference.`;
    this.find(".reference h3").textContent = `Reference${reference.kind ? ` (${reference.kind})` : ""}`;
    this.find(".reference canvas").setAttribute("aria-label", `Reference of ${view.output}. ${caption.textContent}`);
  }
}
