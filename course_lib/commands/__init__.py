"""One module per command that is not a part of the engine itself; each has main(argv) -> exit code."""
