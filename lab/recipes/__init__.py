"""Recipes: model, task, training and measurements combined, as several notebooks run them."""
