"""Sweeps of trials, workers that run them, and the store and record that keep their rows."""
