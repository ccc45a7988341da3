"""How wrong a network is at a theta: the linearised equations solved for its error."""
