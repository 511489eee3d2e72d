"""Several runs beside each other: what is run, what the runs say, how it is shown."""
