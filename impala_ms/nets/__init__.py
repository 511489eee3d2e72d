"""Parts of networks: torsos, an LSTM, an optimiser, and weights as one flat array."""
