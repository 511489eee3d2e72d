"""Network parts: torsos, heads, and the flat form in which weights travel."""
