"""Grading submissions from strangers: their code runs in a sandbox, and a judge outside believes nothing it sends."""
