"""The tasks that models are trained and measured on.

Each is a Task (task.py): batch(generator, size), validation(size).

The docstring of a task shows one sequence with its answers; "." is a position without an answer.
"""
