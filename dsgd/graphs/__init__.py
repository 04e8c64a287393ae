"""Communication graphs: mixing matrices, their spectra, neighbour lists and matchings."""
