"""Programs that benchmarks run in separate processes: whole jobs whose start is timed, and the
versions in other libraries.
"""
