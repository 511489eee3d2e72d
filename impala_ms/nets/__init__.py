"""Network parts: torsos, heads, an optimiser, and the flat form in which weights travel."""
