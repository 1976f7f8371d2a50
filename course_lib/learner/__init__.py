"""What a learner moves: the environment, the doctor, progress and quiz."""
