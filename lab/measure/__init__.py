"""Instruments that observe models without the models knowing: they take any torch module, and know
none.
"""
