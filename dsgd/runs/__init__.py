"""Runs and sweeps, from argument validation to the result: executed in chunks, interrupted,
checkpointed and resumed.
"""
