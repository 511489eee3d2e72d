"""What is behind ``config.py``: settings, algorithms, the options of the command line, pages."""
