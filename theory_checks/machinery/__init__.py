"""What statements are held to the code with: draws and instances, exact moments, runs, rates, the
registry.
"""
