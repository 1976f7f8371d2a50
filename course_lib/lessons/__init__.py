"""What the notebooks build, one module for each notebook that needs one."""
