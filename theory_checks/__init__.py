"""Every bound of the papers, held against the code. Nothing is here yet: see the changelog."""
