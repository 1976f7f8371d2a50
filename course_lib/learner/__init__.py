"""For a learner's computer and notebooks: set-up, doctor, repair of older copies, progress and quiz."""
