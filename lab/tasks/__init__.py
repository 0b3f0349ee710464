"""Tasks on which models are trained and measured; see `Task` in task.py for their interface.

The docstring of a task shows an example sequence; "." marks a position without an answer.
"""
