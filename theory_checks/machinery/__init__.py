"""Machinery of the theory checks: random instances, exact moments, runs, rates and the registry of
statements.
"""
