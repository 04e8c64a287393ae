"""The statements: a file for each family of methods, the lemmas that they rest on, and
misprints.
"""
