"""Byte messages between ranks, by tag, and who is alive. Who says what to whom is the algorithm's."""
