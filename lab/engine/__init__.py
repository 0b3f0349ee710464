"""How things run: trials and what they depend on, workers, parameters, runs."""
