"""Methods as their papers print them, round by round, in numpy alone: what the project's own are
held to.
"""
