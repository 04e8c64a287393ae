"""Runs and sweeps, from the door to the result: driven chunk by chunk, interrupted, saved, and
taken up again.
"""
