"""Messages of bytes between ranks, and which ranks are lost; ``cluster`` says what they mean."""
