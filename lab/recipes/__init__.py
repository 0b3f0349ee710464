"""Model, task, training and measurement together: what several notebooks run."""
