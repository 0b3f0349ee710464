"""Tasks to train and measure models on. Their interface is `Task` in task.py.

The docstring of each task shows an example sequence; "." marks a position without an answer.
"""
