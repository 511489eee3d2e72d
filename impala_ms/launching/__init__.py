"""What is behind ``launch.py``: mpirun, the processes of a run, how it ended."""
