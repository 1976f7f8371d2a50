"""Modelled time: what a step costs, in integer microseconds."""
