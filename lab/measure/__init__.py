"""Measurements on any torch module, made from outside; none depends on a model of this package."""
