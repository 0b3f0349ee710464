"""Recipes that several notebooks share: a model, a task, its training and measurements."""
