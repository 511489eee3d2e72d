"""Byte messages between ranks, by tag, and who is alive; what they mean is the algorithm's."""
