"""Measurements of torch modules; they do not import the models of this package."""
