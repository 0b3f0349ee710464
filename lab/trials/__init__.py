"""Trials: sweeps of them, the store and the record of finished ones, the code and data that they
depend on, workers.
"""
