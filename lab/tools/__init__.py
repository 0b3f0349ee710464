"""Commands of `lab` that stand in files of their own, and what several commands share."""
