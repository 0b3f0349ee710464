"""Measurements of any torch module; they do not depend on the models of this package."""
