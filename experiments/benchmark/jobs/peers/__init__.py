"""One job in all ways: `benchmark peers` runs each module in a process of its own, some of them in a Python of their own.

The job is logistic regression of N workers, each with few samples and all of them in every gradient, so that nothing is random: all
versions make the same iterates. Everything is float64. `job` has what they share, and needs no more than numpy.
"""
