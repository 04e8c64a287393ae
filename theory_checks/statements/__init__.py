"""The statements to check: one module per family of methods, the lemmas on which they depend, and
the misprints.
"""
