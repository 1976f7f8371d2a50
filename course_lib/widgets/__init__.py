"""Pictures that a learner can move. Each explorer is one function; explorer.py is what they share."""
