"""Who is whose neighbour: mixing matrices, how fast they average, and messages in rounds without
conflicts.
"""
