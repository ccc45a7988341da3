"""Networks u(features of the coordinates, features of the parameters), one file per family."""
