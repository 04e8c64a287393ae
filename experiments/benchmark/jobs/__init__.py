"""What benchmarks run in processes of their own: programs whose start is timed, and the versions of other libraries."""
