"""Two arithmetics in which a row's result does not depend on the rows beside it."""
