"""Whole programs, each of which `benchmark start` runs in a process of its own: `python -m experiments.benchmark.jobs.<version> <job>`.

The job `logistic` is logistic regression on digits, sorted by label over 16 workers, 1,000 rounds of ring DSGD on batches of 16;
`transformer` is 3 rounds of it with a byte-level transformer on 8 workers. In every round, f, |f'|^2, the consensus distance and, of the
digits, the test accuracy are recorded. The versions import no more than they need, and read the same file.
"""
