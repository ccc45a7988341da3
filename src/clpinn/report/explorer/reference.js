// References at some thetas, as errors of the network. Network and reference are compared at those thetas only.
class Reference extends ErrorFields {
  // `references` are {kind, axes, thetas, errors, relative, points}. `relative` are the relative L2 errors by theta and
  // output, over `points`.
  constructor(references, view) {
    super(references, view);
    this.kind = references.kind;
    this.relative = references.relative;
    this.points = references.points;
  }

  // The relative L2 error of the chosen output, as the summary of a report has it.
  relativeError(index) {
    return this.relative[index][this.view.outputs.indexOf(this.view.output)];
  }

  // The reference at points of the box, given the network's values there. To subtract the error is more accurate than
  // to interpolate the reference itself: the error is small.
  valuesAt(index, points, networkValues) {
    return this.errorsAt(index, points).map((error, row) => networkValues[row] - error);
  }
}
