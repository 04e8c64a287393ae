"""What benchmarks run in separate processes: programs whose start is timed, and the versions of
other libraries.
"""
